// Tuner: what the model gets wrong about whole choices, learnt as they are used.
//
// An arm is a drafter, or none. The model foretells an arm's tokens and time; the tuner keeps what came of them in proportion,
// by arm and by power of two of the rows, with decay: factor = (tokens / foretold tokens) / (ms / foretold ms). It corrects the
// model's values and so tells near ties apart; it never chooses what the corrected model holds for clearly worse, except to
// look again at what it has not seen for long, or at what it is curious about: looks are paid from an account that grows by
// kExploring of the time, up to a few ticks.
//
// Rewards are proportions of what was foretold for this very tick, so a batch that shrinks confounds no arm (TLT's BEG-MAB
// compares tokens a second of different batches within a bucket).
//
// Thread safety: single-threaded. Never allocates.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "spec/forest.h"

namespace otr {

class Tuner {
 public:
  static constexpr int kMaxArms = kMaxDrafters + 1;
  static constexpr double kExploring = 0.005;

  // An arm as the model sees it in this tick.
  struct Arm {
    double value = 0;      // tokens a millisecond; 0: can only be looked at
    double hoped = 0;      // the value if its drafts were as good as drafts get
    double extra_ms = 0;   // what looking at it costs beyond the best arm, if it brings nothing
    bool curious = false;  // to be looked at whatever is hoped of it in this tick, and whenever it was seen last
  };

  // `on`: false: the model's word counts, and nothing is looked at for its own sake.
  explicit Tuner(bool on = true) : on_(on) {}

  // The arm to use; arm 0 can always be. `ms`: the expected time of the tick.
  int choose(double rows, std::span<const Arm> arms, double ms);
  // Whether the last choose() looked at an arm that it does not hold for best.
  bool explored() const { return explored_; }
  // The tick that followed: foretold and measured.
  void observe(double rows, int arm, double expected_tokens, double expected_ms, double tokens, double ms);

  double factor(double rows, int arm) const;

 private:
  struct Record {
    double tokens = 0, ms = 0, weight = 0;  // in proportion to what was foretold, summed over `weight` ticks
  };
  static constexpr int kBuckets = 18;
  static size_t bucket_of(double rows);

  const bool on_;
  std::array<std::array<Record, kMaxArms>, kBuckets> records_;
  std::array<int64_t, kMaxArms> last_used_ = {};
  int64_t ticks_ = 0;
  double account_ms_ = 0;
  bool explored_ = false;
};

}  // namespace otr
