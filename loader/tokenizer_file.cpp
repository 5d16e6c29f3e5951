#include "loader/tokenizer_file.h"

#include <unordered_set>

#include "loader/item_status.h"
#include "loader/json_document.h"

namespace otr {
namespace {

class Reader {
 public:
  explicit Reader(const std::string& label) : label_(label) {}

  Result<TokenizerFile> read(JsonValue root) {
    if (!root.is(JsonKind::kObject)) return bad_input(label_ + ": not a JSON object");
    const JsonValue model = root.find("model");
    OTR_RETURN_IF_ERROR(read_normalizer(root.find("normalizer")));
    OTR_RETURN_IF_ERROR(read_pre_tokenizer(root.find("pre_tokenizer")));
    OTR_RETURN_IF_ERROR(check_decoder(root.find("decoder")));
    OTR_RETURN_IF_ERROR(read_model_options(model));
    OTR_RETURN_IF_ERROR(read_vocab(model.find("vocab")));
    OTR_RETURN_IF_ERROR(read_merges(model.find("merges")));
    OTR_RETURN_IF_ERROR(read_added_tokens(root.find("added_tokens")));
    return std::move(file_);
  }

 private:
  Status bad(std::string_view item, std::string_view reason) const { return bad_item(label_, item, reason); }
  Status refuse(std::string_view item, std::string_view reason) const { return unsupported_item(label_, item, reason); }

  // The "type" of a component. A missing or null component is the type "null".
  Result<std::string_view> type_of(std::string_view item, JsonValue component) const {
    if (!component || component.is_null()) return std::string_view("null");
    const JsonValue type = component.find("type");
    if (!type || !type.is(JsonKind::kString)) return bad(item, "has no type");
    return type.as_string();
  }

  // A true-or-false option; missing or null means `fallback`.
  Result<bool> flag(std::string_view item, JsonValue object, std::string_view key, bool fallback) const {
    const JsonValue value = object.find(key);
    if (!value || value.is_null()) return fallback;
    if (!value.is(JsonKind::kBool)) return bad(item, std::string(key) + " must be true or false");
    return value.as_bool();
  }

  Status expect_flag(std::string_view item, JsonValue object, std::string_view key, bool fallback, bool wanted) const {
    OTR_ASSIGN_OR_RETURN(const bool found, flag(item, object, key, fallback));
    if (found != wanted) return refuse(item, std::string(key) + (found ? " true" : " false") + " is not supported");
    return {};
  }

  Status read_normalizer(JsonValue normalizer) {
    OTR_ASSIGN_OR_RETURN(const std::string_view type, type_of("normalizer", normalizer));
    if (type != "NFC" && type != "null") return refuse("normalizer", in_quotes(type) + " is not supported (NFC and null are)");
    file_.normalize_nfc = type == "NFC";
    return {};
  }

  // Sequence[Split(Regex, Isolated), ByteLevel] and nothing else.
  Status read_pre_tokenizer(JsonValue pre) {
    constexpr std::string_view kItem = "pre_tokenizer";
    constexpr std::string_view kWanted = " is not supported (a Sequence of Split and ByteLevel is)";
    OTR_ASSIGN_OR_RETURN(const std::string_view type, type_of(kItem, pre));
    if (type != "Sequence") return refuse(kItem, in_quotes(type) + std::string(kWanted));
    const JsonValue parts = pre.find("pretokenizers");
    if (!parts || !parts.is(JsonKind::kArray)) return bad(kItem, "pretokenizers is missing or not an array");
    std::string types;
    for (JsonValue part = parts.first(); part; part = part.next()) {
      OTR_ASSIGN_OR_RETURN(const std::string_view part_type, type_of(kItem, part));
      types += (types.empty() ? "" : ", ") + printable(part_type);
      if (part_type == "Split") OTR_RETURN_IF_ERROR(read_split(part));
      else if (part_type == "ByteLevel") OTR_RETURN_IF_ERROR(check_byte_level(part));
      else return refuse(kItem, in_quotes(part_type) + std::string(kWanted));
    }
    if (types != "Split, ByteLevel") return refuse(kItem, "the sequence '" + types + "'" + std::string(kWanted));
    return {};
  }

  Status read_split(JsonValue split) {
    constexpr std::string_view kItem = "pre_tokenizer Split";
    const JsonValue pattern = split.find("pattern");
    if (!pattern || !pattern.is(JsonKind::kObject)) return bad(kItem, "pattern is missing or not an object");
    const JsonValue regex = pattern.find("Regex");
    if (!regex) return refuse(kItem, "a pattern other than Regex is not supported");
    if (!regex.is(JsonKind::kString)) return bad(kItem, "Regex is not a string");
    const JsonValue behavior = split.find("behavior");
    if (!behavior || !behavior.is(JsonKind::kString)) return bad(kItem, "behavior is missing or not a string");
    if (behavior.as_string() != "Isolated") {
      return refuse(kItem, "behavior " + in_quotes(behavior.as_string()) + " is not supported (Isolated is)");
    }
    file_.split_pattern = regex.as_string();
    return expect_flag(kItem, split, "invert", false, false);
  }

  Status check_byte_level(JsonValue byte_level) const {
    constexpr std::string_view kItem = "pre_tokenizer ByteLevel";
    OTR_RETURN_IF_ERROR(expect_flag(kItem, byte_level, "add_prefix_space", true, false));
    return expect_flag(kItem, byte_level, "use_regex", true, false);
  }

  Status check_decoder(JsonValue decoder) const {
    OTR_ASSIGN_OR_RETURN(const std::string_view type, type_of("decoder", decoder));
    if (type != "ByteLevel") return refuse("decoder", in_quotes(type) + " is not supported (ByteLevel is)");
    return {};
  }

  Status read_model_options(JsonValue model) {
    if (!model || !model.is(JsonKind::kObject)) return bad("model", "missing or not an object");
    OTR_ASSIGN_OR_RETURN(const std::string_view type, type_of("model", model));
    if (type != "BPE") return refuse("model", in_quotes(type) + " is not supported (BPE is)");
    for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const JsonValue affix = model.find(key);
      if (affix && !affix.is_null() && !(affix.is(JsonKind::kString) && affix.as_string().empty())) {
        return refuse("model", std::string(key) + " is not supported");
      }
    }
    const JsonValue dropout = model.find("dropout");
    if (dropout && !dropout.is_null() && dropout.as_double() != 0.0) return refuse("model", "dropout is not supported");
    // unk_token and fuse_unk play no role: where they would, encode fails and names the byte.
    OTR_RETURN_IF_ERROR(expect_flag("model", model, "byte_fallback", false, false));
    OTR_ASSIGN_OR_RETURN(file_.ignore_merges, flag("model", model, "ignore_merges", false));
    return {};
  }

  Result<int32_t> read_id(std::string_view item, JsonValue id) const {
    const auto number = id ? id.as_int() : std::nullopt;
    if (!number) return bad(item, "its id is missing or not an integer");
    if (*number < 0 || *number >= kMaxTokens) {
      return bad(item, "id " + std::to_string(*number) + " is outside 0.." + std::to_string(kMaxTokens - 1));
    }
    return static_cast<int32_t>(*number);
  }

  Status read_vocab(JsonValue vocab) {
    if (!vocab || !vocab.is(JsonKind::kObject)) return bad("model.vocab", "missing or not an object");
    file_.vocab.reserve(vocab.size());
    used_ids_.assign(static_cast<size_t>(kMaxTokens), false);
    for (JsonValue entry = vocab.first(); entry; entry = entry.next()) {
      const std::string item = "model.vocab " + in_quotes(entry.key());
      OTR_ASSIGN_OR_RETURN(const int32_t id, read_id(item, entry));
      if (used_ids_[static_cast<size_t>(id)]) return bad(item, "id " + std::to_string(id) + " is another token's too");
      used_ids_[static_cast<size_t>(id)] = true;
      file_.vocab.emplace(entry.key(), id);
    }
    return {};
  }

  // Both spellings of a merge: "left right", or ["left", "right"].
  Status read_merges(JsonValue merges) {
    if (!merges || !merges.is(JsonKind::kArray)) return bad("model.merges", "missing or not an array");
    file_.merges.reserve(merges.size());
    std::unordered_set<uint64_t> seen;
    for (JsonValue merge = merges.first(); merge; merge = merge.next()) {
      const std::string item = "model.merges[" + std::to_string(file_.merges.size()) + "]";
      std::string_view left, right;
      if (merge.is(JsonKind::kString)) {
        const std::string_view line = merge.as_string();
        const size_t space = line.find(' ');
        if (space == line.npos || line.find(' ', space + 1) != line.npos) {
          return bad(item, in_quotes(line) + " is not two tokens and one space");
        }
        left = line.substr(0, space);
        right = line.substr(space + 1);
      } else if (merge.is(JsonKind::kArray) && merge.size() == 2 && merge.first().is(JsonKind::kString) &&
                 merge.first().next().is(JsonKind::kString)) {
        left = merge.first().as_string();
        right = merge.first().next().as_string();
      } else {
        return bad(item, "neither a string nor an array of two strings");
      }
      TokenizerFile::Merge& ids = file_.merges.emplace_back();
      OTR_ASSIGN_OR_RETURN(ids.left, id_in_vocab(item, left));
      OTR_ASSIGN_OR_RETURN(ids.right, id_in_vocab(item, right));
      OTR_ASSIGN_OR_RETURN(ids.merged, id_in_vocab(item, std::string(left) + std::string(right)));
      if (!seen.insert(static_cast<uint64_t>(ids.left) << 32 | static_cast<uint64_t>(ids.right)).second) {
        return bad(item, "the pair " + in_quotes(left) + ", " + in_quotes(right) + " occurs before");
      }
    }
    return {};
  }

  Result<int32_t> id_in_vocab(std::string_view item, std::string_view token) const {
    const auto at = file_.vocab.find(std::string(token));
    if (at == file_.vocab.end()) return bad(item, "token " + in_quotes(token) + " is not in the vocabulary");
    return at->second;
  }

  Status read_added_tokens(JsonValue tokens) {
    if (!tokens || tokens.is_null()) return {};
    if (!tokens.is(JsonKind::kArray)) return bad("added_tokens", "not an array");
    std::unordered_set<std::string_view> contents;
    for (JsonValue entry = tokens.first(); entry; entry = entry.next()) {
      const JsonValue content = entry.find("content");
      if (!content || !content.is(JsonKind::kString)) {
        return bad("added_tokens[" + std::to_string(contents.size()) + "]", "content is missing or not a string");
      }
      if (!contents.insert(content.as_string()).second) {
        return bad("added_tokens " + in_quotes(content.as_string()), "occurs twice");
      }
      OTR_RETURN_IF_ERROR(read_added_token(entry, content.as_string()));
    }
    return {};
  }

  Status read_added_token(JsonValue entry, std::string_view content) {
    const std::string item = "added_tokens " + in_quotes(content);
    if (content.empty() || content.size() > kMaxAddedTokenBytes) {
      return bad(item, std::to_string(content.size()) + " bytes are outside 1.." + std::to_string(kMaxAddedTokenBytes));
    }
    AddedToken token{std::string(content)};
    OTR_ASSIGN_OR_RETURN(token.id, read_id(item, entry.find("id")));
    for (const std::string_view key : {"single_word", "lstrip", "rstrip"}) {
      OTR_RETURN_IF_ERROR(expect_flag(item, entry, key, false, false));
    }
    OTR_ASSIGN_OR_RETURN(token.special, flag(item, entry, "special", false));
    OTR_ASSIGN_OR_RETURN(token.normalized, flag(item, entry, "normalized", !token.special));
    const auto at = file_.vocab.find(token.content);
    const bool repeats_vocab = at != file_.vocab.end();
    if (repeats_vocab && at->second != token.id) {
      return bad(item, "id " + std::to_string(token.id) + ", but the vocabulary says " + std::to_string(at->second));
    }
    if (!repeats_vocab && used_ids_[static_cast<size_t>(token.id)]) {
      return bad(item, "id " + std::to_string(token.id) + " is another token's too");
    }
    used_ids_[static_cast<size_t>(token.id)] = true;
    file_.added_tokens.push_back(std::move(token));
    return {};
  }

  const std::string& label_;
  TokenizerFile file_;
  std::vector<bool> used_ids_;
};

}  // namespace

Result<TokenizerFile> parse_tokenizer_file(const std::string& label, std::string_view json) {
  OTR_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(label, json));
  return Reader(label).read(document.root());
}

}  // namespace otr
