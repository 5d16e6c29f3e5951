// HistoryIndex: what the samples of each prompt said in the last epoch, found by the last few tokens.
//
// A prompt's responses lie in one text, each behind the last kMaxMatch tokens of its prompt, so that a match may span the
// prompt's end. The places of the text are sorted by the tokens before them, read backwards: those behind one match of m tokens
// are neighbours, for every m at once, and m comparisons of binary search find the longest. 8 bytes a token, 12 with log-probs.
//
// Thread safety: immutable once built; may be read from any thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace otr {

inline constexpr float kUnknownReward = std::numeric_limits<float>::quiet_NaN();

struct HistoryResponse {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // [tokens.size()], of the distribution sampled from; empty: not kept
  float reward = kUnknownReward;
};

// One prompt's.
class PromptHistory {
 public:
  static constexpr int32_t kMinMatch = 3, kMaxMatch = 7;
  static constexpr int32_t kEnd = -1;        // what follows a response's last token
  static constexpr int32_t kMaxPlaces = 32;  // of one match

  // REQUIRES: token ids >= 0; fewer than 2^31 tokens in all. The log-probs are used if every response has them.
  PromptHistory(std::span<const int32_t> prompt, std::span<const HistoryResponse> responses);

  struct Place {
    uint32_t position;  // in the text, of the token after the match
    float weight;       // of its response
  };
  // Fills `places` with the places behind the longest match of the end of `tokens`, at most kMaxPlaces spread over all of them,
  // and returns its length; 0 if no kMinMatch tokens match.
  int32_t find(std::span<const int32_t> tokens, std::vector<Place>* places) const;

  // The place `distance` tokens after `place` in the same response: false if it has none.
  bool advance(Place* place, uint32_t distance) const;

  int32_t token_at(uint32_t position) const { return text_[position]; }  // or kEnd
  bool has_logprobs() const { return !logprobs_.empty(); }
  // REQUIRES: has_logprobs(), and a token at `position`.
  float probability_at(uint32_t position) const { return std::exp(logprobs_[position]); }

  size_t num_responses() const { return responses_.size(); }
  // Response i as it was given. Its weight is 0.1 … 1, linear in the reward from the prompt's least to its greatest; one whose
  // reward is unknown, or no better than any other, lies in the middle.
  HistoryResponse response(size_t i) const;
  float weight(size_t i) const { return responses_[i].weight; }
  int64_t num_tokens() const;  // of all responses
  size_t bytes() const;

 private:
  struct Response {
    uint32_t begin, end;  // in the text
    float reward, weight;
  };
  std::vector<Response>::const_iterator response_of(uint32_t position) const;
  void set_weights();
  void sort_places();

  std::vector<int32_t> text_;
  std::vector<float> logprobs_;      // by position in the text; empty: not kept
  std::vector<uint32_t> places_;     // positions of all response tokens, sorted by what precedes them
  std::vector<Response> responses_;  // by position
};

// Prompts are told apart by their tokens; the hash only finds them.
struct PromptHash {
  using is_transparent = void;
  size_t operator()(std::span<const int32_t> prompt) const;
};
struct PromptEqual {
  using is_transparent = void;
  bool operator()(std::span<const int32_t> a, std::span<const int32_t> b) const;
};
template <typename T>
using ByPrompt = std::unordered_map<std::vector<int32_t>, T, PromptHash, PromptEqual>;

// All prompts'. Copies share the histories.
class HistoryIndex {
 public:
  // Takes the place of what the prompt had.
  void put(std::vector<int32_t> prompt, std::shared_ptr<const PromptHistory> history);
  // Null if the prompt is not known.
  std::shared_ptr<const PromptHistory> find(std::span<const int32_t> prompt) const;
  const ByPrompt<std::shared_ptr<const PromptHistory>>& prompts() const { return prompts_; }
  int64_t num_tokens() const { return num_tokens_; }  // of all responses
  size_t bytes() const { return bytes_; }

 private:
  ByPrompt<std::shared_ptr<const PromptHistory>> prompts_;
  int64_t num_tokens_ = 0;
  size_t bytes_ = 0;
};

}  // namespace otr
