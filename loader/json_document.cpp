#include "loader/json_document.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "loader/file.h"
#include "loader/item_status.h"

namespace otr {
namespace {

struct Text {
  uint32_t begin, size;  // in JsonNodes::arena
};

// Values in the order of the text; a container is followed by its subtree, so that node i's next sibling is node `end`.
struct Node {
  JsonKind kind = JsonKind::kNull;
  bool is_last = true;  // of its siblings
  uint32_t end = 0;     // one past the subtree
  uint32_t count = 0;   // elements or members
  Text key{};
  union {
    int64_t integer = 0;
    uint64_t natural;
    double real;
    Text text;
    bool truth;
  };
};

// Keeps every offset inside 32 bits.
constexpr size_t kMaxJsonBytes = size_t{1} << 30;

}  // namespace

struct JsonNodes {
  std::vector<Node> nodes;
  std::string arena;  // keys and strings, unescaped

  std::string_view view(Text t) const { return std::string_view(arena).substr(t.begin, t.size); }
};

namespace {

// Receives nlohmann's events; returning false stops the parser, with the reason in `reason`.
class Builder {
 public:
  explicit Builder(JsonNodes& out) : out_(out) {}

  bool null() { return add(JsonKind::kNull) != nullptr; }
  bool boolean(bool value) { return set(JsonKind::kBool, &Node::truth, value); }
  bool number_integer(int64_t value) { return set(JsonKind::kInt, &Node::integer, value); }
  bool number_unsigned(uint64_t value) { return set(JsonKind::kUint, &Node::natural, value); }
  bool number_float(double value, const std::string&) { return set(JsonKind::kDouble, &Node::real, value); }
  bool string(const std::string& value) { return set(JsonKind::kString, &Node::text, store(value)); }
  bool binary(const std::vector<uint8_t>&) { return false; }  // not part of JSON text

  bool start_object(size_t) { return open(JsonKind::kObject); }
  bool start_array(size_t) { return open(JsonKind::kArray); }
  bool end_object() { return keys_differ() && close(); }
  bool end_array() { return close(); }

  bool key(const std::string& name) {
    key_ = store(name);
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) {
    // "[json.exception.<kind>] parse error at line L, column C: reason; last read: '<the token, of any length>'"
    std::string_view what = error.what();
    if (const size_t bracket = what.find("] "); bracket != what.npos) what.remove_prefix(bracket + 2);
    if (what.starts_with("parse error at ")) what.remove_prefix(std::min(what.size(), what.find(": ") + 2));
    what = what.substr(0, what.find("; last read"));
    reason = printable(what) + " at byte " + std::to_string(position == 0 ? 0 : position - 1);  // position counts from 1
    return false;
  }

  std::string reason;

 private:
  Text store(const std::string& s) {
    const Text text{static_cast<uint32_t>(out_.arena.size()), static_cast<uint32_t>(s.size())};
    out_.arena += s;
    return text;
  }

  Node* add(JsonKind kind) {
    if (out_.nodes.size() >= kMaxJsonValues) {
      reason = "more than " + std::to_string(kMaxJsonValues) + " values";
      return nullptr;
    }
    if (!open_.empty()) {
      if (open_.back().last_child != 0) out_.nodes[open_.back().last_child].is_last = false;
      open_.back().last_child = static_cast<uint32_t>(out_.nodes.size());
      ++out_.nodes[open_.back().node].count;
    }
    Node& node = out_.nodes.emplace_back();
    node.kind = kind;
    node.end = static_cast<uint32_t>(out_.nodes.size());
    node.key = std::exchange(key_, Text{});
    return &node;
  }

  template <typename T>
  bool set(JsonKind kind, T Node::*field, T value) {
    Node* node = add(kind);
    if (node) node->*field = value;
    return node != nullptr;
  }

  bool open(JsonKind kind) {
    if (open_.size() >= static_cast<size_t>(kMaxJsonDepth)) {
      reason = "nested deeper than " + std::to_string(kMaxJsonDepth);
      return false;
    }
    if (!add(kind)) return false;
    open_.push_back({static_cast<uint32_t>(out_.nodes.size() - 1), 0});
    return true;
  }

  bool close() {
    out_.nodes[open_.back().node].end = static_cast<uint32_t>(out_.nodes.size());
    open_.pop_back();
    return true;
  }

  bool keys_differ() {
    std::vector<std::string_view> keys;
    const Node& object = out_.nodes[open_.back().node];
    keys.reserve(object.count);
    uint32_t child = open_.back().node + 1;
    for (uint32_t i = 0; i < object.count; ++i, child = out_.nodes[child].end) keys.push_back(out_.view(out_.nodes[child].key));
    std::sort(keys.begin(), keys.end());
    const auto twin = std::adjacent_find(keys.begin(), keys.end());
    if (twin == keys.end()) return true;
    reason = "duplicate key " + in_quotes(*twin);
    return false;
  }

  struct Open {
    uint32_t node;
    uint32_t last_child;  // 0: none yet (node 0 is the root, nobody's child)
  };

  JsonNodes& out_;
  std::vector<Open> open_;
  Text key_{};
};

const Node& node_at(const JsonNodes* nodes, uint32_t index) { return nodes->nodes[index]; }

}  // namespace

std::string_view json_kind_name(JsonKind kind) {
  switch (kind) {
    case JsonKind::kNull: return "null";
    case JsonKind::kBool: return "a boolean";
    case JsonKind::kInt:
    case JsonKind::kUint: return "an integer";
    case JsonKind::kDouble: return "a fraction";
    case JsonKind::kString: return "a string";
    case JsonKind::kArray: return "an array";
    case JsonKind::kObject: return "an object";
  }
  return "";
}

JsonKind JsonValue::kind() const { return node_at(nodes_, index_).kind; }
std::string_view JsonValue::key() const { return nodes_->view(node_at(nodes_, index_).key); }
bool JsonValue::as_bool() const { return node_at(nodes_, index_).truth; }
std::string_view JsonValue::as_string() const { return nodes_->view(node_at(nodes_, index_).text); }

std::optional<int64_t> JsonValue::as_int() const {
  const Node& node = node_at(nodes_, index_);
  if (node.kind == JsonKind::kInt) return node.integer;
  if (node.kind == JsonKind::kUint && node.natural <= static_cast<uint64_t>(INT64_MAX))
    return static_cast<int64_t>(node.natural);
  return std::nullopt;
}

std::optional<double> JsonValue::as_double() const {
  const Node& node = node_at(nodes_, index_);
  if (node.kind == JsonKind::kInt) return static_cast<double>(node.integer);
  if (node.kind == JsonKind::kUint) return static_cast<double>(node.natural);
  if (node.kind == JsonKind::kDouble) return node.real;
  return std::nullopt;
}

uint32_t JsonValue::size() const { return node_at(nodes_, index_).count; }

JsonValue JsonValue::first() const { return size() == 0 ? JsonValue() : JsonValue(nodes_, index_ + 1); }

JsonValue JsonValue::next() const {
  const Node& node = node_at(nodes_, index_);
  return node.is_last ? JsonValue() : JsonValue(nodes_, node.end);
}

JsonValue JsonValue::find(std::string_view name) const {
  if (!is(JsonKind::kObject)) return {};
  JsonValue member = first();
  while (member && member.key() != name) member = member.next();
  return member;
}

JsonDocument::JsonDocument(std::unique_ptr<JsonNodes> nodes) : nodes_(std::move(nodes)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

Result<JsonDocument> JsonDocument::parse(const std::string& label, std::string_view text) {
  if (text.size() > kMaxJsonBytes) return bad_item(label, "JSON", "more than 1 GiB");
  // nlohmann takes a zero byte for the end of the text, and skips a byte order mark.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    return bad_item(label, "JSON", "a zero byte at byte " + std::to_string(zero));
  }
  if (text.starts_with("\xef\xbb\xbf")) return bad_item(label, "JSON", "starts with a byte order mark");
  auto nodes = std::make_unique<JsonNodes>();
  Builder builder(*nodes);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) return bad_item(label, "JSON", builder.reason);
  return JsonDocument(std::move(nodes));
}

Result<JsonDocument> JsonDocument::load(const std::string& path, uint64_t max_bytes) {
  OTR_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, max_bytes));
  return parse(path, text);
}

}  // namespace otr
