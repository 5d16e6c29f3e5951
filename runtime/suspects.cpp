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

const LedgerSample* Suspects::unfinished(const SampleName& name, const Ledger& ledger) const {
  const LedgerGroup* group = ledger.find(name.group);
  const LedgerSample* sample = group != nullptr ? group->find(name.sample) : nullptr;
  return sample == nullptr || sample->is_over() ? nullptr : sample;
}

bool Suspects::is_on_trial_at(int32_t worker, const Ledger& ledger) const {
  const LedgerSample* s = trial_ ? unfinished(trial_->name, ledger) : nullptr;
  return s != nullptr && s->worker == worker;
}

void Suspects::tries(int32_t worker, const SampleName& name, const Ledger& ledger) {
  if (!is_on_trial_at(worker, ledger)) return;
  const bool is_it = trial_->name == name;
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
    SampleName name;
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
  std::map<SampleName, Record> now;
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
  const auto convicts = [&](const SampleName& name) {
    if (name == trial_->name) return true;
    const LedgerSample* s = name.group == trial_->name.group ? unfinished(name, ledger) : nullptr;
    return of_prompt && s != nullptr && s->num_accepted() == 0 && (s->worker == worker || s->worker == kNobody);
  };
  for (auto& [name, record] : records_) record.is_guilty |= convicts(name);
}

// Samples that wait for one another's prompt wait here together.
void Suspects::hold(int32_t worker, Ledger* ledger) {
  const auto at_worker = [&](const SampleName& name) {
    const LedgerSample* s = unfinished(name, *ledger);
    return s != nullptr && is_at_alone(*s, worker) ? s : nullptr;
  };
  const auto is_held = [&](const SampleName& name, const Record& r) {
    const LedgerSample* s = at_worker(name);
    return s != nullptr && (r.is_guilty || (r.losses >= kSuspicious && s->num_accepted() < r.accepted + kFurther));
  };
  std::vector<SampleName> siblings;
  for (const auto& [name, record] : records_) {
    if (!is_held(name, record) || at_worker(name)->num_accepted() > 0) continue;
    for (const LedgerSample& other : ledger->find(name.group)->samples) {
      const SampleName sibling{.group = name.group, .sample = other.sample};
      if (at_worker(sibling) != nullptr && other.num_accepted() == 0) siblings.push_back(sibling);
    }
  }
  for (const SampleName& name : siblings) records_[name].losses = std::max(records_[name].losses, kSuspicious);
  waiting_.reserve(waiting_.size() + records_.size());
  if (is_on_trial_at(worker, *ledger)) trial_.reset();
  for (const auto& [name, record] : records_) {
    if (!is_held(name, record)) continue;
    waiting_.push_back(name);
    ledger->move(name.group, name.sample, worker, kNobody);
  }
}

// It has come through, or is over.
void Suspects::end_trial() {
  records_.erase(trial_->name);
  trial_.reset();
}

std::optional<Suspects::Next> Suspects::next(const Ledger& ledger) {
  if (trial_ && unfinished(trial_->name, ledger) == nullptr) end_trial();
  std::erase_if(waiting_, [&](const SampleName& name) { return unfinished(name, ledger) == nullptr; });
  for (const SampleName& name : waiting_) {
    const bool is_guilty = records_.at(name).is_guilty;
    if (is_guilty || ledger.find(name.group)->group->cancelled) return Next{name, is_guilty};
  }
  if (waiting_.empty() || trial_) return {};
  return Next{waiting_.front(), false};
}

void Suspects::left(const SampleName& name, const Ledger& ledger) {
  std::erase(waiting_, name);
  const LedgerSample* s = unfinished(name, ledger);
  if (s == nullptr) records_.erase(name);
  else trial_ = {.name = name, .accepted = s->num_accepted()};
}

}  // namespace otr
