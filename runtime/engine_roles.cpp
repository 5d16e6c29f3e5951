// Which workers draft for others: the links between them, and the plan that is made while nothing runs (algorithm 1).
#include <algorithm>

#include "runtime/draft_roles.h"
#include "runtime/engine.h"
#include "sched/plan.h"

namespace otr {
namespace {

constexpr double kFirstKeepRate = 0.8;  // before anything was drafted
constexpr double kFirstContext = 512;   // before anything was decoded

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
double keep_rate(const DrafterCounts& c) {
  int64_t tried = c.drafted_at[0], kept = c.accepted_at[0];
  for (size_t d = 1; d < c.drafted_at.size(); ++d) {
    tried += std::min(c.drafted_at[d], c.accepted_at[d - 1]);
    kept += c.accepted_at[d];
  }
  return tried == 0 ? kFirstKeepRate : static_cast<double>(kept) / static_cast<double>(tried);
}

}  // namespace

// Checks what was asked for, and says who drafts on other workers under which name.
Status Engine::name_decoupled(std::span<const DrafterModel> models, Policy* policy, WorkerOptions* w) {
  const int32_t drafting = options_.num_draft_workers;
  if (drafting < 0 || 2 * drafting > options_.num_workers)
    return invalid_argument("num_draft_workers must be between 0 and half of num_workers");
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
  const size_t capacity = link_capacity(options_.max_batch);
  for (int32_t i = 0; options_.num_draft_workers > 0 && i < here; ++i) {
    const uint32_t seed = options_.proofs.delay_seed;
    const size_t forced = static_cast<size_t>(options_.proofs.link_capacity);
    links_.push_back(std::make_unique<DraftLink>(forced > 0 ? forced : capacity, seed == 0 ? 0 : seed + 3 * static_cast<uint32_t>(i)));
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
    q.context = samples > 0 ? (static_cast<double>(seen.prefill_tokens) + static_cast<double>(seen.generated_tokens) / 2) / samples
                            : kFirstContext;
    q.most = kWidestWindow;
    q.form = plan_form(policy);
    q.may_be_plain = policy.kind == PolicyKind::kAuto && !options_.always_decouples;
    q.may_couple = !options_.always_decouples;
    std::vector<Plan> considered;
    const Plan plan = make_plan(q, &considered);
    roles.decoupled = plan.drafter >= 0 && plan.setting.mode == DraftMode::kDecoupled;
    for (const Plan& other : considered) {
      if (other.setting.mode == DraftMode::kDecoupled && other.drafter >= 0) roles.setting.window = std::max(1, other.setting.window);
    }
    plan_text_ = explain(q, plan, considered);
  }
  if (options_.proofs.alternate_roles) roles.decoupled = !roles_.decoupled;
  roles_ = roles;
  assign_roles();
}

// Whoever drafts for others has no samples of its own, as long as somebody is there to verify; whose drafter is lost for ever drafts
// itself.
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

// A worker that has nothing to run gets replicas of the busiest one's samples, with the drafter of the ladder's next rung.
void Engine::start_races() {
  constexpr int32_t kMostReplicas = 16;  // of a worker, b_max
  // Who drafts for others is never free.
  for (int32_t to = roles_.decoupled ? options_.num_draft_workers : 0; to < options_.num_workers; ++to) {
    Lending& lending = lending_[static_cast<size_t>(to)];
    if (!placement_.is_idle(to) || lending.rest-- > 0) continue;
    const int32_t from = placement_.busiest();
    if (from < 0 || lending.asked || std::any_of(lending_.begin(), lending_.end(), [](const Lending& l) { return l.asked; })) continue;
    lending = {.asked = true, .from = from, .rest = 0, .rung = 1};
    for (int32_t w = 0; w < options_.num_workers; ++w) {
      if (w != to && placement_.is_there(w) && !placement_.is_idle(w)) lending.rung = std::max(lending.rung, lending_[static_cast<size_t>(w)].rung + 1);
    }
    port(from).lend({.to = to, .rung = lending.rung, .most = kMostReplicas, .leaps = race_ == RaceMode::kLeapfrog});
  }
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
