#include "runtime/race.h"

#include <algorithm>

namespace otr {

Race::Race(const Sequence& s, bool leaps)
    : begin_(s.num_tokens()), leaps_(leaps), found_(begin_, leaps ? s.max_tokens : begin_, kMostReplicas) {
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
  if (!leaps_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const int32_t begin = s.num_tokens() - num_new, known = found_.length();
  const size_t response = s.logprobs.size();
  disagree_ = disagree_ || !found_.publish(std::min(s.rung, kMostReplicas - 1), begin, std::span(s.tokens).last(static_cast<size_t>(num_new)), false).ok();
  for (size_t back = static_cast<size_t>(std::max(0, found_.length() - known)); back > 0; --back) {
    logprobs_.push_back(s.logprobs[response - back]);
    raw_logprobs_.push_back(s.raw_logprobs[response - back]);
  }
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
