#include "sched/plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>

#include "kernels/base/append_format.h"

namespace otr {

std::string plan_name(std::span<const DrafterChoice> drafters, const Plan& plan) {
  std::string text;
  if (plan.drafter < 0) {
    append_format(&text, "plain decoding on %d", plan.verify_gpus);
    return text;
  }
  const char* const name = drafters[static_cast<size_t>(plan.drafter)].name.c_str();
  if (plan.setting.mode == DraftMode::kCoupled) {
    append_format(&text, "coupled '%s' on %d, windows of %d", name, plan.verify_gpus, plan.setting.window);
  } else {
    append_format(&text, "decoupled '%s' on %d + %d, windows of %d", name, plan.verify_gpus, plan.draft_gpus,
                  plan.setting.window);
  }
  return text;
}

WindowCosts window_costs(const PlanQuestion& q, size_t verifier, int32_t drafter, int32_t draft_gpus) {
  const DrafterChoice* const d = drafter < 0 ? nullptr : &q.drafters[static_cast<size_t>(drafter)];
  return {.verify = &q.verifiers[verifier].cost,
          .draft = d != nullptr && d->has_model ? &d->cost : nullptr,
          .drafters = static_cast<double>(std::max(1, draft_gpus)),
          .context = q.context};
}

Plan make_plan(const PlanQuestion& q, std::vector<Plan>* considered) {
  Plan best;
  const auto consider = [&](Plan plan) {
    plan.verify_gpus = q.verifiers[plan.verifier].gpus;
    if (plan.gpus() > q.gpus) return;
    plan.batch = std::ceil(plan.gpus() * q.batch / q.gpus);
    if (plan.drafter < 0) {
      plan.speed = 1 / q.verifiers[plan.verifier].cost.target_ms(plan.batch, q.context);
    } else {
      const bool coupled = plan.setting.mode == DraftMode::kCoupled;
      // A group of its own for verifying and drafting in turns drafts on each of its GPUs.
      const WindowCosts costs = window_costs(q, plan.verifier, plan.drafter, coupled ? plan.verify_gpus : plan.draft_gpus);
      const WindowChoice window =
          best_window(coupled ? WindowForm::kCoupled : q.form, q.drafters[static_cast<size_t>(plan.drafter)].p, costs,
                      plan.batch, plan.batch, q.most);
      plan.setting.window = window.window;
      plan.speed = window.speed;
    }
    if (considered != nullptr) considered->push_back(plan);
    if (plan.speed > best.speed) best = plan;
  };
  for (size_t v = 0; v < q.verifiers.size(); ++v) {
    if (q.may_be_plain) consider({.verifier = v});
    for (int32_t d = 0; d < static_cast<int32_t>(q.drafters.size()); ++d) {
      if (q.may_couple) consider({.drafter = d, .verifier = v, .setting = {.mode = DraftMode::kCoupled}});
      for (int32_t gpus = 1; q.may_decouple && gpus <= q.verifiers[v].gpus; ++gpus) {
        if (q.draft_gpus != 0 && gpus != q.draft_gpus) continue;
        consider({.drafter = d, .verifier = v, .draft_gpus = gpus, .setting = {.mode = DraftMode::kDecoupled}});
      }
    }
  }
  return best;
}

std::string explain(const PlanQuestion& q, const Plan& plan, std::span<const Plan> considered) {
  std::string text;
  append_format(&text, "%g requests on %d %s, %g tokens of context. ", q.batch, q.gpus, q.unit, q.context);
  if (plan.speed <= 0) return text + "No verifier fits.\n";
  text += "Chosen: " + plan_name(q.drafters, plan);
  append_format(&text, ": %.1f tokens/s a request, %d groups of %g requests.\n", 1e3 * plan.speed, q.gpus / plan.gpus(),
                plan.batch);
  for (const Plan& other : considered) {
    text += "  " + plan_name(q.drafters, other);
    append_format(&text, ": batch %g", other.batch);
    if (other.drafter >= 0) {
      const bool coupled = other.setting.mode == DraftMode::kCoupled;
      const WindowForm form = coupled ? WindowForm::kCoupled : q.form;
      const WindowTimes times = window_costs(q, other.verifier, other.drafter, coupled ? other.verify_gpus : other.draft_gpus)
                                    .times(form, other.setting.window, other.batch);
      append_format(&text, ", p %.2f, draft %.2f ms, verify %.2f ms", q.drafters[static_cast<size_t>(other.drafter)].p,
                    other.setting.window * times.draft_ms, times.verify_ms);
    }
    append_format(&text, ": %.1f tokens/s (%+.1f %%)\n", 1e3 * other.speed, 100 * (other.speed / plan.speed - 1));
  }
  return text;
}

int32_t reconfigure(const ReconfigureRule& rule, WindowForm form, const WindowCosts& costs, int32_t most,
                    std::span<RequestWindow> requests) {
  double sum = 0;
  for (const RequestWindow& r : requests) sum += r.p;
  const double mean = sum / static_cast<double>(requests.size());
  int32_t looked_at = 0;
  for (RequestWindow& r : requests) {
    if (!rule.everyone && r.p >= mean) continue;
    const WindowChoice coupled = best_window(WindowForm::kCoupled, r.p, costs, rule.batch, rule.line, most);
    WindowChoice decoupled;
    if (rule.may_decouple) decoupled = best_window(form, r.p, costs, rule.batch, rule.line, most);
    const bool better = decoupled.speed > coupled.speed;
    r.setting = {.window = (better ? decoupled : coupled).window, .mode = better ? DraftMode::kDecoupled : DraftMode::kCoupled};
    ++looked_at;
  }
  return looked_at;
}

std::vector<int32_t> ladder_order(const PlanQuestion& q, size_t verifier, double batch) {
  std::vector<double> speed;
  for (int32_t d = 0; d < static_cast<int32_t>(q.drafters.size()); ++d) {
    const WindowCosts costs = window_costs(q, verifier, d, q.verifiers[verifier].gpus);
    speed.push_back(best_window(WindowForm::kCoupled, q.drafters[static_cast<size_t>(d)].p, costs, batch, batch, q.most).speed);
  }
  std::vector<int32_t> order(speed.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return speed[static_cast<size_t>(a)] > speed[static_cast<size_t>(b)]; });
  return order;
}

std::vector<Racer> assign_racers(std::span<const RaceRequest> requests, std::span<const int32_t> ladder,
                                 std::span<RaceWorker> workers, int32_t max_batch) {
  const auto place = [&](int32_t drafter) {  // on the ladder
    return static_cast<size_t>(std::find(ladder.begin(), ladder.end(), drafter) - ladder.begin());
  };
  std::vector<int32_t> num_workers(ladder.size() + 1);  // the last one: drafters that are not on it
  for (const RaceWorker& w : workers) {
    if (w.drafter >= 0) ++num_workers[place(w.drafter)];
  }
  for (RaceWorker& w : workers) {
    if (w.drafter >= 0 || ladder.empty()) continue;
    const auto fewest = std::min_element(num_workers.begin(), num_workers.end() - 1);
    w.drafter = ladder[static_cast<size_t>(fewest - num_workers.begin())];
    ++*fewest;
  }
  // By drafter the workers with room, the least loaded on top; of equals the first.
  using Entry = std::pair<int32_t, size_t>;
  std::vector<std::priority_queue<Entry, std::vector<Entry>, std::greater<>>> free(ladder.size() + 1);
  for (size_t w = 0; w < workers.size(); ++w) {
    if (workers[w].drafter >= 0 && workers[w].load < max_batch) free[place(workers[w].drafter)].emplace(workers[w].load, w);
  }
  std::vector<const RaceRequest*> order;
  for (const RaceRequest& r : requests) order.push_back(&r);
  std::stable_sort(order.begin(), order.end(), [](const RaceRequest* a, const RaceRequest* b) { return a->p < b->p; });
  std::vector<Racer> racers;
  for (const RaceRequest* r : order) {
    for (size_t i = 0; i < ladder.size(); ++i) {
      if (free[i].empty() || (r->drafters >> ladder[i] & 1) != 0) continue;
      const size_t w = free[i].top().second;
      free[i].pop();
      racers.push_back({.request = r->request, .drafter = ladder[i], .worker = workers[w].id});
      if (++workers[w].load < max_batch) free[i].emplace(workers[w].load, w);
    }
  }
  return racers;
}

}  // namespace otr
