#include "runtime/suspects.h"

#include <algorithm>
#include <cstddef>
#include <utility>

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
  return s != nullptr && s->worker == worker;
}

void Suspects::tries(int32_t worker, const SampleName& name, const Ledger& ledger) {
  if (!is_on_trial_at(worker, ledger)) return;
  const bool is_it = trial_->name == Name(name.group, name.sample);
  const bool was_trying = std::exchange(trial_->has_begun, is_it);
  if (was_trying && !is_it && came_further(ledger)) end_trial();
}

bool Suspects::came_further(const Ledger& ledger) const {
  return unfinished(trial_->name, ledger)->num_accepted() != trial_->accepted;
}

// Whoever was there beside one on trial ran nothing. A worker has its oldest samples in its batch, but for those that came
// later than younger ones: twice as many as it runs are looked at.
void Suspects::broke(int32_t worker, int32_t most_running, const Ledger& ledger) {
  if (has_begun_at(worker, ledger)) return convict(worker, ledger);
  struct There {
    uint64_t age;
    Name name;
    int32_t accepted;
  };
  std::vector<There> there;
  for (const auto& [id, group] : ledger.groups()) {
    for (const LedgerSample& s : group.samples) {
      if (is_at_alone(s, worker)) there.push_back({s.age, {id, s.sample}, s.num_accepted()});
    }
  }
  const size_t most = std::min(there.size(), 2 * static_cast<size_t>(most_running));
  std::nth_element(there.begin(), there.begin() + static_cast<std::ptrdiff_t>(most), there.end(),
                   [](const There& a, const There& b) { return a.age < b.age; });
  there.resize(most);
  std::map<Name, Record> now;
  for (const There& t : there) {
    const auto before = records_.find(t.name);
    now[t.name] = {.losses = 1, .accepted = t.accepted};
    if (before == records_.end() || t.accepted >= before->second.accepted + kFurther) continue;
    now[t.name] = {.losses = 1 + before->second.losses, .accepted = before->second.accepted};
  }
  std::erase_if(records_, [&](const auto& r) { return now.contains(r.first) || unfinished(r.first, ledger) == nullptr; });
  records_.merge(now);
}

void Suspects::convict(int32_t worker, const Ledger& ledger) {
  const bool of_prompt = unfinished(trial_->name, ledger)->num_accepted() == 0;
  const auto convicts = [&](const Name& name) {
    if (name == trial_->name) return true;
    const LedgerSample* s = name.first == trial_->name.first ? unfinished(name, ledger) : nullptr;
    return of_prompt && s != nullptr && s->num_accepted() == 0 && (s->worker == worker || s->worker == kNobody);
  };
  for (auto& [name, record] : records_) record.is_guilty |= convicts(name);
}

// Samples that wait for one another's prompt wait here together.
void Suspects::hold(int32_t worker, Ledger* ledger) {
  const auto is_here = [&](const Name& name) {
    const LedgerSample* s = unfinished(name, *ledger);
    return s != nullptr && is_at_alone(*s, worker) ? s : nullptr;
  };
  std::vector<Name> held;
  std::map<Name, Record> siblings;
  for (const auto& [name, record] : records_) {
    const LedgerSample* s = is_here(name);
    if (s == nullptr || (!record.is_guilty && (record.losses < kSuspicious || s->num_accepted() >= record.accepted + kFurther)))
      continue;
    held.push_back(name);
    if (s->num_accepted() > 0) continue;
    for (const LedgerSample& other : ledger->find(name.first)->samples) {
      const Name sibling(name.first, other.sample);
      if (is_here(sibling) != nullptr && other.num_accepted() == 0) siblings[sibling] = {.losses = kSuspicious, .accepted = 0};
    }
  }
  for (const auto& [name, record] : siblings) held.push_back(name);
  std::sort(held.begin(), held.end());
  held.erase(std::unique(held.begin(), held.end()), held.end());
  waiting_.reserve(waiting_.size() + held.size());
  records_.merge(siblings);
  if (is_on_trial_at(worker, *ledger)) trial_.reset();
  for (const Name& name : held) {
    waiting_.push_back(name);
    ledger->move(name.first, name.second, worker, kNobody);
  }
}

// It has come through, or is over.
void Suspects::end_trial() {
  records_.erase(trial_->name);
  trial_.reset();
}

std::optional<Suspects::Next> Suspects::next(const Ledger& ledger) {
  if (trial_ && unfinished(trial_->name, ledger) == nullptr) end_trial();
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

void Suspects::left(const Next& next, const Ledger& ledger) {
  const Name name(next.name.group, next.name.sample);
  std::erase(waiting_, name);
  const LedgerSample* s = unfinished(name, ledger);
  if (next.verdict != Verdict::kTrial || s == nullptr) records_.erase(name);
  else trial_ = {.name = name, .accepted = s->num_accepted()};
}

}  // namespace otr
