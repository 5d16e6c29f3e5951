// What an engine owes, to a file and from one. Workers report what their samples accept, after every tick; the ledger has it when they
// do, so that a checkpoint holds up nobody.
#include <algorithm>

#include "runtime/engine.h"

namespace otr {

// REQUIRES: mutex_ is held.
void Engine::record(int32_t from, const WorkerReport& report) {
  if (!ledger_status_.ok()) return;
  ledger_status_ = ledger_.append(from, report.progress, limits_.vocab_size);
  report.finished.for_each([&](const Sequence& s) {
    if (ledger_status_.ok()) ledger_status_ = ledger_.finish(from, s.group->id, s.sample, s.finish_reason, s.error).status();
  });
  report.dropped.for_each([&](const Sequence& s) {
    if (ledger_status_.ok()) ledger_status_ = ledger_.drop(from, s.group->id, s.sample);
  });
  report.given.for_each([&](const Sequence& s) {
    if (s.is_new_replica()) {
      (void)ledger_.lend(s.group->id, s.sample, s.goes_to, false);  // threads leap by themselves
      return;
    }
    ledger_.move(s.group->id, s.sample, from, s.goes_to);
    for (const auto& blocked : s.group->blocked) ledger_.move(s.group->id, blocked->sample, from, s.goes_to);
  });
}

Result<CheckpointIdentity> Engine::checkpoint_identity() {
  if (!options_.keeps_checkpoints) return invalid_argument("the engine keeps no checkpoints: see options.keep_checkpoints");
  OTR_RETURN_IF_ERROR(check_not_updating());
  const uint64_t digest = weights_digest();
  const std::lock_guard<std::mutex> lock(mutex_);
  return CheckpointIdentity{.isa = first_worker().device().isa(),
                            .library = otr_version(),
                            .weights_digest = digest,
                            .weight_version = weight_version_};
}

Status Engine::save_checkpoint(const std::string& path, std::span<const std::byte> user) {
  const std::lock_guard<std::mutex> weights(weights_mutex_);
  OTR_ASSIGN_OR_RETURN(const CheckpointIdentity identity, checkpoint_identity());
  std::vector<std::byte> bytes;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    OTR_RETURN_IF_ERROR(ledger_status_);
    bytes = encode_checkpoint(identity, ledger_, user);
  }
  return write_checkpoint(path, bytes);
}

Status Engine::load_checkpoint(const std::string& path) {
  const std::lock_guard<std::mutex> weights(weights_mutex_);
  OTR_ASSIGN_OR_RETURN(const CheckpointIdentity identity, checkpoint_identity());
  OTR_ASSIGN_OR_RETURN(const CheckpointFile file, CheckpointFile::read(path));
  OTR_ASSIGN_OR_RETURN(auto groups, file.restore(identity, limits_));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (outstanding_ > 0) return Status(StatusCode::kBusy, std::to_string(outstanding_) + " samples are outstanding: take them or cancel them");
  if (placement_.all_gone()) return Status(StatusCode::kLost, "every worker process is lost");
  for (auto& samples : groups) resubmit(std::move(samples));
  return {};
}

// As enqueue(), but what is finished goes to whoever waits, and what has tokens begins on its own. REQUIRES: mutex_ is held.
void Engine::resubmit(std::vector<CheckpointFile::Sample> samples) {
  const std::shared_ptr<Group> group = samples.front().sequence->group;
  const int32_t count = static_cast<int32_t>(samples.size());
  const auto begun = [](const CheckpointFile::Sample& s) { return s.is_finished || s.sequence->num_reported > 0; };
  const bool has_begun = std::any_of(samples.begin(), samples.end(), begun);
  const int32_t to = placement_.place(static_cast<int32_t>(
      std::count_if(samples.begin(), samples.end(), [](const CheckpointFile::Sample& s) { return !s.is_finished; })));
  group->id = next_group_++;
  group->weight_version = weight_version_;
  outstanding_ += count;
  std::vector<std::unique_ptr<Sequence>> all;
  for (CheckpointFile::Sample& s : samples) {
    s.sequence->age = next_age_++;
    all.push_back(std::move(s.sequence));
  }
  ledger_.open(all, to);
  unfinished_.emplace(group->id, Unfinished{count, group});
  group->blocked.reserve(all.size());
  std::unique_ptr<Sequence> first;
  for (size_t i = 0; i < all.size(); ++i) {
    if (samples[i].is_finished) {
      const Status finished = ledger_.finish(to, group->id, all[i]->sample, all[i]->finish_reason, all[i]->error).status();
      if (ledger_status_.ok()) ledger_status_ = finished;
      if (history_ != nullptr && !group->is_score) history_->collect(*all[i]);
      publish(std::move(all[i]));
      result_arrived_.notify_all();
    } else if (has_begun) {
      port(to).start(std::move(all[i]));
    } else if (first == nullptr) {
      first = std::move(all[i]);
    } else {
      group->blocked.push_back(std::move(all[i]));
    }
  }
  at_rest_changed_.notify_all();
  if (first != nullptr) port(to).start(std::move(first));
}

}  // namespace otr
