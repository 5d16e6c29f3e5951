// CudaDevice: an Accelerator on a CUDA device: one stream, blocks of memory (device_memory.h), CUDA graphs.
//
// Every call makes its device the calling thread's; a caller's is given back where a CallerContext lives. wait() asks again and
// again instead of sleeping, since a tick is a millisecond, and gives up after kPatience. After a failed call
// nothing is tried again: what it should have written is missing ever after, whether CUDA could go on, as after a launch that
// it refuses, or not, as after a kernel's fault, which ends the context for all that use it. What a device that hangs may still
// use (memory, captures, the stream) is left to the end of the process: CUDA would wait for it, without a limit. kPatience
// bounds neither what CUDA waits for inside a call, a copy to or from memory that is not pinned (loads and weights that are put
// have such), nor cudaFree, an unmapping and the end of a stream, which may wait for other streams of the device too.
//
// Thread safety: as Accelerator.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/accelerator.h"
#include "kernels/cuda/device_memory.h"

namespace otr {

class CudaDevice final : public Accelerator {
 public:
  static constexpr double kPatience = 120;  // seconds: a thousand times the longest tick of a 32B model

  // Device number `ordinal`, whose memory the devices `peers` may read directly where the machine has a way. Errors:
  // kUnsupported, with the reason, where there is no such device of compute capability 9.0.
  static Result<std::shared_ptr<CudaDevice>> open(int ordinal, std::span<const int> peers = {});
  // What lies on any device, and is written by then, to the host; *to stays empty if `from` is the host's memory. The calling
  // thread's context stays what it is. Waits for nothing else of that device but other fetches, and for this as wait() does;
  // where that has failed once it fails ever after.
  static Status fetch(const void* from, size_t bytes, std::vector<std::byte>* to);
  static constexpr size_t kFetchBytes = size_t{8} << 20;  // at once
  ~CudaDevice() override;

  // Of the launches. Makes the device the calling thread's.
  cudaStream_t stream();

  void* allocate(size_t bytes) override;
  void release(void* data) override;
  Status give_back(void* data) override;
  Status take_back(void* data) override;
  void* allocate_host(size_t bytes) override;
  void release_host(void* data) override;
  uint64_t free_bytes() const override;
  bool can_copy(const void* data) const override;
  void copy(void* to, const void* from, size_t bytes) override;
  void copy_from(const Accelerator& other, void* to, const void* from, size_t bytes) override;
  void clear(void* data, size_t bytes) override;
  void keep(const Status& status) override;
  Status wait() override;
  uint64_t num_waits() const override { return num_waits_.load(std::memory_order_relaxed); }
  Result<Capture> capture(const std::function<void()>& launches) override;
  void launch(const Capture& capture) override;
  void destroy(const Capture& capture) override;

 private:
  struct Fetching;

  CudaDevice(int ordinal, std::vector<int> peers) : ordinal_(ordinal), memory_(ordinal, std::move(peers)) {}
  void make_current() const;
  Status create_stream();
  static Fetching& fetching_on(int ordinal);
  // `end` is what CUDA says at the end of the capture.
  Status try_capture(const std::function<void()>& launches, cudaError_t* end, cudaGraphExec_t* executable);

  const int ordinal_;
  DeviceMemory memory_;
  cudaStream_t stream_ = nullptr;
  Status failure_;                       // the first one
  bool hung_ = false;                    // a wait ended before the device did
  std::atomic<uint64_t> num_waits_ = 0;  // others may read it
};

}  // namespace otr
