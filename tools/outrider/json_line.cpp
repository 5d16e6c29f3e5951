#include "tools/outrider/json_line.h"

#include <string>
#include <unordered_set>
#include <vector>

#include "tools/outrider/failure.h"

namespace otr::cli {
namespace {

using nlohmann::json;

// Called for every event of the parser; refuses what the parser itself would let pass.
class Checker {
 public:
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    if (depth > kMaxLineDepth) throw BadLine("nested deeper than " + std::to_string(kMaxLineDepth) + " levels");
    if (event == Event::object_start) {
      keys_.emplace_back();
    } else if (event == Event::object_end) {
      keys_.pop_back();
    } else if (event == Event::key) {
      const std::string& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) throw BadLine("key " + json(key).dump() + " is given twice");
    }
    if (++num_events_ > kMaxLineValues) throw BadLine("more than " + std::to_string(kMaxLineValues) + " values");
    return true;
  }

 private:
  std::vector<std::unordered_set<std::string>> keys_;  // of the objects that are open
  int num_events_ = 0;
};

// The reason inside "[json.exception…] parse error at …: syntax error … - REASON; last read: '…'". What was read last is
// dropped: it may be as long as the line.
std::string reason_of(const json::exception& error) {
  std::string text = error.what();
  if (const size_t dash = text.find(" - "); dash != std::string::npos) {
    text.erase(0, dash + 3);
  } else if (const size_t bracket = text.find("] "); bracket != std::string::npos) {
    text.erase(0, bracket + 2);
  }
  const size_t last = text.find("; last read: ");
  if (last == std::string::npos) return text.substr(0, 160);
  const size_t expected = text.rfind("; expected ");
  return text.substr(0, last) + (expected == std::string::npos || expected < last ? "" : text.substr(expected));
}

}  // namespace

json parse_json_line(std::string_view text) {
  // The parser would skip a byte order mark, and takes a zero byte for the end of the text.
  if (text.starts_with("\xEF\xBB\xBF")) throw BadLine("begins with a byte order mark");
  if (text.find('\0') != std::string_view::npos) throw BadLine("holds a zero byte");
  json line;
  try {
    Checker checker;
    line = json::parse(text.begin(), text.end(),
                       [&](int depth, json::parse_event_t event, json& parsed) { return checker(depth, event, parsed); });
  } catch (const json::parse_error& error) {
    throw BadLine("invalid JSON at byte " + std::to_string(error.byte) + ": " + reason_of(error));
  } catch (const json::exception& error) {
    throw BadLine("invalid JSON: " + reason_of(error));
  }
  if (!line.is_object()) throw BadLine("not a JSON object");
  return line;
}

}  // namespace otr::cli
