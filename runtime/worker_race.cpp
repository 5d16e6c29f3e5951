// Replicas: what a worker lends to others that have nothing to run, and what it takes over from replicas elsewhere.
#include "runtime/race.h"
#include "runtime/worker.h"
#include "sched/plan.h"

namespace otr {
namespace {

double keep_rate(const Sequence& s) {
  return static_cast<double>(s.spec.accepted_tokens + 1) / static_cast<double>(s.spec.judged_tokens + 2);
}

std::unique_ptr<Sequence> copy_for_race(const Sequence& s) {
  auto copy = std::make_unique<Sequence>();
  const size_t most = static_cast<size_t>(s.max_tokens), prompt = static_cast<size_t>(s.num_prompt());
  copy->group = s.group;
  copy->sample = s.sample;
  copy->max_tokens = s.max_tokens;
  copy->noise = s.noise;
  copy->tokens.reserve(most);
  copy->tokens = s.tokens;
  copy->logprobs.reserve(most - prompt);
  copy->logprobs = s.logprobs;
  copy->raw_logprobs.reserve(most - prompt);
  copy->raw_logprobs = s.raw_logprobs;
  copy->weight_spans = s.weight_spans;
  copy->penalties.reserve(s.penalties.capacity());
  copy->penalties = s.penalties;
  copy->pages.reserve((s.max_tokens + kPageTokens - 1) / kPageTokens);
  copy->race = s.race;
  return copy;
}

}  // namespace

// Of those that decode, the ones of the lowest acceptance first.
void Worker::lend(Lend* order) {
  // Of policy specactor a rung is 1 + a drafter: a replica with the one that drafts here would find the same, later.
  const uint32_t own = speculator_->policy().kind == PolicyKind::kSpecactor ? speculator_->chosen().drafters << 1 : 0;
  std::vector<RaceRequest> requests;
  for (int32_t i = 0; i < batcher_.num_running(); ++i) {
    const Sequence& s = live(batcher_.running_slot(i));
    if (s.group->is_score || s.num_tokens() == s.num_prompt() || s.group->cancelled || s.is_on_trial || is_decided(s)) continue;
    requests.push_back({.request = static_cast<uint64_t>(s.slot),
                        .p = keep_rate(s),
                        .drafters = own | (s.race == nullptr ? 1 : s.race->rungs())});
  }
  RaceWorker to{.id = order->to, .drafter = order->rung, .load = 0};
  const std::vector<Racer> racers = assign_racers(requests, {&order->rung, 1}, {&to, 1}, order->most);
  for (const Racer& racer : racers) {
    Sequence& s = live(static_cast<int32_t>(racer.request));
    if (s.race == nullptr) s.race = std::make_shared<Race>(s, order->leaps);
    std::unique_ptr<Sequence> replica = copy_for_race(s);
    replica->rung = order->rung;
    replica->goes_to = order->to;
    s.race->enter(order->rung);
    if (options_.replicas_stay) s.race->leave();  // at once: should this one fail in this very tick, it is the last one here
    report_.given.push(std::move(replica));
    ++stats_.replicas;
  }
  order->most = static_cast<int32_t>(racers.size());
}

// Whether the replica, which has come to its end, is not the sample's: then it is to be dropped.
bool Worker::lose(const Sequence& s, otr_finish_reason reason) {
  if (s.race->finish(reason == OTR_FINISH_ERROR)) return false;
  count_lost(s);
  return true;
}

void Worker::adopt_tokens() {
  for (int32_t i = 0; i < batcher_.num_running(); ++i) {
    Sequence& s = live(batcher_.running_slot(i));
    const int32_t count = s.race == nullptr ? 0 : s.race->adopt(&s);
    if (count == 0) continue;
    stats_.adopted_tokens += count;
    speculator_->adopt(s, count);
  }
}

}  // namespace otr
