// Accelerator: a device with memory of its own and one queue of work, as everything above the kernels sees it. Null where
// memory is the host's: on every CPU path.
//
// What is asked of the queue runs in the order in which it was asked. A launch or copy that fails says so at the next wait():
// the first failure is kept, and everything after it is worth nothing. Addresses that allocate() gave are fixed until
// release().
//
// Thread safety: one thread at a time; several accelerators, on one device or on several, may be used side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/base/status.h"

namespace otr {

// A launch list that the device has as a whole.
struct Capture {
  void* executable = nullptr;
  int64_t bytes = 0;  // of the device's memory, as far as the device tells
};

class Accelerator {
 public:
  Accelerator() = default;
  virtual ~Accelerator() = default;
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // ---- Memory ----
  virtual void* allocate(size_t bytes) = 0;  // zeroed, aligned to 256; null if the device refuses
  virtual void release(void* data) = 0;      // data may be null
  // The memory of a block goes back to the device, its address stays the block's; take_back() gives it memory again, zeroed.
  // Between them nothing may touch it. Blocks smaller than the device's unit of memory keep theirs. Asking twice is no error.
  // Errors: as wait(); kUnsupported where the device cannot; of take_back() kOutOfMemory.
  virtual Status give_back(void* data) = 0;
  virtual Status take_back(void* data) = 0;
  virtual void* allocate_host(size_t bytes) = 0;  // host memory that the device reads by itself; null if the system refuses
  virtual void release_host(void* data) = 0;
  virtual uint64_t free_bytes() const = 0;

  // ---- The queue ----
  // Whether copy() takes it: the host's memory or this device's own, which allocate() or someone else gave.
  virtual bool can_copy(const void* data) const = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  // `from` is another accelerator's, on this device or on a peer: nothing there may write to it before this queue's wait().
  virtual void copy_from(const Accelerator& other, void* to, const void* from, size_t bytes) = 0;
  virtual void clear(void* data, size_t bytes) = 0;  // to zeros
  // A launch's outcome.
  virtual void keep(const Status& status) = 0;
  // Returns when everything asked so far is done. Errors: the first failure since create; kTimeout if the device does not
  // finish.
  virtual Status wait() = 0;
  virtual uint64_t num_waits() const = 0;  // that have returned; may be asked from any thread

  // ---- Captures ----
  // What `launches` asks of the queue is not run but kept, with all its arguments. Errors: kOutOfMemory; else as wait().
  virtual Result<Capture> capture(const std::function<void()>& launches) = 0;
  virtual void launch(const Capture& capture) = 0;
  virtual void destroy(const Capture& capture) = 0;
};

}  // namespace otr
