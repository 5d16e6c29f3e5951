// Speculator: a worker's drafters, and what they propose and learn in a tick.
//
// A tick: begin_tick(); offer() each sequence that may draft; choose(); plan() those of depth() > 0 that have pages; draft();
// observe() each sequence that got tokens; end_tick().
//
// Thread safety: used by the worker's thread. Errors: create() as ModelDrafter and costs_of; kInvalidArgument for unknown
// drafters.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/cost_calibration.h"
#include "runtime/device.h"
#include "runtime/profile_file.h"
#include "runtime/remote_drafter.h"
#include "runtime/request.h"
#include "runtime/speculator_options.h"
#include "spec/chooser.h"
#include "spec/counts.h"
#include "spec/make_chooser.h"

namespace otr {

class Speculator {
 public:
  // `live`: the worker's sequences by slot. It and `device` outlive the speculator.
  static Result<std::unique_ptr<Speculator>> create(const SpeculatorOptions& options, Device& device,
                                                    const std::vector<std::unique_ptr<Sequence>>& live);

  void set_decoupled(bool decoupled);  // whether other workers draft; set while there are no sequences
  void exchange();                     // this and the next two: see RemoteDrafter
  bool waits(int32_t slot) const { return remote_ != nullptr && remote_->waits(slot); }
  bool owes() const { return remote_ != nullptr && remote_->owes(); }
  const RemoteDrafter* remote() const { return remote_; }  // null: there is none
  size_t number_of(const std::string& drafter) const;      // that of none: as many as there are
  // A drafter's model; null if it has none of its own here.
  const ModelRunner* model_of(const std::string& drafter) const;

  bool on() const { return options_.policy.kind != PolicyKind::kOff; }
  const Policy& policy() const { return options_.policy; }
  const std::vector<CostModel>& costs() const { return costs_; }            // by drafter; empty where the policy needs none
  std::span<ModelRunner* const> own_models() const { return own_models_; }  // drafters that are models of their own
  // The models that are drafters here, for other processes. REQUIRES: the target's weights are in shared memory.
  std::vector<DrafterModel> shared_models() const;
  int64_t drafter_weight_bytes() const { return drafter_weight_bytes_; }
  int64_t drafter_activation_bytes() const { return drafter_activation_bytes_; }  // of drafters with models of their own
  const SpecCounts& counts() const { return counts_; }
  double decide_seconds() const { return decide_seconds_; }      // inside the policy
  const TickPlan& chosen() const { return plan_; }               // of the tick
  std::span<const TickRow> offered() const { return offered_; }  // in this tick
  // {"decode_steps":…,"drafters":{"ngram":{…}}}
  std::string counts_json(const SpecCounts& counts) const;

  void join(const Sequence& s);
  void leave(const Sequence& s);

  // Begins a tick of `num_runs` runs.
  void begin_tick(size_t num_runs);
  // Run `run` of the tick may draft up to `max_depth` tokens. In the order of the runs.
  void offer(size_t run, const Sequence& s, int32_t max_depth);
  // Asks the policy. `num_rows`: of the target's pass without a draft; `silent_rows` of them want no logits.
  void choose(int32_t num_rows, int32_t silent_rows);
  // How deep run `run` is to draft.
  int32_t depth(size_t run) const { return depths_[run]; }
  // Run `run` drafts, up to `depth` tokens.
  void plan(size_t run, const Sequence& s, int32_t depth);
  // Fills the forests of the planned runs with at most `max_nodes` nodes in all, ordered by path.
  void draft(int32_t max_nodes);
  // The forests are being verified, on a device: what drafters look up on the host for the next tick.
  void look_ahead();
  // Forgets what draft() has proposed: it ran out of memory on the way.
  void drop_drafts();
  const Forest& forest(size_t run) const { return forests_[run]; }
  Forest* mutable_forest(size_t run) { return &forests_[run]; }  // to cut it where there is no room

  // Sequence `s` has `num_new` more tokens; `forest` was verified and these nodes of it were kept; `ended`: no more will come.
  void observe(Sequence* s, const Forest& forest, std::span<const int32_t> accepted, int32_t num_new, bool ended);
  // Sequence `s` has `num_new` tokens more that another worker has found.
  void adopt(const Sequence& s, int32_t num_new);
  // The tick is over. `outcome`: its times and the rows of its passes; the rest is known here.
  void end_tick(TickOutcome outcome);
  void end_step();  // nothing is left to run

 private:
  Speculator(const SpeculatorOptions& options) : options_(options) {}
  Result<std::vector<CostModel>> find_costs(Device& device) const;
  Result<std::vector<CostModel>> paced_costs() const;
  Result<std::unique_ptr<Drafter>> make_drafter(const std::string& name, Device& device,
                                                const std::vector<std::unique_ptr<Sequence>>& live);
  const std::vector<DraftRow>& rows_for_models();
  void share_out(int32_t max_nodes);
  bool is_model(const std::string& name) const;
  bool is_remote(const std::string& name) const { return options_.link != nullptr && name == options_.decoupled; }
  DraftSequence view(const Sequence& s) const;
  void find_behind(const Sequence& s, TickRow* row);
  void note_outcome(const Sequence& s, const Forest& forest, std::span<const int32_t> accepted, int32_t num_new, bool ended);

  const SpeculatorOptions options_;
  std::vector<std::unique_ptr<Drafter>> drafters_;  // in the policy's order: index = bit in the forests
  int64_t drafter_weight_bytes_ = 0, drafter_activation_bytes_ = 0;
  std::vector<DrafterTraits> traits_;                  // likewise
  std::vector<std::optional<TimedProgram>> programs_;  // likewise; none of a drafter without a model
  std::vector<ModelRunner*> own_models_;
  RemoteDrafter* remote_ = nullptr;  // of drafters_
  bool decoupled_ = false;
  int32_t vocab_size_ = 0;            // of the target
  std::vector<CostModel> costs_;      // by drafter; empty where the policy needs none
  std::unique_ptr<Chooser> chooser_;  // null: policy off
  std::vector<Forest> forests_;       // by run of the tick
  std::vector<int32_t> depths_;       // by run: what the plan says
  std::vector<DraftRow> rows_, model_rows_;
  struct Ask {  // of a drafter, in this tick
    Drafter* drafter;
    const std::vector<DraftRow>* rows;
    DraftLimits limits;
    bool begun = false;  // a device works at it
  };
  std::vector<Ask> asked_;
  // The tick as the chooser sees it.
  TickView view_;
  TickPlan plan_;
  std::vector<TickRow> offered_;
  std::vector<size_t> run_of_;                         // by row of offered_
  std::array<uint64_t, kMaxDrafters> prompt_of_ = {};  // by drafter: the group whose prompt it would run in this tick
  std::vector<Forest*> forest_of_;                     // likewise
  std::vector<const Forest*> verified_;                // likewise
  std::vector<RowOutcome> outcomes_;
  std::vector<int32_t> kept_;  // nodes, of all outcomes
  DraftWork work_;
  double decide_seconds_ = 0;
  SpecCounts counts_;
};

}  // namespace otr
