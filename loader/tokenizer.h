// Tokenizer: byte-level BPE from a Hugging Face tokenizer.json, as Qwen2, Qwen2.5 and Qwen3 use it.
//
// encode: added tokens are cut out first (special ones too), the text between is NFC-normalised, cut by the file's own regular
// expression, and every piece is merged byte pair by byte pair. No token is ever added (no BOS, no template): the file's
// post-processor, truncation and padding play no role. decode: the tokens' bytes, as valid UTF-8.
// The result equals that of the `tokenizers` package (add_special_tokens = False; from 0.23 on, which gives an added token that
// is matched in normalised text back in its normal form, as this does) up to the age of tables: characters newer than PCRE2's
// Unicode have no category, and marks newer than Unicode 9 are put in canonical order, as that package does not.
//
// Only tokenizer.json is read, as by that package: not tokenizer_config.json with its added_tokens_decoder, nor what
// transformers' AutoTokenizer makes anew for some models.
//
// Anything in the file that would change the result and is not known here is refused by name (kUnsupported); contents that are
// wrong are kBadInput "<file>: <item>: <reason>".
// Thread safety: immutable after load; every const function may be called from any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace otr {

class Tokenizer {
 public:
  // `path` is the tokenizer.json itself, not its folder.
  static Result<Tokenizer> load(const std::string& path);
  // The same from the contents of the file; `label` stands for its name in errors.
  static Result<Tokenizer> parse(const std::string& label, std::string_view json);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Errors: invalid UTF-8 or more than 16 MiB of it (kInvalidArgument), a byte the vocabulary cannot express, or a text on
  // which the regular expression exceeds its step limit (both kBadInput). Time is O(n log n) for Qwen's expressions.
  Result<std::vector<int32_t>> encode(std::string_view utf8) const;

  // Invalid UTF-8 becomes U+FFFD, one for every maximal invalid part. Ids that name no token are skipped, and with
  // `skip_special` special tokens too.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // One more than the highest id. A model's vocab_size may be larger (padding).
  int32_t vocab_size() const;

  // The id of a token by its text: added tokens as written, others in the file's byte-level spelling.
  std::optional<int32_t> id_of(std::string_view token) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace otr
