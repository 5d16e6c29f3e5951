// Device: what a worker computes on: kernels, threads, and the target model on them.
//
// Single-threaded: used by one thread at a time.
#pragma once

#include <memory>
#include <string>

#include "runtime/model_runner.h"

namespace otr {

struct DeviceOptions {
  std::string isa = "auto";
  const KernelTable* kernels = nullptr;  // if not null, instead of the path's: for proofs of what goes wrong with others
  int32_t num_threads = 0;
  bool pin_threads = false;
  int32_t first_cpu = -1;  // with pin_threads, of the creating thread's affinity: its threads have the CPUs from this one on; -1: all
  ModelOptions target;
};

class Device {
 public:
  static Result<std::unique_ptr<Device>> create(const DeviceOptions& options);

  const KernelTable& kernels() const { return *kernels_; }
  ThreadPool& pool() { return *pool_; }
  const char* isa() const { return kernels_->path; }
  int32_t num_threads() const { return pool_->num_threads(); }
  ModelRunner& target() { return *target_; }
  const ModelRunner& target() const { return *target_; }

 private:
  Device() = default;

  const KernelTable* kernels_ = nullptr;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<ModelRunner> target_;
};

}  // namespace otr
