#include "runtime/request.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <unordered_map>
#include <utility>

#include "kernels/page/page.h"

namespace otr {
namespace {

constexpr int32_t kMaxSamples = 1 << 20;

// Null: the defaults. Errors: kInvalidArgument with the parameter's name.
Result<SamplingParams> read_sampling(const otr_sampling_params* p, int32_t vocab_size) {
  SamplingParams s;
  if (p == nullptr) return s;
  const auto within = [](float x, float low, float high) { return x >= low && x <= high; };  // false for NaN
  if (!(p->temperature == 0.0f || within(p->temperature, 0.01f, 100.0f))) {
    return invalid_argument("temperature must be 0 or between 0.01 and 100");
  }
  if (p->top_k < 0) return invalid_argument("top_k must not be negative");
  if (!(p->top_p > 0.0f && p->top_p <= 1.0f)) return invalid_argument("top_p must be in (0, 1]");
  if (!within(p->min_p, 0.0f, 1.0f)) return invalid_argument("min_p must be in [0, 1]");
  if (!within(p->repetition_penalty, 1e-3f, 1e3f)) return invalid_argument("repetition_penalty must be between 0.001 and 1000");
  if (!within(p->presence_penalty, -100.0f, 100.0f)) return invalid_argument("presence_penalty must be between -100 and 100");
  if (!within(p->frequency_penalty, -100.0f, 100.0f)) return invalid_argument("frequency_penalty must be between -100 and 100");
  if (p->max_new_tokens < 1) return invalid_argument("max_new_tokens must be at least 1");
  if (p->ignore_eos != 0 && p->ignore_eos != 1) return invalid_argument("ignore_eos must be 0 or 1");
  if (p->num_stop_token_ids > 0 && p->stop_token_ids == nullptr) return invalid_argument("stop_token_ids is NULL");
  if (p->num_stop_token_ids > static_cast<size_t>(vocab_size))
    return invalid_argument("more stop_token_ids than the vocabulary has ids");
  for (size_t i = 0; i < p->num_stop_token_ids; ++i) {
    if (p->stop_token_ids[i] < 0 || p->stop_token_ids[i] >= vocab_size) {
      return invalid_argument("stop token id " + std::to_string(p->stop_token_ids[i]) + " is outside the vocabulary of " +
                              std::to_string(vocab_size));
    }
    s.stop_token_ids.push_back(p->stop_token_ids[i]);
  }
  s.temperature = p->temperature;
  s.top_k = p->top_k;
  s.top_p = p->top_p;
  s.min_p = p->min_p;
  s.repetition_penalty = p->repetition_penalty;
  s.presence_penalty = p->presence_penalty;
  s.frequency_penalty = p->frequency_penalty;
  s.seed = p->seed;
  s.max_new_tokens = p->max_new_tokens;
  s.ignore_eos = p->ignore_eos == 1;
  return s;
}

Status check_tokens(const int32_t* ids, size_t count, int32_t vocab_size, const char* what) {
  if (ids == nullptr && count > 0) return invalid_argument(std::string(what) + " is NULL");
  for (size_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return invalid_argument(std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(ids[i]) +
                              ", outside the vocabulary of " + std::to_string(vocab_size));
    }
  }
  return {};
}

Status check_fits(int64_t tokens, const RequestLimits& limits) {
  const int64_t pages = (tokens + kPageTokens - 1) / kPageTokens;
  if (pages <= limits.num_pages) return {};
  return Status(StatusCode::kNeverFits, "prompt and response of up to " + std::to_string(tokens) + " tokens need " +
                                            std::to_string(pages) + " KV pages; the engine has " +
                                            std::to_string(limits.num_pages));
}

Status check_prompt_length(size_t num_tokens, const RequestLimits& limits) {
  if (num_tokens < static_cast<size_t>(limits.context_limit)) return {};
  return invalid_argument("the prompt has " + std::to_string(num_tokens) + " tokens; the model's context limit is " +
                          std::to_string(limits.context_limit));
}

std::vector<PenaltyEntry> prompt_penalties(const Group& group, std::span<const int32_t> prompt) {
  return group.sampling.penalised() ? penalties_of(prompt, prompt.size()) : std::vector<PenaltyEntry>();
}

std::unique_ptr<Sequence> make_sequence(std::shared_ptr<Group> group, std::span<const int32_t> prompt,
                                        std::span<const PenaltyEntry> penalties, int64_t max_tokens) {
  const size_t num_prompt = prompt.size();
  auto s = std::make_unique<Sequence>();
  s->group = std::move(group);
  s->max_tokens = static_cast<int32_t>(max_tokens);
  s->tokens.reserve(static_cast<size_t>(max_tokens));
  s->tokens.assign(prompt.begin(), prompt.end());
  s->logprobs.reserve(static_cast<size_t>(max_tokens) - num_prompt);
  s->raw_logprobs.reserve(static_cast<size_t>(max_tokens) - num_prompt);
  s->pages.reserve(static_cast<int32_t>((max_tokens + kPageTokens - 1) / kPageTokens));
  if (s->group->sampling.penalised()) {
    s->penalties.reserve(static_cast<size_t>(max_tokens));
    s->penalties.assign(penalties.begin(), penalties.end());
  }
  return s;
}

// `n` samples of a prompt that is checked, without their indices and noise. kNeverFits.
Result<std::vector<std::unique_ptr<Sequence>>> build_group(std::span<const int32_t> prompt, int32_t n, uint64_t tag,
                                                           SamplingParams sampling, const RequestLimits& limits) {
  const int64_t num_prompt = static_cast<int64_t>(prompt.size());
  const int64_t max_tokens = std::min(num_prompt + sampling.max_new_tokens, limits.context_limit);
  OTR_RETURN_IF_ERROR(check_fits(max_tokens, limits));
  auto group = std::make_shared<Group>();
  group->sampling = std::move(sampling);
  group->tag = tag;
  group->num_prompt = static_cast<int32_t>(num_prompt);
  group->stop_ids = group->sampling.stop_token_ids;
  if (!group->sampling.ignore_eos) group->stop_ids.insert(group->stop_ids.end(), limits.eos_ids.begin(), limits.eos_ids.end());
  std::sort(group->stop_ids.begin(), group->stop_ids.end());
  const std::vector<PenaltyEntry> penalties = prompt_penalties(*group, prompt);
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int32_t i = 0; i < n; ++i) sequences.push_back(make_sequence(group, prompt, penalties, max_tokens));
  return sequences;
}

}  // namespace

void add_penalty(int32_t token, bool in_output, std::vector<PenaltyEntry>* penalties) {
  const int32_t count = in_output ? 1 : 0;
  for (PenaltyEntry& e : *penalties) {
    if (e.token == token) {
      e.output_count += count;
      return;
    }
  }
  penalties->push_back({token, count});
}

std::vector<PenaltyEntry> penalties_of(std::span<const int32_t> tokens, size_t num_prompt) {
  std::vector<PenaltyEntry> penalties;
  std::unordered_map<int32_t, size_t> places;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto [place, is_new] = places.emplace(tokens[i], penalties.size());
    if (is_new) penalties.push_back({tokens[i], 0});
    penalties[place->second].output_count += i >= num_prompt;
  }
  return penalties;
}

void add_weight_span(size_t first_token, uint64_t version, std::vector<otr_weight_span>* spans) {
  if (spans->back().first_token == first_token) spans->pop_back();  // it drew nothing
  if (spans->empty() || spans->back().weight_version != version) spans->push_back({first_token, version});
}

void Group::disband() {
  if (!blocked.empty()) std::exchange(blocked, {}).clear();
}

int32_t Sequence::logits_from() const {
  // Row p scores token p + 1; what is recorded already (before a preemption, too) is not scored again.
  return group->is_score ? num_prompt() + static_cast<int32_t>(raw_logprobs.size()) - 1 : num_tokens() - 1;
}

bool Sequence::stops_at(int32_t token) const {
  return std::binary_search(group->stop_ids.begin(), group->stop_ids.end(), token);
}

std::optional<otr_finish_reason> Sequence::end() const {
  if (group->is_score) {
    const bool is_complete = raw_logprobs.size() == tokens.size() - static_cast<size_t>(num_prompt());
    return is_complete ? std::optional(OTR_FINISH_SCORE) : std::nullopt;
  }
  if (num_tokens() == num_prompt()) return std::nullopt;
  if (stops_at(tokens.back())) return OTR_FINISH_STOP;
  if (num_tokens() == max_tokens) return OTR_FINISH_LENGTH;
  return std::nullopt;
}

void Sequence::rewind() {
  num_computed = prefix_hit = 0;
  runs_to = kEverything;
  num_reported = static_cast<int32_t>(raw_logprobs.size());  // by it, or by the replica that found them
  if (!group->is_score) return;
  num_reported = group->num_unscored();
  logprobs.resize(static_cast<size_t>(num_reported));
  raw_logprobs.resize(static_cast<size_t>(num_reported));
  error.clear();
  penalties.clear();
  for (int32_t i = 0; i < num_prompt() + num_reported; ++i) note_penalty(tokens[static_cast<size_t>(i)], i >= num_prompt());
}

SampleDraw Sequence::draw(int32_t logits_row, int32_t position, int32_t forced_token) const {
  const SamplingParams& s = group->sampling;
  return {.logits_row = logits_row,
          .position = position,
          .noise = noise,
          .forced_token = forced_token,
          .temperature = s.temperature,
          .top_k = s.top_k,
          .top_p = s.top_p,
          .min_p = s.min_p,
          .repetition_penalty = s.repetition_penalty,
          .presence_penalty = s.presence_penalty,
          .frequency_penalty = s.frequency_penalty,
          .num_penalties = static_cast<int32_t>(penalties.size()),
          .penalties = penalties.data()};
}

Result<std::vector<std::unique_ptr<Sequence>>> make_group(const otr_group_request& r, const RequestLimits& limits) {
  if (r.num_prompt_tokens == 0) return invalid_argument("the prompt is empty");
  if (r.n < 1 || r.n > kMaxSamples) return invalid_argument("n must be between 1 and " + std::to_string(kMaxSamples));
  if (r.first_sample > UINT32_MAX - static_cast<uint32_t>(r.n)) return invalid_argument("first_sample + n exceeds 32 bits");
  // Lengths before contents: a length that is wrong must not be followed.
  OTR_RETURN_IF_ERROR(check_prompt_length(r.num_prompt_tokens, limits));
  OTR_RETURN_IF_ERROR(check_tokens(r.prompt_token_ids, r.num_prompt_tokens, limits.vocab_size, "prompt_token_ids"));
  OTR_ASSIGN_OR_RETURN(SamplingParams sampling, read_sampling(r.sampling, limits.vocab_size));
  const std::span<const int32_t> prompt(r.prompt_token_ids, r.num_prompt_tokens);
  OTR_ASSIGN_OR_RETURN(auto sequences, build_group(prompt, r.n, r.tag, std::move(sampling), limits));
  for (uint32_t i = 0; i < sequences.size(); ++i) {
    Sequence& s = *sequences[i];
    s.sample = r.first_sample + i;
    s.noise = noise_stream({.seed = s.group->sampling.seed, .stream = r.stream, .sample = s.sample});
  }
  return sequences;
}

Result<std::vector<std::unique_ptr<Sequence>>> make_appended(const Sequence& ended, const otr_append_request& r,
                                                             const RequestLimits& limits) {
  if (ended.group->is_score) return invalid_argument("the result is a score's: there is no sample to go on with");
  if (r.num_tokens > static_cast<size_t>(limits.context_limit)) return check_prompt_length(r.num_tokens, limits);
  OTR_RETURN_IF_ERROR(check_prompt_length(ended.tokens.size() + r.num_tokens, limits));
  OTR_RETURN_IF_ERROR(check_tokens(r.token_ids, r.num_tokens, limits.vocab_size, "token_ids"));
  OTR_RETURN_IF_ERROR(check_tokens(ended.tokens.data(), ended.tokens.size(), limits.vocab_size, "the result's tokens"));
  SamplingParams sampling = ended.group->sampling;
  const std::vector<int32_t>& stops = sampling.stop_token_ids;
  if (r.sampling == nullptr)
    OTR_RETURN_IF_ERROR(check_tokens(stops.data(), stops.size(), limits.vocab_size, "the result's stop_token_ids"));
  if (r.sampling != nullptr) {
    OTR_ASSIGN_OR_RETURN(sampling, read_sampling(r.sampling, limits.vocab_size));
    sampling.seed = ended.group->sampling.seed;
  }
  std::vector<int32_t> prompt = ended.tokens;
  prompt.insert(prompt.end(), r.token_ids, r.token_ids + r.num_tokens);
  OTR_ASSIGN_OR_RETURN(auto sequences, build_group(prompt, 1, r.tag, std::move(sampling), limits));
  sequences.front()->sample = ended.sample;
  sequences.front()->noise = ended.noise;
  sequences.front()->group->is_later_turn = true;
  return sequences;
}

Result<std::unique_ptr<Sequence>> make_score(const otr_score_request& r, const RequestLimits& limits) {
  if (r.num_tokens == 0) return invalid_argument("there are no tokens to score");
  const size_t most = static_cast<size_t>(limits.context_limit);
  if (r.num_prompt_tokens > most || r.num_tokens > most || r.num_prompt_tokens + r.num_tokens > most) {
    return invalid_argument("prompt and tokens are " + std::to_string(r.num_prompt_tokens) + " + " +
                            std::to_string(r.num_tokens) + "; the model's context limit is " +
                            std::to_string(limits.context_limit));
  }
  OTR_RETURN_IF_ERROR(check_tokens(r.prompt_token_ids, r.num_prompt_tokens, limits.vocab_size, "prompt_token_ids"));
  OTR_RETURN_IF_ERROR(check_tokens(r.token_ids, r.num_tokens, limits.vocab_size, "token_ids"));
  const int64_t total = static_cast<int64_t>(r.num_prompt_tokens + r.num_tokens);
  OTR_RETURN_IF_ERROR(check_fits(total - 1, limits));
  auto group = std::make_shared<Group>();
  OTR_ASSIGN_OR_RETURN(group->sampling, read_sampling(r.sampling, limits.vocab_size));
  group->tag = r.tag;
  group->num_prompt = static_cast<int32_t>(r.num_prompt_tokens);
  group->is_score = true;
  group->wants_logprobs = r.sampling != nullptr;
  const std::span prompt(r.prompt_token_ids, r.num_prompt_tokens);
  auto s = make_sequence(group, prompt, prompt_penalties(*group, prompt), total);
  s->tokens.insert(s->tokens.end(), r.token_ids, r.token_ids + r.num_tokens);
  if (group->num_unscored() > 0) {
    s->logprobs.push_back(std::nanf(""));
    s->raw_logprobs.push_back(std::nanf(""));
    s->num_reported = 1;
    s->note_penalty(r.token_ids[0], true);
  }
  return s;
}

}  // namespace otr
