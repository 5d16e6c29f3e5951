#include "runtime/speculator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <new>

#include "kernels/base/clock.h"
#include "runtime/model_drafter.h"
#include "runtime/self_drafter.h"
#include "spec/make_chooser.h"
#include "spec/ngram_drafter.h"

namespace otr {
namespace {

// Where nothing can be measured: that rows cost a tenth of a pass, and drafts half of the target's. Ticks correct it.
CostModel nominal_costs() {
  RoleCost target;
  target.weights_ms = 1;
  target.row_ms = 0.1;
  RoleCost draft;
  draft.weights_ms = 0.5;
  draft.row_ms = 0.05;
  return CostModel{{target, draft, target}, 0};
}

// ,"name":[a,b,…] up to the last count that is not 0.
template <typename Counts>
std::string array_json(const char* name, const Counts& counts) {
  size_t size = counts.size();
  while (size > 0 && counts[size - 1] == 0) --size;
  std::string text = std::string(",\"") + name + "\":[";
  for (size_t i = 0; i < size; ++i) text += (i == 0 ? "" : ",") + std::to_string(counts[i]);
  return text + "]";
}

std::string drafter_json(const DrafterCounts& d) {
  std::array<int64_t, DrafterCounts::kTenths> expected;  // kept nodes if pi were right, to whole ones
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = std::llround(d.sum_of_pi[i]);
  return "{\"drafts\":" + std::to_string(d.drafts) + ",\"drafted\":" + std::to_string(d.drafted) +
         ",\"accepted\":" + std::to_string(d.accepted) + array_json("drafted_at_depth", d.drafted_at) +
         array_json("accepted_at_depth", d.accepted_at) + array_json("drafted_at_rank", d.drafted_rank) +
         array_json("accepted_at_rank", d.accepted_rank) + array_json("judged_at_pi", d.judged_at_pi) +
         array_json("kept_at_pi", d.kept_at_pi) + array_json("expected_at_pi", expected) + "}";
}

}  // namespace

Result<std::unique_ptr<Speculator>> Speculator::create(const SpeculatorOptions& options, Device& device,
                                                       const std::vector<std::unique_ptr<Sequence>>& live) {
  std::unique_ptr<Speculator> s(new Speculator(options));
  s->vocab_size_ = device.target().config().vocab_size;
  for (const std::string& name : options.policy.drafters) {
    OTR_ASSIGN_OR_RETURN(std::unique_ptr<Drafter> drafter, s->make_drafter(name, device, live));
    s->drafters_.push_back(std::move(drafter));
    s->programs_.resize(s->drafters_.size());  // one that looks up has added none
    const bool remote = s->is_remote(name), model = s->is_model(name) && !remote;
    DrafterTraits traits{.name = name, .has_model = name == "self" || model, .needs_prefill = model, .decoupled = remote};
    if (const auto& program = s->programs_.back(); program) {
      traits.max_context = static_cast<int32_t>(std::min<int64_t>(context_limit(program->model->config()), traits.max_context));
    }
    s->traits_.push_back(std::move(traits));
  }
  s->forests_.resize(static_cast<size_t>(options.max_batch));
  if (s->on()) {
    // A few rows of a large batch may be all that is left, with all that their drafters propose: 14 KB a forest.
    const int32_t most = options.policy.kind == PolicyKind::kAuto ? kMaxDraftNodes : options.policy.verify_tokens;
    for (Forest& forest : s->forests_) forest.reserve(most);
  }
  const size_t batch = static_cast<size_t>(options.max_batch);
  s->rows_.reserve(batch);
  s->model_rows_.reserve(batch);
  s->asked_.reserve(s->drafters_.size());
  s->depths_.reserve(batch);
  s->offered_.reserve(batch);
  s->run_of_.reserve(batch);
  s->forest_of_.reserve(batch);
  s->verified_.reserve(batch);
  s->outcomes_.reserve(batch);
  s->kept_.reserve(batch * static_cast<size_t>(kMaxDraftDepth));  // spans of it are kept
  s->plan_.row_depth.reserve(batch);
  s->plan_.model_depth.reserve(batch);
  OTR_ASSIGN_OR_RETURN(s->costs_, s->find_costs(device));
  s->chooser_ =
      make_chooser({.policy = options.policy, .drafters = s->traits_, .costs = s->costs_, .max_batch = options.max_batch});
  return s;
}

Result<std::unique_ptr<Drafter>> Speculator::make_drafter(const std::string& name, Device& device,
                                                          const std::vector<std::unique_ptr<Sequence>>& live) {
  const Policy& policy = options_.policy;
  const TreeDrafterOptions tree{.number = static_cast<int>(drafters_.size()),
                                .top_k = policy.top_k,
                                .max_nodes = policy.verify_tokens,
                                .max_batch = options_.max_batch,
                                .max_draft_rows = options_.max_draft_rows,
                                .chunk = options_.prefill_chunk,
                                .by_q = policy.by_q,
                                .uncoupled = policy.uncoupled,
                                .paced = PacedLevels(options_.pace, options_.pace_options, name)};
  const auto named = [&name](const auto& d) { return d.name == name; };
  if (is_remote(name)) {
    auto remote = std::make_unique<RemoteDrafter>(tree.number, options_.link, live, options_.pace,
                                                  /*gives_up=*/policy.kind == PolicyKind::kAuto);
    remote_ = remote.get();
    return std::unique_ptr<Drafter>(std::move(remote));
  }
  if (name == "ngram") return std::unique_ptr<Drafter>(std::make_unique<NgramDrafter>(tree.number));
  if (name == "history")
    return std::unique_ptr<Drafter>(
        std::make_unique<HistoryDrafter>(tree.number, options_.history, uses_history_logprobs(policy)));
  if (name == "self" && options_.idle)
    return std::unique_ptr<Drafter>(std::make_unique<NgramDrafter>(tree.number));  // it has no model
  if (name == "self") {
    OTR_ASSIGN_OR_RETURN(std::unique_ptr<SelfDrafter> self, SelfDrafter::create(tree, device.target(), live));
    drafter_weight_bytes_ += device.target().quantized_bytes();
    programs_.emplace_back(self->timed_program());
    return std::unique_ptr<Drafter>(std::move(self));
  }
  if (const auto c = std::find_if(options_.custom.begin(), options_.custom.end(), named); c != options_.custom.end())
    return c->make(tree.number);
  if (const auto m = std::find_if(options_.models.begin(), options_.models.end(), named); m != options_.models.end()) {
    const ModelRunner* share = options_.share != nullptr ? options_.share->programs_[drafters_.size()]->model : nullptr;
    DrafterModel made = *m;
    made.in_4_bits = m->in_4_bits && !options_.idle;
    OTR_ASSIGN_OR_RETURN(std::unique_ptr<ModelDrafter> model, ModelDrafter::create(tree, made, device, live, share));
    drafter_weight_bytes_ += model->model().weight_bytes() + model->model().quantized_bytes();
    drafter_activation_bytes_ += model->model().activation_bytes();
    programs_.emplace_back(model->timed_program());
    own_models_.push_back(programs_.back()->model);
    return std::unique_ptr<Drafter>(std::move(model));
  }
  return invalid_argument("the policy names drafter '" + name + "', which is not defined");
}

// By drafter, if the policy needs them: of the profile, or else measured.
Result<std::vector<CostModel>> Speculator::find_costs(Device& device) const {
  if (options_.costs_of != nullptr) return options_.costs_of->costs_;
  if (!options_.costs.empty()) return options_.costs;
  if (options_.pace_options != nullptr) return paced_costs();
  const std::vector<CostModel> nominal(std::max<size_t>(1, drafters_.size()), nominal_costs());
  if (options_.idle) return needs_costs(options_.policy) ? nominal : std::vector<CostModel>();
  if (options_.profile.empty()) {
    if (!needs_costs(options_.policy)) return std::vector<CostModel>();
    PassTimer timer;
    Result<std::vector<CostModel>> measured =
        calibrate_costs({&device.target(), &device.target().program()}, programs_, {.max_batch = options_.max_batch}, &timer);
    if (measured.ok() || measured.status().code() != StatusCode::kNeverFits) return measured;
    return nominal;  // a pool of a page or two
  }
  OTR_ASSIGN_OR_RETURN(const Profile profile, load_profile(options_.profile));
  ProfileSubject subject = subject_of(device);
  for (size_t d = 0; d < drafters_.size(); ++d) {
    subject.drafters.push_back({traits_[d].name, programs_[d] ? drafter_shape(*programs_[d], device.target()) : ""});
  }
  return costs_of(profile, options_.profile, subject);
}

// As costs_of() of a profile.
Result<std::vector<CostModel>> Speculator::paced_costs() const {
  std::vector<CostModel> costs;
  for (size_t d = 0; d < drafters_.size(); ++d) {
    const PacedDrafter* const named = options_.pace_options->drafter(traits_[d].name);
    if (programs_[d] && named == nullptr)
      return invalid_argument("drafter '" + traits_[d].name + "' is not in the profile, and runs a model");
    costs.push_back(programs_[d] ? named->cost : options_.pace_options->target);
    if (!programs_[d]) costs.back().roles[static_cast<size_t>(CostRole::kDraft)] = {};
  }
  return costs;
}

std::vector<DrafterModel> Speculator::shared_models() const {
  std::vector<DrafterModel> models;
  for (const DrafterModel& m : options_.models) {
    for (size_t d = 0; d < drafters_.size(); ++d) {
      if (traits_[d].name == m.name && programs_[d])
        models.push_back({.name = m.name, .path = m.path, .in_4_bits = m.in_4_bits, .shared = programs_[d]->model->share()});
    }
  }
  return models;
}

const ModelRunner* Speculator::model_of(const std::string& drafter) const {
  const size_t number = number_of(drafter);
  return number < traits_.size() && traits_[number].needs_prefill ? programs_[number]->model : nullptr;
}

size_t Speculator::number_of(const std::string& drafter) const {
  const auto at =
      std::find_if(traits_.begin(), traits_.end(), [&drafter](const DrafterTraits& t) { return t.name == drafter; });
  return static_cast<size_t>(at - traits_.begin());
}

bool Speculator::is_model(const std::string& name) const {
  return std::any_of(options_.models.begin(), options_.models.end(), [&name](const DrafterModel& m) { return m.name == name; });
}

DraftSequence Speculator::view(const Sequence& s) const {
  return {.slot = s.slot,
          .group = s.group->id,
          .tokens = s.tokens,
          .num_prompt = s.num_prompt(),
          .noise = s.noise,
          .temperature = s.group->sampling.temperature};
}

void Speculator::set_decoupled(bool decoupled) {
  decoupled_ = decoupled;
  if (remote_ != nullptr) remote_->set_open(decoupled);
}

void Speculator::exchange() {
  if (remote_ != nullptr) remote_->exchange();
}

void Speculator::end_step() {
  if (chooser_ != nullptr) chooser_->end_step();
}

void Speculator::join(const Sequence& s) {
  for (const auto& drafter : drafters_) drafter->join(view(s));
}

void Speculator::leave(const Sequence& s) {
  for (const auto& drafter : drafters_) drafter->leave(s.slot);
}

void Speculator::begin_tick(size_t num_runs) {
  for (size_t i = 0; i < num_runs; ++i) forests_[i].clear();
  depths_.assign(num_runs, 0);
  prompt_of_.fill(~uint64_t{0});
  rows_.clear();
  offered_.clear();
  run_of_.clear();
  outcomes_.clear();
  kept_.clear();
  work_ = {};
  asked_.clear();
}

void Speculator::offer(size_t run, const Sequence& s, int32_t max_depth) {
  offered_.push_back({.sequence = s.age,
                      .slot = s.slot,
                      .context = s.num_tokens(),
                      .generated = s.num_tokens() - s.num_prompt(),
                      .max_depth = max_depth,
                      .most_left = s.max_tokens - s.num_tokens(),
                      .rung = s.rung});
  if (policy().kind == PolicyKind::kAuto) find_behind(s, &offered_.back());
  run_of_.push_back(run);
}

// The first sample of a group runs the prompt's full pages for the others.
void Speculator::find_behind(const Sequence& s, TickRow* row) {
  const int32_t shared = (s.num_prompt() - 1) / kPageTokens * kPageTokens, own = s.num_tokens() - 1 - shared;
  for (size_t d = 0; d < drafters_.size(); ++d) {
    if (!traits_[d].needs_prefill) continue;
    row->behind[d] = drafters_[d]->behind(view(s));
    if (row->behind[d] <= own) continue;
    if (prompt_of_[d] == s.group->id) row->behind[d] = own;
    prompt_of_[d] = s.group->id;
  }
}

void Speculator::choose(int32_t num_rows, int32_t silent_rows) {
  plan_.clear();
  double context = 0;
  for (const TickRow& row : offered_) context += row.context;
  const int32_t rows = static_cast<int32_t>(offered_.size());
  view_ = {.rows = offered_,
           .batch = static_cast<int32_t>(depths_.size()),
           .other_rows = num_rows - rows,
           .silent_rows = silent_rows,
           .context = rows == 0 ? 0 : context / rows,
           .decoupled = decoupled_};
  if (rows == 0) return;
  const Stopwatch deciding;
  try {
    chooser_->choose(view_, &plan_);
  } catch (const std::bad_alloc&) {  // what fails here costs speed, and nobody's sample
    plan_.clear();
  }
  decide_seconds_ += deciding.seconds();
  if (plan_.drafters == 0) return;
  for (size_t i = 0; i < offered_.size(); ++i) {
    depths_[run_of_[i]] = std::min(offered_[i].max_depth, plan_.row_depth.empty() ? plan_.depth : plan_.row_depth[i]);
  }
}

void Speculator::plan(size_t run, const Sequence& s, int32_t depth) {
  rows_.push_back({.sequence = view(s), .max_depth = depth, .forest = &forests_[run]});
}

// Whom to ask for how many nodes. Equal shares: no row's draft depends on its place in the batch.
void Speculator::share_out(int32_t max_nodes) {
  const int32_t room = max_nodes / std::max(1, static_cast<int32_t>(rows_.size())),
                num_drafters = std::popcount(plan_.drafters);
  const int32_t nodes = std::min(plan_.verify_tokens, room);
  const std::vector<DraftRow>& model_rows = plan_.model_depth.empty() ? rows_ : rows_for_models();
  int32_t asked = 0;
  for (size_t d = 0; d < drafters_.size(); ++d) {
    if (rows_.empty() || (plan_.drafters >> d & 1) == 0) continue;
    const int32_t share = plan_.drafter_nodes > 0 ? std::min(plan_.drafter_nodes, traits_[d].has_model ? room : kMaxDraftNodes)
                                                  : nodes / num_drafters + (asked < nodes % num_drafters ? 1 : 0);
    ++asked;
    const std::vector<DraftRow>& rows = traits_[d].has_model ? model_rows : rows_;
    if (share == 0 || rows.empty()) continue;
    asked_.push_back({drafters_[d].get(), &rows, {.top_k = plan_.top_k, .max_nodes = share, .gate = chooser_->gate()}});
  }
}

// What runs on a device is asked for first and waited for last: drafters that look up do so on the host meanwhile.
void Speculator::draft(int32_t max_nodes) {
  if (offered_.empty()) return;
  share_out(max_nodes);
  for (Ask& ask : asked_) ask.begun = ask.drafter->begin(*ask.rows, ask.limits);
  for (const bool begun : {false, true}) {
    for (const Ask& ask : asked_) {
      if (ask.begun != begun) continue;
      const DraftWork work = ask.drafter->propose(*ask.rows, ask.limits);
      work_.passes += work.passes;
      work_.rows += work.rows;
      work_.silent += work.silent;
    }
  }
  for (const DraftRow& row : rows_) {
    const DraftSequence& s = row.sequence;
    options_.dial.spoil(s.noise, static_cast<int32_t>(s.tokens.size()), vocab_size_, row.forest);
  }
  forest_of_.clear();
  for (const size_t run : run_of_) forest_of_.push_back(&forests_[run]);
  const Stopwatch deciding;
  chooser_->select(view_, &plan_, forest_of_, work_, max_nodes);
  decide_seconds_ += deciding.seconds();
  for (const DraftRow& row : rows_) row.forest->order_by_path();
}

// The rows that drafters with a model may draft for.
const std::vector<DraftRow>& Speculator::rows_for_models() {
  model_rows_.clear();
  for (size_t i = 0, row = 0; i < rows_.size(); ++i, ++row) {
    while (offered_[row].slot != rows_[i].sequence.slot) ++row;  // offered, and found no pages
    if (plan_.model_depth[row] <= 0) continue;
    model_rows_.push_back(rows_[i]);
    model_rows_.back().max_depth = std::min(rows_[i].max_depth, plan_.model_depth[row]);
  }
  return model_rows_;
}

void Speculator::look_ahead() {
  for (const Ask& ask : asked_) ask.drafter->look_ahead(*ask.rows);
}

void Speculator::drop_drafts() {
  for (const DraftRow& row : rows_) row.forest->clear();
}

void Speculator::observe(Sequence* s, const Forest& forest, std::span<const int32_t> accepted, int32_t num_new, bool ended) {
  if (num_new == 0) return;
  // The first token comes of the prompt, not of a decode step, unless the prompt's last row had a draft behind it.
  if (s->num_tokens() - num_new > s->num_prompt() || !forest.empty()) {
    const int32_t judged = ended ? num_new : kMaxDraftDepth;
    const int64_t drafted = counts_.draft_tokens;
    counts_.add(forest, accepted, num_new, judged);
    s->spec.draft_tokens += counts_.draft_tokens - drafted;
    s->spec.accepted_tokens += static_cast<int64_t>(accepted.size());
    s->spec.verify_steps += !forest.empty();
    s->spec.judged_tokens += std::min({forest.max_depth(), static_cast<int32_t>(accepted.size()) + 1, judged});
  }
  note_outcome(*s, forest, accepted, num_new, ended);
  const DraftVerdict verdict{.sequence = view(*s), .num_new = num_new, .forest = &forest, .accepted = accepted};
  for (const auto& drafter : drafters_) drafter->observe(verdict);
}

void Speculator::adopt(const Sequence& s, int32_t num_new) {
  const Forest none;
  for (const auto& drafter : drafters_)
    drafter->observe({.sequence = view(s), .num_new = num_new, .forest = &none, .accepted = {}});
}

// Rows are observed in the order they were offered in; samples that begin in this tick were not.
void Speculator::note_outcome(const Sequence& s, const Forest& forest, std::span<const int32_t> accepted, int32_t num_new,
                              bool ended) {
  const size_t first = outcomes_.empty() ? 0 : static_cast<size_t>(outcomes_.back().row) + 1;
  const auto at = std::find_if(offered_.begin() + static_cast<std::ptrdiff_t>(first), offered_.end(),
                               [&s](const TickRow& row) { return row.sequence == s.age; });
  if (at == offered_.end()) return;
  const size_t first_kept = kept_.size();
  kept_.insert(kept_.end(), accepted.begin(), accepted.end());
  outcomes_.push_back({.row = static_cast<int32_t>(at - offered_.begin()),
                       .drafted = forest.size(),
                       .accepted = static_cast<int32_t>(accepted.size()),
                       .num_new = num_new,
                       .ended = ended,
                       .kept = std::span<const int32_t>(kept_).subspan(first_kept)});
}

void Speculator::end_tick(TickOutcome outcome) {
  if (remote_ != nullptr) remote_->ring();
  if (chooser_ == nullptr || offered_.empty()) return;
  verified_.clear();
  for (const size_t run : run_of_) verified_.push_back(&forests_[run]);
  outcome.rows = outcomes_;
  outcome.forests = verified_;
  outcome.work = work_;
  const Stopwatch deciding;
  try {
    chooser_->observe(view_, plan_, outcome);
  } catch (const std::bad_alloc&) {  // it has learnt nothing
  }
  decide_seconds_ += deciding.seconds();
}

std::string Speculator::counts_json(const SpecCounts& c) const {
  std::string text =
      "{\"decode_steps\":" + std::to_string(c.decode_steps) + ",\"decode_tokens\":" + std::to_string(c.decode_tokens) +
      ",\"verify_steps\":" + std::to_string(c.verify_steps) + ",\"draft_tokens\":" + std::to_string(c.draft_tokens) +
      ",\"accepted_tokens\":" + std::to_string(c.accepted_tokens) + ",\"drafters\":{";
  for (size_t d = 0; d < options_.policy.drafters.size(); ++d) {
    text += (d == 0 ? "\"" : ",\"") + options_.policy.drafters[d] + "\":" + drafter_json(c.drafters[d]);
  }
  return text + "}}";
}

}  // namespace otr
