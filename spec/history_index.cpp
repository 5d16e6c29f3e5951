#include "spec/history_index.h"

#include <algorithm>

namespace otr {

PromptHistory::PromptHistory(std::span<const int32_t> prompt, std::span<const HistoryResponse> responses) {
  const auto context = prompt.last(std::min(prompt.size(), static_cast<size_t>(kMaxMatch)));
  size_t size = kMaxMatch;
  bool with_logprobs = !responses.empty();
  for (const HistoryResponse& r : responses) {
    size += context.size() + r.tokens.size() + 1;
    with_logprobs &= r.logprobs.size() == r.tokens.size();
  }
  text_.reserve(size);
  text_.assign(kMaxMatch, kEnd);  // so that every place has kMaxMatch tokens before it
  responses_.reserve(responses.size());
  for (const HistoryResponse& r : responses) {
    text_.insert(text_.end(), context.begin(), context.end());
    const uint32_t begin = static_cast<uint32_t>(text_.size());
    text_.insert(text_.end(), r.tokens.begin(), r.tokens.end());
    responses_.push_back({begin, static_cast<uint32_t>(text_.size()), r.reward, 0.0f});
    text_.push_back(kEnd);
  }
  if (with_logprobs) {
    logprobs_.resize(text_.size());
    for (size_t i = 0; i < responses.size(); ++i) {
      std::copy(responses[i].logprobs.begin(), responses[i].logprobs.end(), logprobs_.begin() + responses_[i].begin);
    }
  }
  set_weights();
  sort_places();
}

void PromptHistory::set_weights() {
  constexpr float kLeast = 0.1f;  // what failed is still likelier than what nobody said
  float least = std::numeric_limits<float>::infinity(), greatest = -least;
  for (const Response& r : responses_) {
    if (std::isnan(r.reward)) continue;
    least = std::min(least, r.reward);
    greatest = std::max(greatest, r.reward);
  }
  for (Response& r : responses_) {
    // In double: the difference of two finite floats need not be one.
    const double above = static_cast<double>(r.reward) - static_cast<double>(least),
                 range = static_cast<double>(greatest) - static_cast<double>(least);
    const float share = greatest > least && !std::isnan(r.reward) ? static_cast<float>(above / range) : 0.5f;
    r.weight = kLeast + (1.0f - kLeast) * share;
  }
}

// By the token before the place, then the one before that, and so on. The first two are the sort's own: they decide most
// comparisons without a look at the text.
void PromptHistory::sort_places() {
  struct Keyed {
    uint64_t key;
    uint32_t position;
  };
  std::vector<Keyed> sorted;
  sorted.reserve(text_.size());
  for (const Response& r : responses_) {
    for (uint32_t p = r.begin; p < r.end; ++p) {
      sorted.push_back({uint64_t{static_cast<uint32_t>(text_[p - 1])} << 32 | static_cast<uint32_t>(text_[p - 2]), p});
    }
  }
  std::sort(sorted.begin(), sorted.end(), [this](const Keyed& a, const Keyed& b) {
    if (a.key != b.key) return a.key < b.key;
    for (uint32_t i = 3; i <= kMaxMatch; ++i) {
      const uint32_t x = static_cast<uint32_t>(text_[a.position - i]), y = static_cast<uint32_t>(text_[b.position - i]);
      if (x != y) return x < y;
    }
    return a.position < b.position;
  });
  places_.reserve(sorted.size());
  for (const Keyed& k : sorted) places_.push_back(k.position);
}

int32_t PromptHistory::find(std::span<const int32_t> tokens, std::vector<Place>* places) const {
  places->clear();
  const uint32_t most = static_cast<uint32_t>(std::min(tokens.size(), static_cast<size_t>(kMaxMatch)));
  auto begin = places_.begin(), end = places_.end();
  uint32_t length = 0;
  for (uint32_t i = 1; i <= most; ++i) {
    const uint32_t token = static_cast<uint32_t>(tokens[tokens.size() - i]);
    const auto before = [this, i](uint32_t position) { return static_cast<uint32_t>(text_[position - i]); };
    const auto first = std::lower_bound(begin, end, token, [&](uint32_t p, uint32_t t) { return before(p) < t; });
    const auto last = std::upper_bound(first, end, token, [&](uint32_t t, uint32_t p) { return t < before(p); });
    if (first == last) break;
    begin = first;
    end = last;
    length = i;
  }
  if (length < kMinMatch) return 0;
  const size_t found = static_cast<size_t>(end - begin), taken = std::min(found, static_cast<size_t>(kMaxPlaces));
  for (size_t i = 0; i < taken; ++i) {
    const uint32_t position = begin[static_cast<std::ptrdiff_t>(i * found / taken)];
    places->push_back({position, response_of(position)->weight});
  }
  return static_cast<int32_t>(length);
}

std::vector<PromptHistory::Response>::const_iterator PromptHistory::response_of(uint32_t position) const {
  return std::prev(std::upper_bound(responses_.begin(), responses_.end(), position,
                                    [](uint32_t p, const Response& r) { return p < r.begin; }));
}

bool PromptHistory::advance(Place* place, uint32_t distance) const {
  if (distance >= response_of(place->position)->end - place->position) return false;
  place->position += distance;
  return true;
}

HistoryResponse PromptHistory::response(size_t i) const {
  const Response& r = responses_[i];
  HistoryResponse copy{{text_.begin() + r.begin, text_.begin() + r.end}, {}, r.reward};
  if (has_logprobs()) copy.logprobs.assign(logprobs_.begin() + r.begin, logprobs_.begin() + r.end);
  return copy;
}

int64_t PromptHistory::num_tokens() const { return static_cast<int64_t>(places_.size()); }

size_t PromptHistory::bytes() const {
  return sizeof *this + text_.capacity() * sizeof(int32_t) + logprobs_.capacity() * sizeof(float) +
         places_.capacity() * sizeof(uint32_t) + responses_.capacity() * sizeof(Response);
}

size_t PromptHash::operator()(std::span<const int32_t> prompt) const {
  uint64_t h = prompt.size();
  for (const int32_t token : prompt) h = (h ^ (h >> 29) ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15u;
  return static_cast<size_t>(h ^ (h >> 32));
}

bool PromptEqual::operator()(std::span<const int32_t> a, std::span<const int32_t> b) const {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

void HistoryIndex::put(std::vector<int32_t> prompt, std::shared_ptr<const PromptHistory> history) {
  const size_t key_bytes = prompt.size() * sizeof(int32_t);
  std::shared_ptr<const PromptHistory>& at = prompts_[std::move(prompt)];
  if (at != nullptr) {
    num_tokens_ -= at->num_tokens();
    bytes_ -= at->bytes();
  } else {
    bytes_ += key_bytes;
  }
  num_tokens_ += history->num_tokens();
  bytes_ += history->bytes();
  at = std::move(history);
}

std::shared_ptr<const PromptHistory> HistoryIndex::find(std::span<const int32_t> prompt) const {
  const auto it = prompts_.find(prompt);
  return it == prompts_.end() ? nullptr : it->second;
}

}  // namespace otr
