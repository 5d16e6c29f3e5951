// Trace: what every tick decided, foretold and did, as a Chrome trace (JSON) that Perfetto and `outrider report` open.
//
// One event a line: metadata, then of each worker, a thread of the trace, a slice a tick with slices for its draft and its
// verification inside, counters, and an instant for each finished sample. Times are microseconds since the engine was made. The
// array is closed when the engine ends; that of a program that was killed is open, which the format allows, and ends with a
// whole event.
//
// Events go into a buffer made at create, and to the file when that is full, after kFlushSeconds, or at rest: nothing is
// allocated. A write that fails ends the trace, and error() says why.
//
// Thread safety: tick(), sample() and flush() may be called by any worker's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/status.h"
#include "runtime/pace.h"
#include "spec/chooser.h"

namespace otr {

// A tick. Times in seconds; those of the parts from the tick's beginning.
struct TraceTick {
  int32_t worker;  // whose it is: its thread in the trace, from 0
  int64_t number;
  double draft_at = 0, draft = 0, verify_at = 0, verify = 0, tick = 0;
  int32_t batch = 0;                       // sequences
  int32_t rows = 0;                        // of the target's pass
  int32_t offered = 0;                     // sequences that might draft
  int64_t verified = 0;                    // of them, with a draft
  int64_t drafted = 0, accepted = 0;       // nodes, as otr_stats counts them
  int64_t tokens = 0, prefill_tokens = 0;  // generated; run of prompts
  const TickPlan* plan = nullptr;
  double age = 0;  // wall seconds since it ended: of one that another process tells of
};

struct TraceSample {
  int32_t worker;
  uint64_t group;
  uint32_t sample;
  int64_t tokens;  // of the response
  const char* finish_reason;
};

// Whom a worker tells. Thread safety: may be called by any worker's thread.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  // A tick that ends now, or as long ago as its age.
  virtual void tick(const TraceTick& tick) = 0;
  virtual void sample(const TraceSample& sample) = 0;
  virtual void flush() = 0;
  virtual int error() const = 0;  // errno of the write that failed; 0: none
};

class Trace final : public TraceSink {
 public:
  // Makes the file, or opens it and leaves what it has to begin(). kIoError, with the path and the reason; pipes and sockets
  // are refused. `pace`: of paced workers, whose times its events have then; it outlives the trace.
  static Result<std::unique_ptr<Trace>> create(const std::string& path, const PaceClock* pace = nullptr);
  ~Trace() override;
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // Who runs: written at once, in place of what the file had. Before all else. `num_threads` of all workers. `drafters`: names,
  // by bit.
  Status begin(std::string_view isa, int32_t num_workers, int32_t num_threads, int32_t max_batch, std::string_view policy,
               std::vector<std::string> drafters);
  void tick(const TraceTick& tick) override;
  void sample(const TraceSample& sample) override;
  void flush() override;
  int error() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return error_;
  }

 private:
  static constexpr size_t kBufferBytes = 1 << 17, kMostEventsBytes = 1 << 13;  // of one call
  static constexpr double kFlushSeconds = 1;

  Trace(std::string path, int fd, const PaceClock* pace);
  double seconds() const { return pace_ != nullptr ? 1e-3 * pace_->now_ms() : clock_.seconds(); }
  void put(std::string_view text);
  void put(int64_t number);
  void put(double number, int decimals);
  void field(std::string_view name, int64_t number);
  void field(std::string_view name, double number, int decimals);
  void slice(std::string_view name, int32_t worker, double at_us, double seconds);
  void counter(std::string_view name, int32_t worker, double at_us, std::string_view key, double value);
  void plan(const TickPlan& plan);
  void end_events();
  void write_out();

  const std::string path_;
  int fd_;
  bool begun_ = false;
  int32_t num_workers_ = 1;
  const Stopwatch clock_;
  const PaceClock* const pace_;  // whose time events have; null: clock_'s
  std::vector<std::string> drafters_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  int error_ = 0;
  double flushed_ = 0;  // seconds
  const std::unique_ptr<char[]> buffer_;
  size_t size_ = 0;
};

}  // namespace otr
