// TokenizerFile: the contents of a tokenizer.json, checked, in the form the Tokenizer is built from.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/base/status.h"
#include "loader/added_tokens.h"

namespace otr {

inline constexpr uint64_t kMaxTokenizerBytes = 64 << 20;
inline constexpr int32_t kMaxTokens = 1 << 21;  // ids are below

struct TokenizerFile {
  struct Merge {
    int32_t left, right, merged;
  };

  bool normalize_nfc = false;
  std::string split_pattern;
  bool ignore_merges = false;                      // a piece that is a token as a whole is not merged
  std::unordered_map<std::string, int32_t> vocab;  // byte-level spelling to id; ids differ
  std::vector<Merge> merges;                       // by rank; pairs differ
  std::vector<AddedToken> added_tokens;            // contents and ids differ; may repeat a token of the vocabulary
};

// `label` names the text in errors: kBadInput "<label>: <item>: <reason>", or kUnsupported.
Result<TokenizerFile> parse_tokenizer_file(const std::string& label, std::string_view json);

}  // namespace otr
