#include "runtime/suspects.h"

#include <algorithm>

#include "sched/placement.h"

namespace otr {
namespace {

constexpr int32_t kNobody = Placement::kNobody;

bool is_at_alone(const LedgerSample& s, int32_t worker) { return !s.is_over() && s.worker == worker && s.replicas.empty(); }

}  // namespace

const LedgerSample* Suspects::unfinished(const Name& name, const Ledger& ledger) const {
  const LedgerGroup* group = ledger.find(name.first);
  const LedgerSample* sample = group != nullptr ? group->find(name.second) : nullptr;
  return sample == nullptr || sample->is_over() ? nullptr : sample;
}

bool Suspects::is_on_trial_at(int32_t worker, const Ledger& ledger) const {
  const LedgerSample* s = trial_ ? unfinished(trial_->name, ledger) : nullptr;
  return s != nullptr && s->worker == worker && s->num_accepted() == trial_->accepted;
}

void Suspects::begun(int32_t worker, const SampleName& name, const Ledger& ledger) {
  if (is_on_trial_at(worker, ledger) && trial_->name == Name(name.group, name.sample)) trial_->has_begun = true;
}

// Whoever was there beside one on trial ran nothing.
void Suspects::broke(int32_t worker, const Ledger& ledger) {
  if (has_begun_at(worker, ledger)) return convict(worker, ledger);
  std::map<Name, Record> now;
  for (const auto& [id, group] : ledger.groups()) {
    for (const LedgerSample& s : group.samples) {
      if (!is_at_alone(s, worker)) continue;
      const auto before = records_.find({id, s.sample});
      const bool came_further = before == records_.end() || before->second.accepted != s.num_accepted();
      now[{id, s.sample}] = {.losses = came_further ? 1 : before->second.losses + 1, .accepted = s.num_accepted()};
    }
  }
  std::erase_if(records_, [&](const auto& r) { return now.contains(r.first) || unfinished(r.first, ledger) == nullptr; });
  records_.merge(now);
}

void Suspects::convict(int32_t worker, const Ledger& ledger) {
  const auto convicts = [&](const Name& name, const Record& record) {
    if (name == trial_->name) return true;
    if (name.first != trial_->name.first || trial_->accepted > 0 || record.accepted > 0) return false;
    const LedgerSample* s = unfinished(name, ledger);
    return s != nullptr && s->num_accepted() == 0 && (s->worker == worker || s->worker == kNobody);
  };
  for (auto& [name, record] : records_) record.is_guilty |= convicts(name, record);
}

void Suspects::hold(int32_t worker, Ledger* ledger) {
  waiting_.reserve(waiting_.size() + records_.size());
  if (is_on_trial_at(worker, *ledger)) trial_.reset();
  for (const auto& [name, record] : records_) {
    if (record.losses < kSuspicious) continue;
    const LedgerSample* s = unfinished(name, *ledger);
    if (s == nullptr || !is_at_alone(*s, worker) || s->num_accepted() != record.accepted) continue;
    waiting_.push_back(name);
    ledger->move(name.first, name.second, worker, kNobody);
  }
}

// It has come through, or is over. Where a prompt's first token has come, no other of its samples is suspected for the prompt.
void Suspects::end_trial(const Ledger& ledger) {
  const Trial trial = *trial_;
  trial_.reset();
  records_.erase(trial.name);
  if (trial.accepted > 0 || unfinished(trial.name, ledger) == nullptr) return;
  std::erase_if(records_, [&trial](const auto& r) { return r.first.first == trial.name.first && r.second.accepted == 0; });
}

std::optional<Suspects::Next> Suspects::next(const Ledger& ledger) {
  if (trial_) {
    const LedgerSample* s = unfinished(trial_->name, ledger);
    if (s == nullptr || s->num_accepted() != trial_->accepted) end_trial(ledger);
  }
  std::erase_if(waiting_, [&](const Name& name) { return unfinished(name, ledger) == nullptr; });
  const auto verdict = [&](const Name& name) {
    const auto record = records_.find(name);
    if (record == records_.end() || ledger.find(name.first)->group->cancelled) return Verdict::kFree;
    return record->second.is_guilty ? Verdict::kGuilty : Verdict::kTrial;
  };
  for (const Name& name : waiting_) {
    if (const Verdict v = verdict(name); v != Verdict::kTrial) return Next{{name.first, name.second}, v};
  }
  if (waiting_.empty() || trial_) return {};
  return Next{{waiting_.front().first, waiting_.front().second}, Verdict::kTrial};
}

void Suspects::leaves(const Next& next) {
  const Name name(next.name.group, next.name.sample);
  std::erase(waiting_, name);
  if (next.verdict == Verdict::kTrial) trial_ = {.name = name, .accepted = records_.at(name).accepted};
  else records_.erase(name);
}

}  // namespace otr
