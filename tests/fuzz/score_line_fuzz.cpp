// An input line of `outrider score`: it parses, or it is a bad line; nothing else is thrown.
#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz_target.h"
#include "tools/outrider/failure.h"
#include "tools/outrider/request_line.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace otr::fuzz;
  otr::cli::ScoreLine line;
  try {
    line = otr::cli::parse_score_line(as_text(data, size), 7);
  } catch (const otr::cli::BadLine& bad) {
    require(*bad.what() != '\0', "a refusal has a reason");
    return 0;
  }
  require(nlohmann::json::accept(line.id.json), "the id can be written back");
  require(line.sample_json.empty() || nlohmann::json::accept(line.sample_json), "the sample can be written back");
  require(!line.token_ids.empty(), "there is something to score");
  for (const int32_t id : line.token_ids) require(id >= 0, "ids are not negative");
  for (const int32_t id : line.prompt_token_ids) require(id >= 0, "ids are not negative");
  return 0;
}
