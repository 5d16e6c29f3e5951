#include "runtime/race.h"

#include <algorithm>

namespace otr {

Race::Race(const Sequence& s, bool leaps)
    : begin_(s.num_tokens()),
      num_prompt_(s.num_prompt()),
      leaps_(leaps),
      found_(begin_, leaps ? s.max_tokens : begin_, kMostReplicas) {
  const size_t most = leaps ? static_cast<size_t>(s.max_tokens - begin_) : 0;
  logprobs_.reserve(most);
  raw_logprobs_.reserve(most);
}

void Race::enter(int32_t rung) {
  running_.fetch_add(1, std::memory_order_relaxed);
  if (rung < 32) rungs_.fetch_or(1u << rung, std::memory_order_relaxed);
}

bool Race::finish(bool failed) {
  const bool last = running_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  if (failed && !last) return false;
  return !over_.exchange(true, std::memory_order_acq_rel);
}

void Race::publish(const Sequence& s, int32_t num_new) {
  const size_t count = static_cast<size_t>(num_new);
  add(std::min(s.rung, kMostReplicas - 2), s.num_tokens() - num_new, std::span(s.tokens).last(count),
      std::span(s.logprobs).last(count), std::span(s.raw_logprobs).last(count));
}

void Race::publish(int32_t first, std::span<const int32_t> tokens, std::span<const float> logprobs,
                   std::span<const float> raw_logprobs) {
  const int32_t begin = num_prompt_ + first, skip = std::clamp(begin_ - begin, 0, static_cast<int32_t>(tokens.size()));
  const size_t from = static_cast<size_t>(skip);
  add(kMostReplicas - 1, begin + skip, tokens.subspan(from), logprobs.subspan(from), raw_logprobs.subspan(from));
}

void Race::add(int32_t replica, int32_t begin, std::span<const int32_t> tokens, std::span<const float> logprobs,
               std::span<const float> raw_logprobs) {
  if (!leaps_ || tokens.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const int32_t known = found_.length();
  disagree_ = disagree_ || !found_.publish(replica, begin, tokens, false).ok();
  const size_t news = static_cast<size_t>(std::max(0, found_.length() - known));
  const auto copy = [news](std::span<const float> from, std::vector<float>* to) {
    to->insert(to->end(), from.end() - static_cast<std::ptrdiff_t>(news), from.end());
  };
  copy(logprobs, &logprobs_);
  copy(raw_logprobs, &raw_logprobs_);
}

int32_t Race::adopt(Sequence* s) {
  if (!leaps_ || over()) return 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (disagree_) return 0;
  const std::span<const int32_t> all = found_.known();
  const int32_t before = s->num_tokens();
  for (size_t at = static_cast<size_t>(before - begin_); at < all.size(); ++at) {
    if (s->stops_at(all[at]) || s->num_tokens() + 1 >= s->max_tokens) break;
    s->tokens.push_back(all[at]);
    s->logprobs.push_back(logprobs_[at]);
    s->raw_logprobs.push_back(raw_logprobs_[at]);
    s->note_penalty(all[at], true);
  }
  return s->num_tokens() - before;
}

}  // namespace otr
