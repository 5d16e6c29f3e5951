// Texts and ids through a tokenizer of the repository: added tokens, NFC, the split expression, merges, decoding.
// Input: a text, whose bytes are also taken as ids, two bytes an id.
#include <algorithm>
#include <vector>

#include "loader/file.h"
#include "loader/tokenizer.h"
#include "loader/tokenizer_file.h"
#include "loader/utf8_text.h"
#include "tests/fuzz/fuzz_target.h"

namespace otr::fuzz {
namespace {

struct Subject {
  Tokenizer tokenizer;
  bool normalize_nfc;
  std::vector<std::string> added;  // contents of added tokens, as they are and normalised

  static Subject load() {
    const std::string path = std::string(OUTRIDER_TEST_DATA) + "/" + OUTRIDER_FUZZ_TOKENIZER;
    const auto json = read_text_file(path, kMaxTokenizerBytes);
    require(json.ok(), "the tokenizer is in the repository");
    auto tokenizer = Tokenizer::parse(path, json.value());
    const auto file = parse_tokenizer_file(path, json.value());
    require(tokenizer.ok() && file.ok(), "the tokenizer is good");
    Subject subject{std::move(tokenizer.value()), file.value().normalize_nfc, {}};
    for (const AddedToken& token : file.value().added_tokens) {
      subject.added.push_back(token.content);
      subject.added.push_back(to_nfc(token.content));
    }
    return subject;
  }

  bool has_added_token(std::string_view text) const {
    return std::any_of(added.begin(), added.end(), [&](const std::string& token) { return text.find(token) != text.npos; });
  }
};

void require_decodable(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (const bool skip_special : {false, true}) {
    const std::string text = tokenizer.decode(ids, skip_special);
    require(!find_invalid_utf8(text), "decoded text is UTF-8");
  }
}

}  // namespace
}  // namespace otr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace otr::fuzz;
  static const Subject subject = Subject::load();
  const std::string_view bytes = as_text(data, size);
  require(subject.tokenizer.encode(bytes).ok() == !otr::find_invalid_utf8(bytes), "any UTF-8 has ids, and nothing else has");
  const std::string text = otr::replace_invalid_utf8(bytes);
  const auto ids = subject.tokenizer.encode(text);
  require(ids.ok(), "any UTF-8 has ids");
  require_decodable(subject.tokenizer, ids.value());
  const std::string normal = subject.normalize_nfc ? otr::to_nfc(text) : text;
  if (!subject.has_added_token(text) && !subject.has_added_token(normal)) {
    require(subject.tokenizer.decode(ids.value(), false) == normal, "decoding gives the normalised text back");
    require(subject.tokenizer.encode(normal).value() == ids.value(), "normalised text has the same ids");
  }
  std::vector<int32_t> any;
  for (size_t i = 0; i + 1 < size; i += 2)
    any.push_back((data[i] | data[i + 1] << 8) % (subject.tokenizer.vocab_size() + 2) - 1);
  require_decodable(subject.tokenizer, any);
  return 0;
}
