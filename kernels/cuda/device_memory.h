// DeviceMemory: blocks of a device's memory whose addresses stay when the memory behind them is given back (CUDA's virtual
// memory management): launch lists, captured graphs and tensor maps that hold those addresses are good again when the memory
// is.
//
// A block has whole units of the driver's granularity (2 MiB). Smaller blocks come from cudaMalloc and keep their memory, and
// so do all where the device or its driver cannot do otherwise.
//
// Thread safety: one thread at a time; the device is the calling thread's. The owner sees to it that nothing runs on a block
// while its memory changes.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "kernels/base/status.h"

namespace otr {

class DeviceMemory {
 public:
  // On device number `ordinal`; the devices `peers`, which can, may read it. Nothing is asked of the device before the first
  // allocate().
  DeviceMemory(int ordinal, std::vector<int> peers) : ordinal_(ordinal), peers_(std::move(peers)) {}
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* allocate(size_t bytes);        // content undefined; null if the device refuses
  void release(void* data);            // of allocate(), or null
  void abandon() { blocks_.clear(); }  // all blocks stay as they are, for something may run on them for ever
  // Errors: kUnsupported where the device cannot; kInternal with the driver's error: the block keeps its memory, unless only
  // the release of what was unmapped has failed.
  Status give_back(void* data);
  // Returns how many bytes of the block are undefined now: 0 where it had kept its memory. Errors: kOutOfMemory; the block is
  // without memory as before.
  Result<size_t> take_back(void* data);

 private:
  struct Block {
    size_t bytes = 0;                          // whole units
    CUmemGenericAllocationHandle memory = {};  // while `backed`
    bool backed = false;
  };
  size_t unit();  // 0: the device cannot
  CUmemAllocationProp properties() const;
  bool back(CUdeviceptr at, Block* block);
  Status unback(CUdeviceptr at, Block* block);  // it stays backed if the driver does not unmap it

  const int ordinal_;
  const std::vector<int> peers_;
  size_t unit_ = 0;
  bool asked_ = false;
  std::map<CUdeviceptr, Block> blocks_;
};

}  // namespace otr
