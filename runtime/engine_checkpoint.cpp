// What an engine owes, to a file and from one. Workers report what their samples accept, after every tick; the ledger has it
// when they do, so that a checkpoint holds up nobody.
#include <new>
#include <utility>

#include "runtime/engine.h"

namespace otr {

// What a worker says, to the ledger. Where that has no memory the ledger is behind, and no checkpoint can be saved any more;
// samples do not suffer. REQUIRES: mutex_ is held.
void Engine::record(int32_t from, const WorkerReport& report) noexcept {
  try {
    note(from, report);
  } catch (const std::bad_alloc&) {
    ledger_status_ = Status(StatusCode::kOutOfMemory, {});  // save_checkpoint() has the text
  }
}

void Engine::note(int32_t from, const WorkerReport& report) {
  if (!ledger_status_.ok()) return;
  ledger_status_ = ledger_.append(from, report.progress, limits_.vocab_size);
  report.given.for_each(
      [&](const Sequence& s) {  // before what is dropped: who has lent a replica may have failed in the same tick
        if (s.is_new_replica()) (void)ledger_.lend(s.group->id, s.sample, s.goes_to, false);  // threads leap by themselves
      });
  report.finished.for_each([&](const Sequence& s) {
    if (!ledger_status_.ok()) return;
    if (s.engine_failed) ledger_status_ = ledger_.fail(from, s.group->id, s.sample).status();
    else ledger_status_ = ledger_.finish(from, s.group->id, s.sample, s.finish_reason, s.error, true).status();  // see Race
  });
  report.dropped.for_each([&](const Sequence& s) {
    if (ledger_status_.ok()) ledger_status_ = ledger_.drop(from, s.group->id, s.sample);
  });
  report.given.for_each([&](const Sequence& s) {
    if (s.is_new_replica()) return;
    ledger_.move(s.group->id, s.sample, from, s.goes_to);
    for (const auto& blocked : s.group->blocked) ledger_.move(s.group->id, blocked->sample, from, s.goes_to);
  });
}

Result<CheckpointIdentity> Engine::checkpoint_identity() {
  if (!options_.keeps_checkpoints) return invalid_argument("the engine keeps no checkpoints: see options.keep_checkpoints");
  OTR_RETURN_IF_ERROR(check_not_updating());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    OTR_RETURN_IF_ERROR(check_awake(OTR_MEMORY_ALL));
  }
  OTR_ASSIGN_OR_RETURN(const uint64_t digest, weights_digest());
  const std::lock_guard<std::mutex> lock(mutex_);
  return CheckpointIdentity{
      .isa = isa(), .library = otr_version(), .weights_digest = digest, .weight_version = weight_version_};
}

Status Engine::save_checkpoint(const std::string& path, std::span<const std::byte> user) {
  const std::lock_guard<std::mutex> weights(weights_mutex_);
  OTR_ASSIGN_OR_RETURN(const CheckpointIdentity identity, checkpoint_identity());
  LedgerCopy copy;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ledger_status_.code() == StatusCode::kOutOfMemory) {
      return Status(StatusCode::kOutOfMemory,
                    "there was no memory for the checkpoint's ledger: this engine saves no more checkpoints");
    }
    OTR_RETURN_IF_ERROR(ledger_status_);
    copy = copy_ledger(ledger_, user);
  }
  return write_checkpoint(path, encode_checkpoint(identity, std::move(copy)));
}

Status Engine::load_checkpoint(const std::string& path) {
  const std::lock_guard<std::mutex> weights(weights_mutex_);
  OTR_ASSIGN_OR_RETURN(const CheckpointIdentity identity, checkpoint_identity());
  OTR_ASSIGN_OR_RETURN(const CheckpointFile file, CheckpointFile::read(path));
  OTR_ASSIGN_OR_RETURN(auto groups, file.restore(identity, limits_));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (outstanding_ > 0)
    return Status(StatusCode::kBusy, std::to_string(outstanding_) + " samples are outstanding: take them or cancel them");
  if (placement_.all_gone()) return Status(StatusCode::kLost, "every worker process is lost");
  std::vector<Restored> restored;
  restored.reserve(groups.size());
  try {
    for (auto& samples : groups) restored.push_back(open_restored(std::move(samples)));
  } catch (const std::bad_alloc&) {  // all or nothing
    for (const Restored& r : restored) close_restored(r);
    throw;
  }
  weight_version_ = file.weight_version();
  for (Restored& r : restored) resubmit(std::move(r));
  return {};
}

// As the first half of enqueue(): whatever needs memory, and nothing that anybody sees. Where there is none, nothing is left of
// it. REQUIRES: mutex_ is held.
Engine::Restored Engine::open_restored(std::vector<CheckpointFile::Sample> samples) {
  const std::shared_ptr<Group> group = samples.front().sequence->group;
  Restored r;
  r.finished.reserve(samples.size());
  r.sequences.reserve(samples.size());
  group->blocked.reserve(samples.size());
  group->id = next_group_;
  int32_t unfinished = 0;
  for (CheckpointFile::Sample& s : samples) {
    s.sequence->age = next_age_++;
    unfinished += !s.is_finished;
    r.finished.push_back(s.is_finished);
    r.sequences.push_back(std::move(s.sequence));
  }
  r.to = placement_.place(unfinished);
  r.placed = unfinished;
  try {
    unfinished_.emplace(group->id, Unfinished{static_cast<int64_t>(r.sequences.size()), group});
    ledger_.open(r.sequences, r.to);
    for (size_t i = 0; i < r.sequences.size(); ++i) {
      const Sequence& s = *r.sequences[i];
      if (!r.finished[i]) continue;
      const Status finished = ledger_.finish(r.to, group->id, s.sample, s.finish_reason, s.error).status();
      if (ledger_status_.ok()) ledger_status_ = finished;
    }
  } catch (...) {
    close_restored(r);
    throw;
  }
  ++next_group_;
  return r;
}

// REQUIRES: mutex_ is held.
void Engine::close_restored(const Restored& r) {
  const uint64_t id = r.sequences.front()->group->id;
  unfinished_.erase(id);
  for (const auto& s : r.sequences) ledger_.close(id, s->sample);
  placement_.sent(r.to, -r.placed);
}

// As the second half of enqueue(), but what is finished goes to whoever waits, and what has tokens begins on its own.
// REQUIRES: mutex_ is held.
void Engine::resubmit(Restored r) {
  const std::shared_ptr<Group> group = r.sequences.front()->group;
  bool has_begun = false;
  for (size_t i = 0; i < r.sequences.size(); ++i) has_begun |= r.finished[i] || r.sequences[i]->num_reported > 0;
  outstanding_ += static_cast<int64_t>(r.sequences.size());
  std::unique_ptr<Sequence> first;
  for (size_t i = 0; i < r.sequences.size(); ++i) {
    std::unique_ptr<Sequence> s = std::move(r.sequences[i]);
    if (r.finished[i]) {
      publish(std::move(s));
      result_arrived_.notify_all();
    } else if (has_begun) {
      port(r.to).start(std::move(s));
    } else if (first == nullptr) {
      first = std::move(s);
    } else {
      group->blocked.push_back(std::move(s));
    }
  }
  at_rest_changed_.notify_all();
  if (first != nullptr) port(r.to).start(std::move(first));
}

}  // namespace otr
