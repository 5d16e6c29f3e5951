// WorkerChannel: one end of the Unix socket between an engine and a worker process, as frames.
//
// A frame is a header of 32 bytes (u32 length of the payload, u16 type, u16 number of files, u64 number, from 1 on without a
// gap, u64 xxh64 of the payload, u64 xxh64 of these 24 bytes) and the payload. So a torn, damaged, lost or repeated frame is
// seen where it is, before its contents are.
//
// Nothing here blocks but wait(): frames are queued in a buffer, flush() sends what the socket takes, fill() reads what is
// there. Thread safety: sending (queue, flush, queued_bytes) by one thread at a time, receiving (fill, next, take_files) by
// one; each may be another's. Errors: kIoError when the other end is gone; kBadInput for what is no frame: the channel is of no
// use from then on.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "kernels/base/descriptor.h"
#include "kernels/base/status.h"
#include "runtime/worker_wire.h"

namespace otr {

class WorkerChannel {
 public:
  struct Frame {
    WireType type;
    uint64_t number;
    WireView payload;  // until the next fill()
  };
  static constexpr size_t kMostPayload = size_t{1} << 28;

  // The socket is made non-blocking.
  explicit WorkerChannel(OwnedFd fd);

  // Queues a frame; the files, which it keeps open until then, go with its first byte. Its number.
  uint64_t queue(WireType type, WireView payload, std::vector<OwnedFd> files = {});
  Status flush();
  size_t queued_bytes() const { return out_.size() - sent_; }

  // Reads what is there. False: the other end has closed, and no more will come.
  Result<bool> fill();
  // The next whole frame; false: there is none yet.
  Result<bool> next(Frame* frame);
  // Whether a part of a frame is there.
  bool is_torn() const { return read_ < in_.size(); }
  // The first `count` files of the last frame that were not taken; -1: the system has refused it to this process, and it is
  // lost. kBadInput: the frame has fewer. They are there until the next next().
  Result<std::vector<OwnedFd>> take_files(size_t count);
  size_t num_files() const { return files_.size(); }  // of it

  int fd() const { return fd_.get(); }
  void shutdown();  // both ends see that it is over

  // For proofs: its socket takes no more at a time, or as little as the system lets; the next frame has a wrong bit; half of
  // one is all that is queued.
  void shrink(int32_t bytes);
  void corrupt_next() { corrupts_ = true; }
  void queue_half(WireType type, WireView payload);

 private:
  static constexpr size_t kHeaderBytes = 32;

  OwnedFd fd_;
  std::vector<std::byte> out_, in_;
  size_t sent_ = 0, read_ = 0;  // of out_ and in_
  uint64_t num_sent_ = 0, num_received_ = 0;
  struct Parcel {
    size_t at;  // of out_: the byte that the files go with
    std::vector<OwnedFd> files;
  };
  std::deque<Parcel> files_to_send_;
  std::deque<std::vector<OwnedFd>> arrived_;  // of each frame that has files, in their order; what was refused is missing
  std::vector<OwnedFd> files_;                // of the last frame
  bool corrupts_ = false;
};

// Waits until the socket can be read (or, if `to_write`, written), `wake` can be read, or the time is up. `wake` may be -1:
// none.
void wait_for_channel(const WorkerChannel& channel, bool to_write, int wake, int64_t timeout_ms);
int64_t ms_until(std::chrono::steady_clock::time_point limit);  // at least 1 before it

}  // namespace otr
