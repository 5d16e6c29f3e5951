// AutoChooser: policy auto: every tick the draft that the Optimiser values most, by the costs of the CostModel, the odds of
// Acceptance and the Tuner's experience.
//
//   choose   for each drafter with a model: how deep it should draft for which rows, and what the tick is then worth; the best one drafts,
//            or none; drafters that look up cost nothing and do so too. A drafter that is not known yet, or was not seen for long, is looked at
//            with two rows, alone. Replicas, by rung, get the next best drafters: what they find differs
//   gate     after each level, with its nodes' own probabilities: whether the next is worth its time, and for which of them
//   select   which of all the nodes are worth verifying; siblings of different drafters share what the target can choose
//   observe  times against the model, drafts against the odds, the choice against its forecast
//
// Thread safety: as Chooser.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "spec/acceptance.h"
#include "spec/length_hazard.h"
#include "spec/make_chooser.h"
#include "spec/optimiser.h"
#include "spec/tuner.h"

namespace otr {

class AutoChooser final : public Chooser, private DraftGate {
 public:
  // REQUIRES: a cost model for every drafter.
  explicit AutoChooser(const ChooserOptions& options);

  void choose(const TickView& view, TickPlan* plan) override;
  DraftGate* gate() override { return this; }
  void select(const TickView& view, TickPlan* plan, std::span<Forest* const> forests, const DraftWork& work,
              int32_t max_nodes) override;
  void observe(const TickView& view, const TickPlan& plan, const TickOutcome& outcome) override;
  void end_step() override {
    hazard_.end_step();
    step_ticks_ = 0;
  }

 private:
  static constexpr int kNone = -1;
  // Of late.
  struct Mean {
    double ms = 0, count = 0;
    void add(double value) {
      count = count < 20 ? count + 1 : 20;
      ms += (value - ms) / count;
    }
  };
  // What ticks bring, as a multiple of what plain decoding would in their time: of late, the newest counting most.
  struct Gain {
    double tokens = 0, plain_tokens = 0;
    int32_t ticks = 0;
    void add(double brought, double plain) {
      constexpr double kKeep = 0.95;  // a tick later
      tokens = kKeep * tokens + brought;
      plain_tokens = kKeep * plain_tokens + plain;
      ++ticks;
    }
    // 0: not known yet. At least 1: plain decoding is always there.
    double value() const { return ticks < 3 || plain_tokens <= 0 ? 0 : tokens > plain_tokens ? tokens / plain_tokens : 1; }
  };
  // What a model would draft.
  struct Candidate {
    DraftDepth found;
    std::vector<int32_t> row_depth;
    double once_ms = 0;    // of the rows that would draft: see RowOdds
    bool is_hope = false;  // it goes by more than what was seen
  };
  // A drafter's last draft, and how many ticks without one it then waits.
  struct Turn {
    static constexpr int32_t kFirstWait = 2;  // ticks
    int64_t last = 0;
    int32_t wait = kFirstWait;
  };

  float least_acceptance(int drafter, int32_t level, std::span<const float> acceptance) override;
  static size_t bucket_of(const TickView& view);
  TickTimes times(const TickView& view, int drafter) const;
  double others_ms(const TickView& view, const CostCorrection& correction) const;
  void see_lengths(const TickView& view);
  void weigh_rows();
  double weight(size_t row) const { return weights_.empty() ? 1 : static_cast<double>(weights_[row]); }
  bool like_last(const TickView& view) const;
  bool rests(const TickView& view);
  bool is_unknown(const TickView& view, int drafter) const;
  bool may_look(int drafter, double extra_ms) const;
  bool can_afford(double extra_ms) const;
  bool plain_is_due(const TickView& view, const DraftDepth& plain) const;
  DraftDepth choose_arm(const TickView& view, const DraftDepth& plain);
  void set_depths(const TickView& view, const Candidate& candidate);
  int arm_of_replica(const TickView& view, std::span<const Tuner::Arm> arms) const;
  void plan_drafts(const TickView& view, const DraftDepth& best, TickPlan* plan) const;
  void note_use(const TickView& view, bool used);
  int32_t room(const TickRow& row, int drafter) const;
  double plan_probe(const TickView& view, const TickTimes& times, int drafter);
  Optimiser::Cut cut_of_probe(double spent_ms, int32_t rows, int32_t max_nodes) const;
  double lapse_ms(const TickView& view) const;
  double token_ms(const TickTimes& times, double rows, double tokens) const;
  double drafting_ms(const DraftWork& work) const;
  void fill_odds(const TickView& view, int drafter, float at_least, float hope);
  float hope_of(const TickView& view, int drafter) const;
  void note_turn();
  void weigh(Forest* forest, uint32_t models) const;

  const ChooserOptions options_;
  uint32_t lookups_ = 0;     // bits
  std::vector<int> models_;  // numbers of drafters with a model; arm a > 0 of the tuner is models_[a - 1]
  Acceptance acceptance_;
  Optimiser optimiser_;
  Tuner tuner_;
  LengthHazard hazard_;
  CostCorrection verify_correction_, plain_correction_;
  std::vector<CostCorrection> draft_correction_;  // by drafter
  std::vector<int32_t> looks_;                    // likewise: at it, since it was known
  std::vector<Turn> turns_;                       // likewise
  // By power of two of the rows: what a tick takes beside its passes: one that looks for drafts, and one that does not.
  std::array<Mean, 18> fixed_, plain_fixed_;
  std::array<Gain, 18> gain_;  // likewise
  int64_t ticks_ = 0, step_ticks_ = 0, last_verified_ = 0;
  double all_ms_ = 0, ahead_ms_ = 0;  // of all ticks; what their drafts gained on plain decoding: it may be less than 0
  bool looked_ = false;
  int32_t idle_ = 0, rest_ = 0;              // ticks whose drafts were not worth verifying; ticks to go without looking
  size_t rest_rows_ = 0;                     // what they hold for
  std::array<int64_t, 18> last_plain_ = {};  // by power of two of the rows: the last tick without a draft; 0: none

  // Of the tick.
  std::vector<RowOdds> odds_;
  std::vector<float> weights_;         // by row; empty: all count the same
  std::vector<int32_t> lengths_;       // by row: of the response
  std::vector<Candidate> candidates_;  // by model
  std::vector<int32_t> depth_;         // by row: of the drafter that is chosen
  std::vector<int32_t> probed_;        // rows of a probe
  bool probe_ = false;                 // its draft is there to be seen
  bool plain_ = false;                 // it goes without a draft, to see what that takes
  int arm_ = 0;
  int drafter_ = kNone;
  TickTimes times_;
  double others_ms_ = 0, plain_others_ms_ = 0;  // of its time that no choice changes: if it verifies drafts, and if not
  double value_ = 0;                            // tokens a millisecond that the tick should reach
  double usual_value_ = 0;                      // and that ticks like it do; 0: not known yet
  double plain_value_ = 0;                      // and that it would reach without a draft
  struct {
    double tokens = 0, nodes = 0, spent_ms = 0;
  } draft_;                    // of the levels so far
  std::vector<float> sorted_;  // the worth of all nodes
};

}  // namespace otr
