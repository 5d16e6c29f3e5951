// Samples that begin again from their tokens: those of a worker process that is lost, and all that are unfinished when the
// weights change under them, or their pages are given away.
#include <algorithm>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/engine.h"
#include "runtime/race.h"

namespace otr {

// ---- A worker's ----------------------------------------------------------------------------------------------------------

void Worker::withdraw(SequenceQueue* to) {
  for (const auto& live : live_) {
    if (live == nullptr) continue;
    rebuild_.drop(live.get());
    to->push(detach(live.get()));
    report_.pages_returned = true;  // so that the host hears of it, also from a worker that gets nothing back
  }
  num_blocked_ = 0;
  SequenceQueue arrived;
  arrived.append(&orders_.arrived);
  mailbox_.take_arrived(&arrived);
  arrived.for_each([this](Sequence& s) {
    num_arrived_ += 1 + static_cast<int64_t>(s.group->blocked.size());
    rebuild_.drop(&s);  // what came with it
  });
  to->append(&arrived);
  to->for_each([](Sequence& s) { s.rewind(); });
  rebuild_.reclaim();
  stats_.kv_pages_in_use = target().page_pool().num_in_use();
}

void Worker::count_lost(const Sequence& replica) {
  ++stats_.lost_replicas;
  stats_.lost_tokens += replica.raced_tokens;
}

// ---- A lost process' -----------------------------------------------------------------------------------------------------

// All unfinished samples that the ledger has at the worker. A group goes together if all of it is there, and its prompt was not
// run; else each sample by itself, and whoever else holds the group sees nothing.
void Engine::restore_all(int32_t worker, SequenceQueue* to) const {
  for (const auto& [id, group] : ledger_.groups()) {
    const bool together =
        !group.group->is_score && std::all_of(group.samples.begin(), group.samples.end(), [worker](const LedgerSample& s) {
          return s.is_over() || (s.worker == worker && s.num_accepted() == 0);
        });
    Sequence* waits = nullptr;
    for (const LedgerSample& sample : group.samples) {
      if (sample.is_over() || sample.worker != worker) continue;
      std::unique_ptr<Sequence> s = restore(group, sample);
      if (waits != nullptr) {
        group.group->blocked.push_back(std::move(s));
        continue;
      }
      if (together) {
        waits = s.get();
        group.group->disband();  // those that never left are made again
      }
      to->push(std::move(s));
    }
  }
}

void Engine::queue_again(int32_t worker) {
  suspects_.hold(worker, &ledger_);
  SequenceQueue queue;
  restore_all(worker, &queue);
  while (std::unique_ptr<Sequence> s = queue.pop()) {
    const int32_t count = 1 + s->num_waiting();
    if (const auto end = s->end()) conclude(worker, std::move(s), *end);
    else send(std::move(s));
    requeued_samples_ += count;
  }
  send_suspects();
}

// Of those that wait, whoever may go. One is on trial at a time; if no worker is left, none goes anywhere.
void Engine::send_suspects() {
  while (const auto next = suspects_.next(ledger_)) {
    const LedgerGroup& group = *ledger_.find(next->name.group);
    std::unique_ptr<Sequence> s = restore(group, *group.find(next->name.sample));
    if (s->num_waiting() > 0) s->group->disband();  // those that never left: they are suspects too
    if (s->group->cancelled) {
      conclude(0, std::move(s), OTR_FINISH_ABORT);
    } else if (next->is_guilty) {
      conclude(0, std::move(s), OTR_FINISH_ERROR, kBreaksProcesses);
    } else {
      s->is_on_trial = true;
      send(std::move(s));
      ++requeued_samples_;
    }
    suspects_.left(next->name, ledger_);
  }
}

// Out of memory, when something comes, rests or gives a sign again.
void Engine::try_suspects() try { send_suspects(); } catch (const std::bad_alloc&) {
}

// It has all its tokens: its worker was lost before it said so. Or nobody has it any more, and nobody gets it again.
void Engine::conclude(int32_t worker, std::unique_ptr<Sequence> s, otr_finish_reason reason, const char* error) {
  s->finish_reason = reason;
  s->error = error;
  if (reason == OTR_FINISH_ERROR && s->group->is_score) s->raw_logprobs.clear();
  const LedgerSample& sample = *ledger_.find(s->group->id)->find(s->sample);
  (void)ledger_.finish(sample.worker, s->group->id, s->sample, reason, s->error);
  for (WorkerStats* stats : {&stats_[static_cast<size_t>(worker)], &counted_before_[static_cast<size_t>(worker)]})
    ++stats->finished_samples;
  note_end(worker, s.get());
  publish(std::move(s));
  result_arrived_.notify_all();
}

// For trace and clock.
void Engine::note_end(int32_t worker, Sequence* s) {
  if (pace_clock_ != nullptr) s->finished_ms = pace_clock_->now_ms();
  if (s->group->is_score || trace_ == nullptr) return;
  trace_->sample({.worker = worker,
                  .group = s->group->id,
                  .sample = s->sample,
                  .tokens = s->num_tokens() - s->num_prompt(),
                  .finish_reason = otr_finish_reason_text(s->finish_reason)});
}

// To whoever has the least to do.
void Engine::send(std::unique_ptr<Sequence> s) {
  const uint64_t id = s->group->id;
  const int32_t to = placement_.place(1 + s->num_waiting());
  if (to == Placement::kNobody) return fail(std::move(s), "every worker process is lost; the last one: " + last_loss_);
  const int32_t from = ledger_.find(id)->find(s->sample)->worker;
  if (s->num_waiting() > 0) {
    for (const auto& b : s->group->blocked) ledger_.move(id, b->sample, from, to);
  }
  ledger_.move(id, s->sample, from, to);
  port(to).start(std::move(s));
}

// What the caller gets is no end of the sample, which a checkpoint has as it was, until the caller has taken it. Those that its
// group has blocked fail with it.
void Engine::fail(std::unique_ptr<Sequence> s, const std::string& why) {
  const uint64_t id = s->group->id;
  std::vector<std::unique_ptr<Sequence>> all;
  if (s->num_waiting() > 0) all.swap(s->group->blocked);
  all.push_back(std::move(s));
  for (auto& failed : all) {
    if (failed->group->is_score) failed->raw_logprobs.clear();
    failed->finish_reason = OTR_FINISH_ERROR;
    failed->error = why;
    failed->engine_failed = true;
    const LedgerGroup* group = ledger_.find(id);
    const LedgerSample* sample = group != nullptr ? group->find(failed->sample) : nullptr;
    if (sample != nullptr) (void)ledger_.fail(sample->worker, id, failed->sample);  // once, should memory end at the next one
    publish(std::move(failed));
  }
}

// ---- All that are unfinished ---------------------------------------------------------------------------------------------

// They stay at their workers, and of replicas the one that is furthest stays; those of a sample that is over, which workers may
// have while nothing is unfinished, go. Out of memory, all is as it was. REQUIRES: mutex_ is held, and the workers are at rest.
void Engine::requeue_unfinished() {
  ledger_.reserve_spans();
  if (options_.worker_processes) requeue_at_processes();
  else requeue_at_threads();
}

void Engine::requeue_at_threads() {
  struct Taken {
    std::unique_ptr<Sequence> s;
    int32_t worker;
    auto rank() const { return std::tuple(s->group->id, s->sample, -s->num_tokens(), worker); }
  };
  size_t most = 0;
  for (const auto& worker : workers_) {
    worker->for_each_sequence([&most](Sequence& s) {
      reserve_span(&s.weight_spans);
      ++most;
    });
  }
  std::vector<Taken> all;
  all.reserve(most);
  // From here on nothing throws.
  ledger_.rewind();
  for (int32_t i = 0; i < options_.num_workers; ++i) {
    SequenceQueue taken;
    worker(i).withdraw(&taken);
    placement_.report(i, worker(i).load());
    while (std::unique_ptr<Sequence> s = taken.pop()) all.push_back({std::move(s), i});
  }
  std::sort(all.begin(), all.end(), [](const Taken& a, const Taken& b) { return a.rank() < b.rank(); });
  std::pair<uint64_t, uint32_t> before(0, 0);  // no group's id is 0
  for (auto& [s, at] : all) {
    const std::pair name(s->group->id, s->sample);
    if (std::exchange(before, name) == name || is_decided(*s)) {
      worker(at).count_lost(*s);
      continue;
    }
    if (const LedgerGroup* group = ledger_.find(name.first); s->race != nullptr && group != nullptr) {
      if (const LedgerSample* sample = group->find(name.second); sample != nullptr)
        ledger_.move(name.first, name.second, sample->worker, at);
    }
    s->race = nullptr;
    s->rung = 0;
    s->raced_tokens = 0;
    placement_.sent(at, 1 + s->num_waiting());
    port(at).start(std::move(s));
  }
}

// The ledger has all that they have said.
void Engine::requeue_at_processes() {
  std::vector<SequenceQueue> queues(processes_.size());
  for (size_t w = 0; w < queues.size(); ++w) {
    if (losing_[w]) continue;  // they are about to be queued elsewhere
    restore_all(static_cast<int32_t>(w), &queues[w]);
    queues[w].for_each([](Sequence& s) { s.rewind(); });
  }
  const auto count_lost = [this](int32_t worker, int64_t replicas) {  // who never comes to count them itself
    counted_before_[static_cast<size_t>(worker)].lost_replicas += replicas;
    stats_[static_cast<size_t>(worker)].lost_replicas += replicas;
  };
  for (int32_t w = 0; w < options_.num_workers; ++w) count_lost(w, ledger_.lose_stragglers(w));
  for (const auto& [id, group] : ledger_.groups()) {
    for (const LedgerSample& sample : group.samples) {
      if (sample.is_over()) continue;
      for (const int32_t replica : sample.replicas) count_lost(replica, 1);
    }
  }
  ledger_.rewind();
  suspects_.drop_trial();
  for (size_t w = 0; w < queues.size(); ++w) {
    const int32_t worker = static_cast<int32_t>(w);
    if (placement_.is_gone(worker)) continue;
    processes_[w]->withdraw();
    placement_.emptied(worker);
    while (std::unique_ptr<Sequence> s = queues[w].pop()) {
      placement_.sent(worker, 1 + s->num_waiting());
      processes_[w]->start(std::move(s));
    }
  }
}

}  // namespace otr
