// Which workers draft for others: the links between them, and the plan that is made while nothing runs (algorithm 1).
#include <algorithm>
#include <array>
#include <limits>

#include "runtime/draft_roles.h"
#include "runtime/engine.h"
#include "sched/plan.h"

namespace otr {
namespace {

constexpr double kFirstKeepRate = 0.8;    // before anything was drafted
constexpr double kFirstLookupRate = 0.3;  // likewise, of a drafter that looks up
constexpr int32_t kMostReplicas = 16;     // of a worker, b_max
constexpr int32_t kMostRungs = 32, kTried = std::numeric_limits<int32_t>::max();
constexpr double kFirstContext = 512;  // before anything was decoded

// Workers that divide a batch: each runs its share, at the same time.
CostModel shared_by(CostModel cost, int32_t num_workers) {
  for (RoleCost& role : cost.roles) {
    role.kv_ms /= num_workers;
    role.row_ms /= num_workers;
    role.attention_ms /= num_workers;
    role.sample_ms /= num_workers;
  }
  return cost;
}

// Of the chains that were judged, the share of tokens that was kept.
double keep_rate(const DrafterCounts& c, double first = kFirstKeepRate) {
  int64_t tried = c.drafted_at[0], kept = c.accepted_at[0];
  for (size_t d = 1; d < c.drafted_at.size(); ++d) {
    tried += std::min(c.drafted_at[d], c.accepted_at[d - 1]);
    kept += c.accepted_at[d];
  }
  return tried == 0 ? first : static_cast<double>(kept) / static_cast<double>(tried);
}

}  // namespace

// Checks what was asked for, and says who drafts on other workers under which name.
Status Engine::name_decoupled(std::span<const DrafterModel> models, Policy* policy, WorkerOptions* w) {
  const int32_t drafting = options_.num_draft_workers;
  if (drafting < 0 || drafting > options_.num_workers / 2)
    return invalid_argument("num_draft_workers must be between 0 and half of num_workers");
  // What drafters on other workers know of their drafts would be wrong.
  if (drafting > 0 && options_.dial.on()) return unsupported("an acceptance dial where workers draft for others");
  if (drafting == 0) {
    if (!policy->decoupled) return {};
    return invalid_argument("policy '" + options_.policy + "' needs num_draft_workers: workers that draft for others");
  }
  const bool fixed = policy->kind == PolicyKind::kFixed && policy->decoupled;
  if (!fixed && policy->kind != PolicyKind::kSpecactor && policy->kind != PolicyKind::kAuto)
    return invalid_argument("policy '" + options_.policy + "' lets no worker draft for others: num_draft_workers must be 0");
  const auto is_named = [policy](const DrafterModel& m) {
    return std::find(policy->drafters.begin(), policy->drafters.end(), m.name) != policy->drafters.end();
  };
  const auto model = std::find_if(models.begin(), models.end(), is_named);
  if (model == models.end())
    return invalid_argument("num_draft_workers needs a drafter with a model of its own ('self' shares the target's pages)");
  if (fixed && std::count_if(models.begin(), models.end(), is_named) > 1)
    return invalid_argument("policy '" + options_.policy + "': one drafter with a model of its own drafts on other workers");
  w->server.model = *model;
  draft_model_ = model->name;
  w->speculation.decoupled = fixed ? model->name : model->name + ".decoupled";
  if (fixed) return {};
  policy->drafters.push_back(w->speculation.decoupled);
  if (policy->drafters.size() <= static_cast<size_t>(kMaxDrafters)) return {};
  return invalid_argument("the policy has more than " + std::to_string(kMaxDrafters) + " drafters");
}

// Between processes the links are theirs (LinkRelay): the engine's own worker has one because it has a drafter for it.
void Engine::add_links() {
  const int32_t here = options_.worker_processes ? 1 : options_.num_workers;
  const size_t capacity = link_capacity(options_.max_batch, options_.proofs);
  for (int32_t i = 0; options_.num_draft_workers > 0 && i < here; ++i) {
    const uint32_t seed = options_.proofs.delay_seed;
    links_.push_back(std::make_unique<DraftLink>(capacity, seed == 0 ? 0 : seed + 3 * static_cast<uint32_t>(i)));
  }
}

int32_t Engine::server_of(int32_t worker) const { return otr::server_of(worker, options_.num_draft_workers); }

void Engine::link_worker(WorkerOptions* w) const {
  if (links_.empty()) return;
  w->speculation.link = links_[static_cast<size_t>(w->index)].get();
  w->serves.clear();
  for (int32_t other = 0; w->index < options_.num_draft_workers && other < static_cast<int32_t>(links_.size()); ++other) {
    if (server_of(other) == w->index) w->serves.push_back(links_[static_cast<size_t>(other)].get());
  }
  w->server = draft_server_options(*w, w->server.model, options_.num_draft_workers);
}

void Engine::connect_links() {
  for (int32_t i = 0; i < static_cast<int32_t>(links_.size()); ++i) {
    links_[static_cast<size_t>(i)]->verifier = &worker(i).mailbox();
    links_[static_cast<size_t>(i)]->server = &worker(server_of(i)).mailbox();
  }
}

// For the step to come, by what was seen so far. REQUIRES: nothing runs; mutex_, or no thread yet.
void Engine::plan_step() {
  plan_roles();
  plan_races();
}

void Engine::plan_roles() {
  if (links_.empty()) return;
  const Speculator& speculator = first_worker().speculator();
  const Policy& policy = speculator.policy();
  const int32_t n = options_.num_workers, drafting = options_.num_draft_workers;
  DraftRoles roles{.decoupled = true, .setting = {.window = policy.depth, .mode = DraftMode::kDecoupled}};
  if (policy.kind != PolicyKind::kFixed) {
    WorkerStats seen;
    for (const WorkerStats& s : stats_) seen.add(s);
    const size_t model = speculator.number_of(draft_model_);
    const CostModel& cost = costs_[model];
    const double samples = static_cast<double>(seen.finished_samples);
    PlanQuestion q;
    q.unit = "workers";
    q.batch = seen.batch_peak > 0 ? seen.batch_peak : options_.max_batch;
    q.gpus = n;
    q.draft_gpus = drafting;
    q.verifiers = {{n, shared_by(cost, n)}, {n - drafting, shared_by(cost, n - drafting)}};
    const double p = seen.drafting.drafted_tokens > 0 ? seen.drafting.keep_rate() : keep_rate(seen.spec.drafters[model]);
    q.drafters = {{.name = draft_model_, .has_model = true, .cost = cost, .p = p}};
    q.context = samples > 0
                    ? (static_cast<double>(seen.prefill_tokens) + static_cast<double>(seen.generated_tokens) / 2) / samples
                    : kFirstContext;
    q.most = kWidestWindow;
    q.form = plan_form(policy);
    q.may_be_plain = policy.kind == PolicyKind::kAuto && !options_.always_decouples;
    q.may_couple = !options_.always_decouples;
    std::vector<Plan> considered;
    const Plan plan = make_plan(q, &considered);
    roles.decoupled = plan.drafter >= 0 && plan.setting.mode == DraftMode::kDecoupled;
    for (const Plan& other : considered) {
      if (other.setting.mode == DraftMode::kDecoupled && other.drafter >= 0)
        roles.setting.window = std::max(1, other.setting.window);
    }
    plan_text_ = explain(q, plan, considered);
  }
  if (options_.proofs.alternate_roles) roles.decoupled = !roles_.decoupled;
  roles_ = roles;
  assign_roles();
}

// Whoever drafts for others has no samples of its own, as long as somebody is there to verify; whose drafter is lost for ever
// drafts itself.
void Engine::assign_roles() {
  const int32_t n = options_.num_workers, drafting = options_.num_draft_workers;
  bool verifies = false;
  for (int32_t i = drafting; i < n; ++i) verifies |= !placement_.is_gone(i);
  placement_.set_first(roles_.decoupled && verifies ? drafting : 0);
  for (int32_t i = 0; i < static_cast<int32_t>(ports_.size()); ++i) {
    DraftRoles own = roles_;
    own.decoupled = own.decoupled && !placement_.is_gone(server_of(i));
    port(i).set_roles(own);
  }
}

// Rungs of the replicas that a sample may have, the best first. Policy specactor: 1 + a drafter (algorithm 3), by the speed
// alone of those that find something. Other policies draft with all they have: their replicas differ in nothing but what they
// have tried.
void Engine::plan_races() {
  rungs_.clear();
  if (race_ == RaceMode::kOff) return;
  const Speculator& speculator = first_worker().speculator();
  const Policy& policy = speculator.policy();
  if (policy.kind != PolicyKind::kSpecactor) {
    for (int32_t rung = 1; rung < std::min(options_.num_workers, kMostRungs); ++rung) rungs_.push_back(rung);
    return;
  }
  WorkerStats seen;
  for (const WorkerStats& s : stats_) seen.add(s);
  PlanQuestion q;
  q.verifiers = {{1, costs_.front()}};
  q.context = kFirstContext;
  q.most = policy.depth;
  std::vector<int32_t> drafters;
  for (int32_t d = 0; d < static_cast<int32_t>(policy.drafters.size()); ++d) {
    const std::string& name = policy.drafters[static_cast<size_t>(d)];
    const CostModel& cost = costs_[static_cast<size_t>(d)];
    const bool has_model = cost.draft_ms(1, 0) > 0,
               finds_nothing = name == "history" && (history_ == nullptr || history_->index() == nullptr);
    if (finds_nothing || (!draft_model_.empty() && name == draft_model_ + ".decoupled")) continue;
    q.drafters.push_back(
        {.name = name,
         .has_model = has_model,
         .cost = cost,
         .p = keep_rate(seen.spec.drafters[static_cast<size_t>(d)], has_model ? kFirstKeepRate : kFirstLookupRate)});
    drafters.push_back(d);
  }
  for (const int32_t at : ladder_order(q, 0, 1)) rungs_.push_back(1 + drafters[static_cast<size_t>(at)]);
}

// A worker that has nothing to run gets replicas of another one's samples: of a rung that they lack, and that the fewest
// workers have. Where nobody is idle, who races gets more of its rung.
void Engine::start_races() {
  const bool each_its_drafter = first_worker().speculator().policy().kind == PolicyKind::kSpecactor;
  const int32_t first = roles_.decoupled ? options_.num_draft_workers : 0;  // who drafts for others is never free
  std::array<int32_t, kMostRungs> have{};                                   // workers, by rung
  int32_t idle = Placement::kNobody;
  for (int32_t w = 0; w < options_.num_workers; ++w) {
    Lending& lending = lending_[static_cast<size_t>(w)];
    if (lending.asked) return;
    if (placement_.num_samples(w) == 0) lending.rung = 0;
    if (idle == Placement::kNobody && w >= first && placement_.is_idle(w)) idle = w;
    have[static_cast<size_t>(lending.rung)] += each_its_drafter ? 1 : 0;  // else a second replica only where all have a first
  }
  for (size_t count = rungs_.size(); idle != Placement::kNobody && count > 0; --count) {
    const auto fewer = [&have](int32_t a, int32_t b) { return have[static_cast<size_t>(a)] < have[static_cast<size_t>(b)]; };
    const auto fewest = std::min_element(rungs_.begin(), rungs_.end(), fewer);
    if (start_race(idle, *fewest)) return;
    have[static_cast<size_t>(*fewest)] = kTried;
  }
  for (int32_t to = first; idle == Placement::kNobody && to < options_.num_workers; ++to) {
    const int32_t rung = lending_[static_cast<size_t>(to)].rung;
    if (rung > 0 && placement_.num_samples(to) < kMostReplicas && start_race(to, rung)) return;
  }
}

bool Engine::start_race(int32_t to, int32_t rung) {
  const auto lends = [this, to, rung](int32_t w) {
    return w != to && (lending_[static_cast<size_t>(w)].lacks >> rung & 1) == 0;
  };
  const int32_t from = placement_.busiest(lends);
  if (from == Placement::kNobody) return false;
  Lending& lending = lending_[static_cast<size_t>(to)];
  lending.asked = true;
  lending.from = from;
  lending.rung = rung;
  const int32_t most = kMostReplicas - static_cast<int32_t>(placement_.num_samples(to));
  port(from).lend({.to = to, .rung = rung, .most = most, .leaps = race_ == RaceMode::kLeapfrog});
  return true;
}

void Engine::note_lent(const Lend& lent) {
  constexpr int32_t kRest = 64;
  Lending& to = lending_[static_cast<size_t>(lent.to)];
  to.asked = false;
  if (lent.most > 0) return;
  if (placement_.num_samples(lent.to) == 0) to.rung = 0;
  lending_[static_cast<size_t>(to.from)].lacks |= 1u << lent.rung;
  lending_[static_cast<size_t>(to.from)].rest = kRest;
}

std::string Engine::plan_text() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return plan_text_;
}

// ,"num_draft_workers":1,"decoupled":true,"plan":"…": nothing where no worker may draft for others.
std::string Engine::plan_json() const {
  if (links_.empty()) return "";
  std::lock_guard<std::mutex> lock(mutex_);
  std::string lines;
  for (const char c : plan_text_) lines += c == '\n' ? std::string("\\n") : std::string(1, c);
  return ",\"num_draft_workers\":" + std::to_string(options_.num_draft_workers) +
         ",\"decoupled\":" + (roles_.decoupled ? "true" : "false") + ",\"plan\":\"" + lines + "\"";
}

}  // namespace otr
