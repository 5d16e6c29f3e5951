// JsonDocument: a strictly checked JSON text as a flat, read-only tree.
//
// Refused: invalid UTF-8 or a byte order mark, anything after the value, duplicate keys (compared after unescaping), nesting
// deeper than kMaxJsonDepth, more than kMaxJsonValues values. Memory is bounded by the text's size and kMaxJsonValues.
// Errors: kBadInput "<file>: JSON: <reason>", with the byte offset where the text is not JSON at all.
//
// Thread safety: immutable after parse. JsonValues and the string_views they give are borrows of the document.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace otr {

inline constexpr int kMaxJsonDepth = 64;
inline constexpr uint32_t kMaxJsonValues = 4'000'000;

enum class JsonKind : uint8_t { kNull, kBool, kInt, kUint, kDouble, kString, kArray, kObject };

std::string_view json_kind_name(JsonKind kind);  // "a string", for messages

struct JsonNodes;

// One value of a document. A default-made JsonValue stands for "no such key" and converts to false.
class JsonValue {
 public:
  JsonValue() = default;
  JsonValue(const JsonNodes* nodes, uint32_t index) : nodes_(nodes), index_(index) {}

  explicit operator bool() const { return nodes_ != nullptr; }

  // All below REQUIRE that the value exists.
  JsonKind kind() const;
  bool is(JsonKind k) const { return kind() == k; }
  bool is_null() const { return is(JsonKind::kNull); }
  std::string_view key() const;  // of a member of an object; else empty

  bool as_bool() const;                     // REQUIRES: kBool
  std::string_view as_string() const;       // REQUIRES: kString
  std::optional<int64_t> as_int() const;    // a number written as an integer and inside int64; else nothing
  std::optional<double> as_double() const;  // any number; else nothing

  // Elements or members in the order of the text; none for other kinds.
  uint32_t size() const;
  JsonValue first() const;
  JsonValue next() const;                       // the following sibling
  JsonValue find(std::string_view name) const;  // linear; missing, or not an object: no value

 private:
  const JsonNodes* nodes_ = nullptr;
  uint32_t index_ = 0;
};

class JsonDocument {
 public:
  // `label` names the text in errors.
  static Result<JsonDocument> parse(const std::string& label, std::string_view text);
  // Reads the file first; one larger than `max_bytes` is refused.
  static Result<JsonDocument> load(const std::string& path, uint64_t max_bytes);

  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();

  JsonValue root() const { return JsonValue(nodes_.get(), 0); }

 private:
  explicit JsonDocument(std::unique_ptr<JsonNodes> nodes);
  std::unique_ptr<JsonNodes> nodes_;
};

}  // namespace otr
