#include "tools/outrider/inflate_shape.h"

#include <limits>
#include <map>
#include <utility>

#include "tools/outrider/failure.h"
#include "tools/outrider/flags.h"

namespace otr::cli {

InflateShape named_shape(const std::string& name) {
  static const std::map<std::string, InflateShape> kShapes = {
      {"qwen2.5-0.5b", {896, 4864, 24, 14, 2, 64, 151936, true}},
      {"qwen2.5-1.5b", {1536, 8960, 28, 12, 2, 128, 151936, true}},
      {"qwen2.5-7b", {3584, 18944, 28, 28, 4, 128, 152064, false}},
      {"qwen2.5-32b", {5120, 27648, 64, 40, 8, 128, 152064, false}},
  };
  choice_flag("like", name, {"qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-32b"});
  return kShapes.at(name);
}

InflateShape parse_shape(const std::string& text) {
  std::map<std::string, std::string> values;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size()), equals = text.find('=', at);
    if (equals >= end) throw Failure(kExitUsage, "--shape " + text + ": must be like hidden=896,layers=24,…");
    const std::string key = text.substr(at, equals - at);
    if (!values.emplace(key, text.substr(equals + 1, end - equals - 1)).second) {
      throw Failure(kExitUsage, "--shape: " + key + " is given twice");
    }
    at = end + 1;
  }
  const auto take = [&](const char* key, int32_t most) {
    const auto node = values.extract(key);
    if (!node) throw Failure(kExitUsage, "--shape: " + std::string(key) + "=… is missing");
    const int32_t value = int_flag("shape " + std::string(key), node.mapped(), 1);
    if (value > most) throw Failure(kExitUsage, "--shape: " + std::string(key) + " is above " + std::to_string(most));
    return value;
  };
  InflateShape shape{take("hidden", kMaxHiddenSize), take("intermediate", kMaxIntermediateSize),
                     take("layers", kMaxLayers),     take("heads", kMaxHeads),
                     take("kv_heads", kMaxHeads),    take("head_dim", kMaxHeadDim),
                     take("vocab", kMaxVocabSize),   {}};
  if (const auto node = values.extract("tied")) {
    choice_flag("shape tied", node.mapped(), {"0", "1"});
    shape.tied = node.mapped() == "1";
  }
  if (!values.empty()) throw Failure(kExitUsage, "--shape: there is no '" + values.begin()->first + "'");
  return shape;
}

}  // namespace otr::cli
