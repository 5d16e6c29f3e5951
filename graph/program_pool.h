// ProgramPool: a device's captured programs, by role and bucket of rows.
//
// A program is a launch list over buffers and descriptors of fixed address; which rows there are is data (device_rows.h). So
// each is captured once a bucket and serves every strategy, batch and mix of depths that fits it, and new weights as well,
// which lie where the old ones did. Programs are captured one by one as they are made, the largest bucket first, before
// anything ticks; all run over the buffers that their owners gave them, of the largest bucket's size, so a capture costs its
// launches' arguments alone.
//
// release() gives the device what captures cost; capture() makes them again. Single-threaded. Entries go before their pool.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/base/accelerator.h"

namespace otr {

enum class ProgramRole { kTarget, kDraft };

class ProgramPool {
 public:
  // Launches a program for `bucket` rows.
  using Launches = std::function<void(int32_t bucket)>;

  // A program's place in the pool.
  class Entry {
   public:
    Entry() = default;
    Entry(Entry&& other) noexcept { *this = std::move(other); }
    Entry& operator=(Entry&& other) noexcept;
    ~Entry();
    // The smallest bucket that has room. REQUIRES: rows is at most the program's max_rows.
    int32_t bucket_of(int32_t rows) const;
    void launch(int32_t bucket) const;

   private:
    friend class ProgramPool;
    ProgramPool* pool_ = nullptr;
    int32_t number_ = 0;
  };

  // `accelerator` outlives the pool.
  explicit ProgramPool(Accelerator* accelerator) : accelerator_(accelerator) {}
  ~ProgramPool() { release(); }
  ProgramPool(const ProgramPool&) = delete;
  ProgramPool& operator=(const ProgramPool&) = delete;

  // Captures a program in every bucket up to max_rows. Errors: as Accelerator::capture; nothing of it remains then.
  Result<Entry> add(ProgramRole role, int32_t max_rows, Launches launches);

  // Nothing can be launched between release() and a capture() that succeeds. After an error of capture() nothing is captured.
  void release();
  Status capture();

  int32_t num_captures() const;
  int64_t bytes(ProgramRole role) const;
  double capture_seconds() const { return capture_seconds_; }  // of all captures so far

  // 1, 2, 4 … 256, then every 256 rows more; the last one is max_rows itself. A bucket is as wide as a tile of linear from 8
  // rows on, so what pads it costs no further pass over the weights.
  static std::vector<int32_t> buckets(int32_t max_rows);

 private:
  struct Program {
    ProgramRole role = ProgramRole::kTarget;
    Launches launches;              // null: removed
    std::vector<int32_t> buckets;   // ascending
    std::vector<Capture> captures;  // by bucket; empty while nothing is captured
  };
  Status capture(Program* program);
  void release(Program* program);

  Accelerator* const accelerator_;
  std::vector<Program> programs_;  // by number
  double capture_seconds_ = 0;
};

}  // namespace otr
