#include "loader/tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include "loader/added_tokens.h"
#include "loader/bpe_model.h"
#include "loader/byte_level.h"
#include "loader/file.h"
#include "loader/item_status.h"
#include "loader/split_pattern.h"
#include "loader/tokenizer_file.h"
#include "loader/utf8_text.h"

namespace otr {
namespace {

// As many bytes as a context may have positions; pieces and merging need some 50 bytes a byte of text.
constexpr size_t kMaxTextBytes = 16 << 20;

// Plain text of a token: what its spelling stands for; a spelling with any other character stands for itself.
std::string bytes_of(const std::string& spelling) { return byte_level_bytes(spelling).value_or(spelling); }

}  // namespace

struct Tokenizer::Impl {
  struct Token {
    std::string bytes;
    bool exists = false;
    bool special = false;
  };

  explicit Impl(SplitPattern pattern) : split_pattern(std::move(pattern)) {}

  std::string label;
  bool normalize_nfc = false;
  bool ignore_merges = false;
  AddedTokenMatcher added_before;  // matched in the text as it is
  AddedTokenMatcher added_after;   // matched in normalised text
  SplitPattern split_pattern;
  BpeModel model;
  std::unordered_map<std::string, int32_t> id_by_spelling;
  std::unordered_map<std::string, int32_t> id_by_added;
  std::vector<Token> tokens;  // by id

  void add_token(const std::string& spelling, int32_t id, bool special) {
    if (tokens.size() <= static_cast<size_t>(id)) tokens.resize(static_cast<size_t>(id) + 1);
    tokens[static_cast<size_t>(id)] = {bytes_of(spelling), true, special};
  }

  Status fill(TokenizerFile file);
  Status encode_plain(std::string_view text, BpeModel::Workspace& workspace, std::vector<int32_t>& ids) const;
};

Status Tokenizer::Impl::fill(TokenizerFile file) {
  normalize_nfc = file.normalize_nfc;
  ignore_merges = file.ignore_merges;
  for (const auto& [spelling, id] : file.vocab) {
    add_token(spelling, id, false);
    const std::optional<std::string> bytes = byte_level_bytes(spelling);
    if (bytes && bytes->size() == 1) model.set_byte(static_cast<uint8_t>((*bytes)[0]), id);
  }
  for (const TokenizerFile::Merge& merge : file.merges) model.add_merge(merge.left, merge.right, merge.merged);
  std::vector<AddedToken> before, after;
  std::unordered_map<std::string, int32_t> normalised;
  for (AddedToken& token : file.added_tokens) {
    id_by_added.emplace(token.content, token.id);
    if (token.normalized && normalize_nfc) token.content = to_nfc(token.content);
    add_token(token.content, token.id, token.special);
    if (!token.normalized) {
      before.push_back(std::move(token));
      continue;
    }
    if (!normalised.emplace(token.content, token.id).second) {
      return bad_item(label, "added_tokens " + in_quotes(token.content), "two tokens have this normal form");
    }
    after.push_back(std::move(token));
  }
  added_before = AddedTokenMatcher(std::move(before));
  added_after = AddedTokenMatcher(std::move(after));
  id_by_spelling = std::move(file.vocab);
  return {};
}

// Text without added tokens: pieces, then merges.
Status Tokenizer::Impl::encode_plain(std::string_view text, BpeModel::Workspace& workspace, std::vector<int32_t>& ids) const {
  std::vector<std::string_view> pieces;
  if (const Status status = split_pattern.split(text, pieces); !status.ok()) {
    return {status.code(), item_message(label, "pre_tokenizer Split", status.message())};
  }
  for (const std::string_view piece : pieces) {
    if (ignore_merges) {
      const auto whole = id_by_spelling.find(byte_level_spelling(piece));
      if (whole != id_by_spelling.end()) {
        ids.push_back(whole->second);
        continue;
      }
    }
    if (const auto byte = model.encode(piece, workspace, ids)) {
      return bad_item(label, "model.vocab", "no token for byte " + std::to_string(*byte) + " of the text");
    }
  }
  return {};
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  OTR_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxTokenizerBytes));
  return parse(path, text);
}

Result<Tokenizer> Tokenizer::parse(const std::string& label, std::string_view json) {
  OTR_ASSIGN_OR_RETURN(TokenizerFile file, parse_tokenizer_file(label, json));
  Result<SplitPattern> pattern = SplitPattern::compile(file.split_pattern);
  if (!pattern.ok()) {
    return Status(pattern.status().code(), item_message(label, "pre_tokenizer Split", pattern.status().message()));
  }
  auto impl = std::make_unique<Impl>(std::move(pattern.value()));
  impl->label = label;
  OTR_RETURN_IF_ERROR(impl->fill(std::move(file)));
  return Tokenizer(std::move(impl));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view utf8) const {
  if (utf8.size() > kMaxTextBytes) return invalid_argument("text: " + std::to_string(utf8.size()) + " bytes are too long");
  if (const auto at = find_invalid_utf8(utf8)) return invalid_argument("text: invalid UTF-8 at byte " + std::to_string(*at));
  std::vector<int32_t> ids;
  BpeModel::Workspace workspace;
  for (const AddedTokenMatcher::Part& outer : impl_->added_before.split(utf8)) {
    if (outer.id >= 0) {
      ids.push_back(outer.id);
      continue;
    }
    const std::string text = impl_->normalize_nfc ? to_nfc(outer.text) : std::string(outer.text);
    for (const AddedTokenMatcher::Part& inner : impl_->added_after.split(text)) {
      if (inner.id >= 0) ids.push_back(inner.id);
      else OTR_RETURN_IF_ERROR(impl_->encode_plain(inner.text, workspace, ids));
    }
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) continue;
    const Impl::Token& token = impl_->tokens[static_cast<size_t>(id)];
    if (token.exists && !(skip_special && token.special)) bytes += token.bytes;
  }
  return replace_invalid_utf8(bytes);
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->tokens.size()); }

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  const std::string key(token);
  if (const auto at = impl_->id_by_added.find(key); at != impl_->id_by_added.end()) return at->second;
  if (const auto at = impl_->id_by_spelling.find(key); at != impl_->id_by_spelling.end()) return at->second;
  return std::nullopt;
}

}  // namespace otr
