#include "tools/outrider/request_line.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tools/outrider/failure.h"
#include "tools/outrider/json_line.h"

namespace otr::cli {
namespace {

using nlohmann::json;

struct FloatKey {
  const char* name;
  float otr_sampling_params::*field;
  bool (*valid)(float);
  const char* rule;
};
constexpr FloatKey kFloatKeys[] = {
    {"temperature", &otr_sampling_params::temperature, [](float x) { return x == 0 || (x >= 0.01f && x <= 100); },
     "must be 0 or a number from 0.01 to 100"},
    {"top_p", &otr_sampling_params::top_p, [](float x) { return x > 0 && x <= 1; }, "must be a number above 0, at most 1"},
    {"min_p", &otr_sampling_params::min_p, [](float x) { return x >= 0 && x <= 1; }, "must be a number from 0 to 1"},
    {"repetition_penalty", &otr_sampling_params::repetition_penalty, [](float x) { return x > 0; }, "must be a number above 0"},
    {"presence_penalty", &otr_sampling_params::presence_penalty, [](float) { return true; }, "must be a number"},
    {"frequency_penalty", &otr_sampling_params::frequency_penalty, [](float) { return true; }, "must be a number"},
};

struct IntKey {
  const char* name;
  int32_t& (*field)(SamplingSettings&);
  int32_t least;
  const char* rule;
};
constexpr IntKey kIntKeys[] = {
    {"n", [](SamplingSettings& s) -> int32_t& { return s.n; }, 1, "must be an integer, at least 1"},
    {"max_new_tokens", [](SamplingSettings& s) -> int32_t& { return s.params.max_new_tokens; }, 1,
     "must be an integer, at least 1"},
    {"top_k", [](SamplingSettings& s) -> int32_t& { return s.params.top_k; }, 0, "must be an integer, at least 0 (off)"},
};

template <typename Table>
auto find_key(const Table& table, std::string_view key) {
  const auto* end = std::end(table);
  for (const auto* entry = std::begin(table); entry != end; ++entry) {
    if (key == entry->name) return entry;
  }
  return static_cast<decltype(end)>(nullptr);
}

std::optional<uint64_t> as_u64(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<uint64_t>();
}

std::optional<int32_t> as_i32(const json& value) {
  const std::optional<uint64_t> number = as_u64(value);
  if (!number || *number > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) return std::nullopt;
  return static_cast<int32_t>(*number);
}

// A number that float32 holds; one that would become 0 or infinite only by rounding is none.
std::optional<float> as_float(const json& value) {
  if (!value.is_number()) return std::nullopt;
  const double number = value.get<double>();
  const float rounded = static_cast<float>(number);
  if (!std::isfinite(rounded) || (rounded == 0 && number != 0)) return std::nullopt;
  return rounded;
}

constexpr const char* kTokenIdsRule = "must be an array of token ids (integers, at least 0)";

std::optional<std::vector<int32_t>> as_token_ids(const json& value) {
  if (!value.is_array()) return std::nullopt;
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const json& element : value) {
    const std::optional<int32_t> id = as_i32(element);
    if (!id) return std::nullopt;
    ids.push_back(*id);
  }
  return ids;
}

[[noreturn]] void bad_key(std::string_view key, const std::string& rule) { throw BadLine(std::string(key) + ": " + rule); }

std::vector<int32_t> token_ids_of(std::string_view key, const json& value) {
  std::optional<std::vector<int32_t>> ids = as_token_ids(value);
  if (!ids) bad_key(key, kTokenIdsRule);
  return *std::move(ids);
}

LineId parse_id(const json& line, int64_t line_number) {
  const auto found = line.find("id");
  if (found == line.end()) return {std::to_string(line_number), std::to_string(line_number)};
  if (found->is_string()) return {found->get<std::string>(), found->dump()};
  if (!found->is_number_integer()) bad_key("id", "must be a string or an integer");
  return {found->dump(), found->dump()};
}

bool belongs_to_checkers(std::string_view key) { return key == "answer" || key == "kind" || key == "metadata"; }

void apply_sampling_key(std::string_view key, const json& value, SamplingSettings* settings) {
  const std::string rule = set_sampling_key(key, value, settings);
  if (!rule.empty()) bad_key(key, rule);
}

[[noreturn]] void unknown_key(const std::string& key) { throw BadLine("unknown key " + json(key).dump()); }

}  // namespace

SamplingSettings::SamplingSettings() {
  otr_sampling_params_init(&params, sizeof params);
  otr_group_request request;
  otr_group_request_init(&request, sizeof request);
  n = request.n;
}

otr_sampling_params SamplingSettings::abi() const {
  otr_sampling_params result = params;
  result.stop_token_ids = stop_token_ids.data();
  result.num_stop_token_ids = stop_token_ids.size();
  return result;
}

bool is_distribution_key(std::string_view key) { return key == "top_k" || find_key(kFloatKeys, key); }

bool is_sampling_key(std::string_view key) {
  return find_key(kFloatKeys, key) || find_key(kIntKeys, key) || key == "seed" || key == "ignore_eos" ||
         key == "stop_token_ids";
}

std::string set_sampling_key(std::string_view key, const json& value, SamplingSettings* settings) {
  if (const FloatKey* entry = find_key(kFloatKeys, key)) {
    const std::optional<float> number = as_float(value);
    if (!number || !entry->valid(*number)) return entry->rule;
    settings->params.*entry->field = *number;
  } else if (const IntKey* integer = find_key(kIntKeys, key)) {
    const std::optional<int32_t> number = as_i32(value);
    if (!number || *number < integer->least) return integer->rule;
    integer->field(*settings) = *number;
  } else if (key == "seed") {
    const std::optional<uint64_t> number = as_u64(value);
    if (!number) return "must be an integer from 0 to 18446744073709551615";
    settings->params.seed = *number;
  } else if (key == "ignore_eos") {
    if (!value.is_boolean()) return "must be true or false";
    settings->params.ignore_eos = value.get<bool>();
  } else {
    std::optional<std::vector<int32_t>> ids = as_token_ids(value);
    if (!ids) return kTokenIdsRule;
    settings->stop_token_ids = *std::move(ids);
  }
  return "";
}

RolloutLine parse_rollout_line(std::string_view text, int64_t line_number, const SamplingSettings& defaults) {
  const json line = parse_json_line(text);
  RolloutLine result;
  result.id = parse_id(line, line_number);
  result.sampling = defaults;
  for (const auto& [key, value] : line.items()) {
    if (key == "prompt") {
      if (!value.is_string()) bad_key(key, "must be a string");
      result.prompt = value.get<std::string>();
    } else if (key == "prompt_token_ids") {
      result.prompt_token_ids = token_ids_of(key, value);
    } else if (key == "stream") {
      result.stream = as_u64(value);
      if (!result.stream) bad_key(key, "must be an integer from 0 to 18446744073709551615");
    } else if (is_sampling_key(key)) {
      apply_sampling_key(key, value, &result.sampling);
    } else if (key != "id" && !belongs_to_checkers(key)) {
      unknown_key(key);
    }
  }
  if (line.contains("prompt") == line.contains("prompt_token_ids")) {
    throw BadLine("needs either prompt or prompt_token_ids");
  }
  return result;
}

ScoreLine parse_score_line(std::string_view text, int64_t line_number) {
  const json line = parse_json_line(text);
  ScoreLine result;
  result.id = parse_id(line, line_number);
  for (const auto& [key, value] : line.items()) {
    if (key == "prompt_token_ids") {
      result.prompt_token_ids = token_ids_of(key, value);
    } else if (key == "token_ids") {
      result.token_ids = token_ids_of(key, value);
    } else if (key == "sample") {
      if (!as_u64(value)) bad_key(key, "must be an integer, at least 0");
      result.sample_json = value.dump();
    } else if (is_distribution_key(key)) {
      apply_sampling_key(key, value, &result.sampling);
      result.has_sampling = true;
    } else if (key != "id" && key != "text" && key != "logprobs" && key != "raw_logprobs" && key != "finish_reason" &&
               key != "error" && !belongs_to_checkers(key)) {
      unknown_key(key);
    }
  }
  if (result.token_ids.empty()) throw BadLine("needs token_ids, at least one");
  return result;
}

uint64_t stream_of(uint64_t step, std::string_view id) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, 64 bits
  const auto add = [&](uint64_t byte) { hash = (hash ^ byte) * 0x100000001b3u; };
  for (int i = 0; i < 8; ++i) add((step >> (8 * i)) & 0xff);
  for (const char c : id) add(static_cast<unsigned char>(c));
  // The finaliser of splitmix64: FNV alone leaves ids that differ in the last byte close together.
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
  return hash ^ (hash >> 31);
}

}  // namespace otr::cli
