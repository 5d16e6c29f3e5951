// tokenizer.json, and texts through whatever tokenizer it makes.
// Input: tokenizer.json, a zero byte, a text.
#include "loader/tokenizer.h"
#include "loader/utf8_text.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace otr::fuzz;
  const std::string_view input = as_text(data, size);
  const size_t zero = input.find('\0');
  const auto tokenizer = otr::Tokenizer::parse("t.json", input.substr(0, zero));
  if (!tokenizer.ok()) return require_reason(tokenizer.status(), "t.json: "), 0;
  const std::string text = otr::replace_invalid_utf8(zero == input.npos ? input : input.substr(zero + 1));
  const auto ids = tokenizer.value().encode(text);
  if (!ids.ok()) return require_reason(ids.status(), "t.json: "), 0;
  for (const int32_t id : ids.value()) require(id >= 0 && id < tokenizer.value().vocab_size(), "ids are in the vocabulary");
  const std::string decoded = tokenizer.value().decode(ids.value(), /*skip_special=*/false);
  require(!otr::find_invalid_utf8(decoded), "decoded text is UTF-8");
  return 0;
}
