#include "sched/leapfrog.h"

#include <algorithm>
#include <string>

namespace otr {

Leapfrog::Leapfrog(int32_t begin, int32_t limit, int32_t num_replicas)
    : begin_(begin), lengths_(static_cast<size_t>(num_replicas), begin), first_(static_cast<size_t>(num_replicas)) {
  tokens_.reserve(static_cast<size_t>(std::max(0, limit - begin)));
}

Status Leapfrog::publish(int32_t replica, int32_t begin, std::span<const int32_t> tokens, bool ended) {
  if (begin > length() || begin < begin_) return Status();
  const auto differs = [replica](const std::string& how) {
    return Status(StatusCode::kInternal, "replica " + std::to_string(replica) + " " + how);
  };
  const size_t offset = static_cast<size_t>(begin - begin_), known = std::min(tokens.size(), tokens_.size() - offset);
  for (size_t i = 0; i < known; ++i) {
    if (tokens[i] != tokens_[offset + i]) {
      return differs("has another token at position " + std::to_string(begin + static_cast<int32_t>(i)));
    }
  }
  if (ended_ && tokens.size() > known) return differs("goes on behind the end");
  if (ended && offset + tokens.size() < tokens_.size()) return differs("ends before the others");
  tokens_.insert(tokens_.end(), tokens.begin() + static_cast<std::ptrdiff_t>(known), tokens.end());
  first_[static_cast<size_t>(replica)] += static_cast<int64_t>(tokens.size() - known);
  int32_t& own = lengths_[static_cast<size_t>(replica)];
  own = std::max(own, begin + static_cast<int32_t>(tokens.size()));
  ended_ = ended_ || ended;
  return Status();
}

std::span<const int32_t> Leapfrog::take(int32_t replica) {
  int32_t& own = lengths_[static_cast<size_t>(replica)];
  const std::span<const int32_t> certain = std::span<const int32_t>(tokens_).subspan(static_cast<size_t>(own - begin_));
  own = length();
  return certain;
}

double leapfrog_tokens(std::span<const double> p, std::span<const int32_t> window, double shared) {
  const int32_t deepest = *std::max_element(window.begin(), window.end());
  std::vector<double> kept(p.size(), 1);  // the chance that so many tokens of a draft are kept
  double tokens = 1;
  for (int32_t depth = 1; depth <= deepest; ++depth) {
    double none = 1, best = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      kept[i] = depth <= window[i] ? kept[i] * p[i] : 0;
      none *= 1 - kept[i];
      best = std::max(best, kept[i]);
    }
    tokens += shared * best + (1 - shared) * (1 - none);
  }
  return tokens;
}

}  // namespace otr
