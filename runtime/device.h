// Device: what a worker computes on: kernels, threads, on a GPU the accelerator and its captured programs, and the target model
// on them.
//
// Errors: create() as ModelRunner::create; kUnsupported, with the reason, for a path that the build or the machine does not
// have. Single-threaded: used by one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graph/program_pool.h"
#include "kernels/cuda/cuda_kernels.h"
#include "runtime/model_runner.h"

namespace otr {

struct DeviceOptions {
  std::string isa = "auto";              // of the CPU's paths; or kCudaPath
  int32_t ordinal = 0;                   // of the GPU, on that path
  std::vector<int32_t> peers = {};       // the engine's GPUs, which copy pages from it
  const KernelTable* kernels = nullptr;  // if not null, instead of the path's: for proofs of what goes wrong with others
  int32_t num_threads = 0;
  bool pin_threads = false;
  int32_t first_cpu =
      -1;  // with pin_threads, of the creating thread's affinity: its threads have the CPUs from this one on; -1: all
  ModelOptions target;
};

// Captured programs, of one worker or of all.
struct CaptureFacts {
  int32_t captures = 0;
  int64_t target_bytes = 0, draft_bytes = 0;
  double seconds = 0;

  void add(const CaptureFacts& o) {
    captures += o.captures;
    target_bytes += o.target_bytes;
    draft_bytes += o.draft_bytes;
    seconds += o.seconds;
  }
};

class Device {
 public:
  static Result<std::unique_ptr<Device>> create(const DeviceOptions& options);

  const KernelTable& kernels() const { return *kernels_; }
  ThreadPool& pool() { return *pool_; }
  const std::shared_ptr<Accelerator>& accelerator() const { return accelerator_; }  // null on a CPU's path
  ProgramPool* programs() { return programs_.get(); }                               // likewise
  const ProgramPool* programs() const { return programs_.get(); }
  CaptureFacts captures() const;  // REQUIRES: its thread is at rest
  const char* isa() const { return kernels_->path; }
  int32_t num_threads() const { return pool_->num_threads(); }
  ModelRunner& target() { return *target_; }
  const ModelRunner& target() const { return *target_; }

 private:
  Device() = default;
  Status choose_gpu(const DeviceOptions& options);  // device_cuda.cpp, or cuda_missing.cpp

  const KernelTable* kernels_ = nullptr;
  std::unique_ptr<ThreadPool> pool_;
  std::shared_ptr<Accelerator> accelerator_;
  std::unique_ptr<ProgramPool> programs_;
  std::unique_ptr<ModelRunner> target_;
};

// What lies on a GPU, to the host; *copy stays empty if `data` is the host's memory. Errors: as Accelerator::wait.
Status fetch_from_gpu(const void* data, size_t bytes, std::vector<std::byte>* copy);

// What the ABI's `device` says: "cpu" or "auto" are no GPU, "cuda" is GPU 0, "cuda:0,2" several. Errors: kInvalidArgument for
// anything else, and for a GPU that is named twice.
Result<std::vector<int32_t>> parse_gpus(std::string_view device);

}  // namespace otr
