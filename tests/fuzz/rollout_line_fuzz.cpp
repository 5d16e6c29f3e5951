// An input line of `outrider rollout`: it parses, or it is a bad line; nothing else is thrown.
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz_target.h"
#include "tools/outrider/failure.h"
#include "tools/outrider/request_line.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace otr::fuzz;
  otr::cli::RolloutLine line;
  try {
    line = otr::cli::parse_rollout_line(as_text(data, size), 7, otr::cli::SamplingSettings());
  } catch (const otr::cli::BadLine& bad) {
    require(*bad.what() != '\0', "a refusal has a reason");
    return 0;
  }
  require(nlohmann::json::accept(line.id.json), "the id can be written back");
  require(!line.prompt || line.prompt_token_ids.empty(), "a prompt is text or ids");
  for (const int32_t id : line.prompt_token_ids) require(id >= 0, "ids are not negative");
  const otr_sampling_params params = line.sampling.abi();
  require(line.sampling.n >= 1 && params.max_new_tokens >= 1 && params.top_k >= 0, "counts are in range");
  require(params.temperature == 0 || (params.temperature >= 0.01f && params.temperature <= 100), "the temperature is in range");
  require(params.top_p > 0 && params.top_p <= 1 && params.min_p >= 0 && params.min_p <= 1, "filters are in range");
  require(params.repetition_penalty > 0 && std::isfinite(params.presence_penalty) && std::isfinite(params.frequency_penalty),
          "penalties are numbers");
  return 0;
}
