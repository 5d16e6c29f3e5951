#include "runtime/history_store.h"

#include <charconv>
#include <cmath>
#include <exception>
#include <system_error>
#include <utility>

#include "kernels/base/clock.h"
#include "runtime/history_file.h"

namespace otr {

HistoryStore::~HistoryStore() { wait_for_build(); }

void HistoryStore::wait_for_build() {
  if (builder_.joinable()) builder_.join();
}

void HistoryStore::collect(const Sequence& s) noexcept {
  const bool complete = s.finish_reason == OTR_FINISH_STOP || s.finish_reason == OTR_FINISH_LENGTH;
  if (!complete) return;  // a stub must not take the place of what is known
  try {
    const auto response = s.tokens.begin() + s.num_prompt();
    HistoryResponse r{{}, {}, kUnknownReward};
    const bool is_kept = !s.group->is_later_turn;
    if (is_kept) {
      r.tokens.assign(response, s.tokens.end());
      if (with_logprobs_) r.logprobs = s.logprobs;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    PendingGroup& group = pending_[s.group->id];
    if (is_kept && group.prompt.empty()) group.prompt.assign(s.tokens.begin(), response);
    group.responses[s.sample] = std::move(r);
    ++num_pending_;
  } catch (const std::exception&) {  // no memory: the sample is worth more than its history
  }
}

Status HistoryStore::reward(uint64_t group_id, uint32_t sample, float reward) {
  if (!std::isfinite(reward)) return invalid_argument("the reward is not a finite number");
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto group = pending_.find(group_id); group != pending_.end()) {
    if (const auto response = group->second.responses.find(sample); response != group->second.responses.end()) {
      response->second.reward = reward;
      return {};
    }
  }
  return invalid_argument("group " + std::to_string(group_id) + " has no sample " + std::to_string(sample) +
                          " that ended with a stop or at its length since the last commit");
}

// What may fail comes before the samples are taken. Where the system refuses a thread, this one builds.
void HistoryStore::commit() {
  std::lock_guard<std::mutex> building(build_mutex_);
  wait_for_build();
  const auto taken = std::make_shared<Pending>();
  const auto build_taken = [this, taken] {
    { const std::lock_guard<std::mutex> until_taken(mutex_); }
    try {
      build(*taken);
    } catch (const std::exception&) {  // no memory: the next epoch is drafted from what there was
    }
  };
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (pending_.empty()) return;
    try {
      builder_ = std::thread(build_taken);
    } catch (const std::system_error&) {
    }
    taken->swap(pending_);
    num_pending_ = 0;
  }
  if (!builder_.joinable()) build_taken();
}

// Several groups of a prompt are one: samples of one epoch.
void HistoryStore::build(const Pending& pending) {
  const Stopwatch stopwatch;
  ByPrompt<std::vector<HistoryResponse>> by_prompt;
  for (const auto& [id, group] : pending) {
    for (const auto& [sample, response] : group.responses) {
      if (!response.tokens.empty()) by_prompt[group.prompt].push_back(response);
    }
  }
  HistoryIndex news;
  for (const auto& [prompt, responses] : by_prompt) news.put(prompt, std::make_shared<const PromptHistory>(prompt, responses));
  publish(news);
  std::lock_guard<std::mutex> lock(mutex_);
  build_seconds_ += stopwatch.seconds();
}

void HistoryStore::publish(const HistoryIndex& news) {
  const std::shared_ptr<const HistoryIndex> before = index();
  auto next = before == nullptr ? std::make_shared<HistoryIndex>() : std::make_shared<HistoryIndex>(*before);
  for (const auto& [prompt, history] : news.prompts()) next->put(prompt, history);
  std::lock_guard<std::mutex> lock(mutex_);
  index_ = std::move(next);
}

Status HistoryStore::save(const std::string& path) {
  commit();
  std::lock_guard<std::mutex> building(build_mutex_);
  wait_for_build();
  const std::shared_ptr<const HistoryIndex> current = index();
  return save_history(path, current == nullptr ? HistoryIndex() : *current);
}

Status HistoryStore::load(const std::string& path) {
  std::lock_guard<std::mutex> building(build_mutex_);
  wait_for_build();
  OTR_ASSIGN_OR_RETURN(const LoadedHistory loaded, load_history(path, vocab_size_, with_logprobs_));
  publish(loaded.index);
  return loaded.damage.empty() ? Status() : bad_input(loaded.damage);
}

std::shared_ptr<const HistoryIndex> HistoryStore::index() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return index_;
}

std::string HistoryStore::stats_json() const {
  std::lock_guard<std::mutex> lock(mutex_);
  const HistoryIndex none, &i = index_ == nullptr ? none : *index_;
  char seconds[64];  // printf's spelling follows the caller's locale
  const std::string build(seconds,
                          std::to_chars(seconds, seconds + sizeof seconds, build_seconds_, std::chars_format::fixed, 6).ptr);
  return "{\"prompts\":" + std::to_string(i.prompts().size()) + ",\"tokens\":" + std::to_string(i.num_tokens()) +
         ",\"bytes\":" + std::to_string(i.bytes()) + ",\"pending_samples\":" + std::to_string(num_pending_) +
         ",\"build_seconds\":" + build + "}";
}

}  // namespace otr
