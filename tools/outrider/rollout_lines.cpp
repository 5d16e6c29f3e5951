#include "tools/outrider/rollout_lines.h"

#include "tools/outrider/failure.h"
#include "tools/outrider/json_text.h"

namespace otr::cli {
namespace {

std::vector<int32_t> encode(const std::string& prompt, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) throw BadLine("prompt: the model has no tokenizer.json; give prompt_token_ids");
  Result<std::vector<int32_t>> ids = tokenizer->encode(prompt);
  if (!ids.ok()) throw BadLine("prompt: " + ids.status().message());
  return std::move(ids.value());
}

// The decoded response without the stop token.
std::string text_of(const otr_result_view& result, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return "null";
  const size_t length = result.num_tokens - (result.finish_reason == OTR_FINISH_STOP ? 1 : 0);
  return json_string(tokenizer->decode({result.token_ids, length}, /*skip_special=*/true));
}

}  // namespace

RolloutLine RolloutReader::read(std::string_view text, int64_t line_number) const {
  RolloutLine line = parse_rollout_line(text, line_number, defaults_);
  if (line.prompt) line.prompt_token_ids = encode(*line.prompt, tokenizer_);
  if (line.stream || !ids_.contains(line.id.text)) return line;
  throw BadLine("id " + line.id.json + " was already given; lines that share an id need a stream each");
}

otr_group_request group_request(const RolloutLine& line, uint64_t step, uint64_t tag, const otr_sampling_params* sampling) {
  otr_group_request request;
  otr_group_request_init(&request, sizeof request);
  request.prompt_token_ids = line.prompt_token_ids.data();
  request.num_prompt_tokens = line.prompt_token_ids.size();
  request.n = line.sampling.n;
  request.stream = line.stream ? *line.stream : stream_of(step, line.id.text);
  request.tag = tag;
  request.sampling = sampling;
  return request;
}

std::string sample_line(const std::string& id_json, const std::string& prompt_json, const otr_result_view& result,
                        const Tokenizer* tokenizer) {
  std::string out = "{\"id\":" + id_json + ",\"sample\":" + std::to_string(result.sample) +
                    ",\"prompt_token_ids\":" + prompt_json + ",\"token_ids\":";
  append_json_array(&out, std::span(result.token_ids, result.num_tokens));
  out += ",\"logprobs\":";
  append_json_array(&out, std::span(result.logprobs, result.num_tokens));
  out += ",\"raw_logprobs\":";
  append_json_array(&out, std::span(result.raw_logprobs, result.num_tokens));
  out += ",\"text\":" + text_of(result, tokenizer) +
         ",\"finish_reason\":" + json_string(otr_finish_reason_text(result.finish_reason));
  if (result.finish_reason == OTR_FINISH_ERROR) out += ",\"error\":" + json_string(result.error);
  return out + "}";
}

}  // namespace otr::cli
