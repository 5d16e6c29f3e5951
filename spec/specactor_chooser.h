// SpecactorChooser: policy specactor on one worker: one drafter for the batch, taken from a ladder, and windows of their own
// for the samples that it suits least.
//
// SpecActor (section 4). The chance p that a drafted token is kept is the same for all tokens of a drafter. Drafts of w tokens
// then give
//   (1 - p^(w+1)) / (1 - p) tokens in w D(b) + V_w(b),   D and V of the cost model: the paper's coupled mode, which it leaves
//   to the reader
// and the ladder says, for each drafter, the speed at its best window. w is tested while w <= bound(w) (algorithm 1):
//   bound(w) = max(ceil(V_w' / D'), ceil(beta_w / alpha)),   D(b) = D' b + alpha and V_w(b) = V_w' b + beta_w through b = 1 and
//   the batch
// When a step begins, the drafter that is highest on the ladder at its measured p is taken for the whole step, and again while
// prompts still join. Every 1,000 iterations each sample with p below the samples' mean gets the window that is best for its
// own p at b = 1 (algorithm 2); the others keep theirs. There is no plain decoding: a window is at least 1.
//
// p is measured on all steps so far. The first step begins with a profile: each drafter in turn, for kProfileTicks ticks or
// kProfileTokens verdicts. A lookup that finds nothing counts as a wrong token.
//
// Thread safety: as Chooser.
#pragma once

#include <vector>

#include "spec/keep_rate.h"
#include "spec/make_chooser.h"

namespace otr {

class SpecactorChooser final : public Chooser {
 public:
  static constexpr int64_t kReconfigure = 1000;  // iterations
  static constexpr int32_t kProfileTicks = 32, kProfileTokens = 256, kProfileWindow = 4;

  explicit SpecactorChooser(const ChooserOptions& options);

  void choose(const TickView& view, TickPlan* plan) override;
  void observe(const TickView& view, const TickPlan& plan, const TickOutcome& outcome) override;
  void end_step() override { planned_batch_ = 0; }

  // Tokens of a sample and verification.
  static double expected_tokens(double p, int32_t window);
  struct Window {
    int32_t tokens = 1;
    double speed = 0;  // of a sample: tokens a millisecond
  };
  // Of this drafter at this p: the fastest, the smaller where two are equal. `line`: the batch that bound() draws its lines to.
  Window best_window(size_t drafter, double p, double batch, double line, double context) const;

 private:
  struct Record {
    KeepRate rate;
    int32_t ticks = 0;
  };
  struct Sample {
    uint64_t sequence = 0;
    bool known = false;
    KeepRate rate;
    int32_t window = 0;  // 0: the plan's
  };
  double draft_ms(size_t drafter, double batch, double context) const;
  double verify_ms(size_t drafter, int32_t window, double batch, double context) const;
  int32_t bound(size_t drafter, int32_t window, double line, double context) const;
  bool profiled(const Record& r) const { return r.ticks >= kProfileTicks || r.rate.tried >= kProfileTokens; }
  void make_plan(const TickView& view);
  void reconfigure(const TickView& view);
  Sample& sample(const TickRow& row);

  const ChooserOptions options_;
  std::vector<Record> records_;  // by drafter
  std::vector<Sample> samples_;  // by slot
  size_t profiling_ = 0;         // the drafter whose turn it is; all: done
  size_t drafter_ = 0;           // the plan
  int32_t window_ = 1;
  int32_t planned_batch_ = 0;  // 0: there is none
  int64_t iterations_ = 0;
};

}  // namespace otr
