#include "loader/model_config.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "kernels/base/elementary64.h"
#include "loader/file.h"
#include "loader/item_status.h"
#include "loader/json_document.h"

namespace otr {
namespace {

constexpr uint64_t kMaxConfigBytes = 16 << 20;

// Reads keys of one object; null counts as missing, unless asked for. The first error stays in `status`.
class KeyReader {
 public:
  KeyReader(const std::string& file, JsonValue object) : file_(file), object_(object) {}

  Status status;

  JsonValue find(std::string_view key) const {
    const JsonValue value = object_.find(key);
    return value && !value.is_null() ? value : JsonValue();
  }

  bool is_null(std::string_view key) const {
    const JsonValue value = object_.find(key);
    return value && value.is_null();
  }

  int32_t size(std::string_view key, int32_t fallback, int32_t most) {
    const JsonValue value = find(key);
    if (!value) return fallback;
    const auto number = value.as_int();
    if (!number) {
      fail(key,
           value.is(JsonKind::kUint) ? "too large" : "must be an integer, not " + std::string(json_kind_name(value.kind())));
    } else if (*number <= 0 || *number > most) {
      fail(key, std::to_string(*number) + " is outside 1.." + std::to_string(most));
    } else {
      return static_cast<int32_t>(*number);
    }
    return 0;
  }

  double real(std::string_view key, double fallback, RealRange range) { return real(key, fallback, range.least, range.most); }
  // A number in [least, most].
  double real(std::string_view key, double fallback, double least, double most) {
    const JsonValue value = find(key);
    if (!value) return fallback;
    const auto number = value.as_double();
    if (!number) {
      fail(key, "must be a number, not " + std::string(json_kind_name(value.kind())));
    } else if (!(*number >= least && *number <= most)) {
      char text[128];
      std::snprintf(text, sizeof text, "%g is outside %g..%g", *number, least, most);
      fail(key, text);
    } else {
      return *number;
    }
    return fallback;
  }

  bool flag(std::string_view key, bool fallback) {
    const JsonValue value = find(key);
    if (!value) return fallback;
    if (value.is(JsonKind::kBool)) return value.as_bool();
    fail(key, "must be true or false, not " + std::string(json_kind_name(value.kind())));
    return fallback;
  }

  std::string text(std::string_view key, std::string_view fallback) {
    const JsonValue value = find(key);
    if (!value) return std::string(fallback);
    if (value.is(JsonKind::kString)) return std::string(value.as_string());
    fail(key, "must be a string, not " + std::string(json_kind_name(value.kind())));
    return std::string(fallback);
  }

  void fail(std::string_view key, std::string_view reason) {
    if (status.ok()) status = bad_item(file_, key, reason);
  }
  void refuse(std::string_view key, std::string_view reason) {
    if (status.ok()) status = unsupported_item(file_, key, reason);
  }

  const std::string& file() const { return file_; }

 private:
  const std::string& file_;
  JsonValue object_;
};

void read_architecture(KeyReader& keys, ModelConfig& config) {
  const std::string type = keys.text("model_type", "");
  constexpr Architecture kKnown[] = {Architecture::kQwen2, Architecture::kQwen3, Architecture::kQwen3Moe};
  const auto known =
      std::find_if(std::begin(kKnown), std::end(kKnown), [&](Architecture a) { return type == architecture_name(a); });
  if (known != std::end(kKnown)) {
    config.architecture = *known;
  } else if (type.empty()) {
    keys.fail("model_type", "missing");
  } else if (type.ends_with("_moe")) {
    keys.refuse("model_type", in_quotes(type) + " is a mixture of experts of a kind that is not supported (qwen3_moe is)");
  } else {
    keys.refuse("model_type", in_quotes(type) + " is not supported (qwen2, qwen3 and qwen3_moe are)");
  }
  config.qkv_bias = config.architecture == Architecture::kQwen2;
  config.qk_norm = config.architecture != Architecture::kQwen2;
}

void read_sizes(KeyReader& keys, ModelConfig& config) {
  const bool has_experts = config.architecture == Architecture::kQwen3Moe;  // whose defaults are its own
  config.vocab_size = keys.size("vocab_size", 151936, kMaxVocabSize);
  config.hidden_size = keys.size("hidden_size", has_experts ? 2048 : 4096, kMaxHiddenSize);
  config.intermediate_size = keys.size("intermediate_size", has_experts ? 6144 : 22016, kMaxIntermediateSize);
  config.num_layers = keys.size("num_hidden_layers", has_experts ? 24 : 32, kMaxLayers);
  config.num_heads = keys.size("num_attention_heads", 32, kMaxHeads);
  config.max_position_embeddings = keys.size("max_position_embeddings", 32768, kMaxPositions);
  if (!keys.status.ok()) return;

  // transformers' default is for a missing key; null means one KV head for every head.
  const int32_t kv_heads = keys.is_null("num_key_value_heads") ? config.num_heads : has_experts ? 4 : 32;
  config.num_kv_heads = keys.size("num_key_value_heads", kv_heads, kMaxHeads);
  if (config.num_kv_heads > 0 && config.num_heads % config.num_kv_heads != 0) {
    keys.fail("num_key_value_heads",
              std::to_string(config.num_kv_heads) + " does not divide num_attention_heads " + std::to_string(config.num_heads));
  }
  const bool is_derived = config.architecture != Architecture::kQwen3 && !keys.find("head_dim");
  if (is_derived && config.hidden_size % config.num_heads != 0) {
    keys.fail("num_attention_heads", "does not divide hidden_size, and head_dim is missing");
  }
  config.head_dim = keys.size("head_dim", is_derived ? config.hidden_size / config.num_heads : 128, kMaxHeadDim);
  if (config.head_dim > kMaxHeadDim) {
    keys.fail("head_dim",
              std::to_string(config.head_dim) + " (hidden_size / num_attention_heads) is above " + std::to_string(kMaxHeadDim));
  }
  if (config.head_dim % 2 != 0) keys.fail("head_dim", std::to_string(config.head_dim) + " is odd");
}

// Layers are sparse that mlp_only_layers does not name, each decoder_sparse_step-th of all.
void read_experts(KeyReader& keys, ModelConfig& config) {
  if (config.architecture != Architecture::kQwen3Moe || !keys.status.ok()) return;
  ExpertsConfig experts;
  constexpr const char* kNewer = "num_local_experts";  // as transformers 5 spells it
  experts.num_experts = keys.size(keys.find("num_experts") ? "num_experts" : kNewer, 128, kMaxExperts);
  experts.experts_per_token = keys.size("num_experts_per_tok", 8, kMaxExperts);
  experts.intermediate_size = keys.size("moe_intermediate_size", 768, kMaxIntermediateSize);
  experts.normalised = keys.flag("norm_topk_prob", false);
  const int32_t step = keys.size("decoder_sparse_step", 1, kMaxLayers);
  if (!keys.status.ok()) return;
  if (experts.experts_per_token > experts.num_experts) {
    keys.fail("num_experts_per_tok",
              std::to_string(experts.experts_per_token) + " is above num_experts " + std::to_string(experts.num_experts));
  }
  if (int64_t{experts.num_experts} * config.num_layers > kMaxExpertsOfLayers) {
    keys.fail("num_experts", std::to_string(experts.num_experts) + " in " + std::to_string(config.num_layers) +
                                 " layers are more than " + std::to_string(kMaxExpertsOfLayers) + " in all");
  }
  std::vector<bool> dense(static_cast<size_t>(config.num_layers));
  for (int32_t layer = 0; layer < config.num_layers; ++layer) dense[static_cast<size_t>(layer)] = (layer + 1) % step != 0;
  const JsonValue named = keys.find("mlp_only_layers");
  if (named && !named.is(JsonKind::kArray)) {
    return keys.fail("mlp_only_layers", "must be a list, not " + std::string(json_kind_name(named.kind())));
  }
  for (JsonValue layer = named ? named.first() : JsonValue(); layer; layer = layer.next()) {
    const auto number = layer.as_int();
    if (!number || *number < 0) return keys.fail("mlp_only_layers", "holds something other than layers");
    if (*number < config.num_layers) dense[static_cast<size_t>(*number)] = true;
  }
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (dense[static_cast<size_t>(layer)]) experts.dense_layers.push_back(layer);
  }
  if (experts.dense_layers.size() < dense.size()) config.experts = std::move(experts);
}

// 0.1 m ln s + 1, the attention factor that YaRN's authors recommend.
double yarn_mscale(double factor, double m) { return factor <= 1 ? 1.0 : 0.1 * m * log64(factor) + 1.0; }

// `keys`: the top level's, where transformers looks for the original context too, and takes that one.
YarnScaling read_yarn(KeyReader& keys, KeyReader& rope, const ModelConfig& config) {
  YarnScaling yarn;
  if (!rope.find("factor")) rope.fail("factor", "missing");
  yarn.factor = rope.real("factor", 1, kYarnFactorRange);
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const int32_t outer = keys.size(kOriginal, config.max_position_embeddings, kMaxPositions);
  yarn.original_max_positions = rope.size(kOriginal, outer, kMaxPositions);
  if (keys.find(kOriginal) && rope.status.ok() && yarn.original_max_positions != outer) {
    keys.fail(kOriginal,
              std::to_string(outer) + " is not yarn's own, " + std::to_string(yarn.original_max_positions) + "; remove one");
  }
  yarn.beta_fast = rope.real("beta_fast", 32, kYarnBetaRange);
  yarn.beta_slow = rope.real("beta_slow", 1, kYarnBetaRange);
  if (yarn.beta_slow > yarn.beta_fast) rope.fail("beta_slow", "is above beta_fast");
  yarn.truncate = rope.flag("truncate", true);
  const double mscale = rope.real("mscale", 0, 0, 1e3), mscale_all_dim = rope.real("mscale_all_dim", 0, 0, 1e3);
  const double recommended = mscale > 0 && mscale_all_dim > 0
                                 ? yarn_mscale(yarn.factor, mscale) / yarn_mscale(yarn.factor, mscale_all_dim)
                                 : yarn_mscale(yarn.factor, 1);
  yarn.attention_factor = rope.real("attention_factor", recommended, 1e-3, 1e3);
  return yarn;
}

struct Rope {
  double theta = 0;
  std::optional<YarnScaling> yarn;

  bool operator==(const Rope&) const = default;
};

// One of transformers' two spellings: rope_parameters, or the older rope_scaling beside a top-level rope_theta, here `theta`.
// Nothing where it is missing or empty, or refused.
std::optional<Rope> read_rope_object(KeyReader& keys, std::string_view name, double theta, const ModelConfig& config) {
  const JsonValue value = keys.find(name);
  if (!value) return {};
  if (!value.is(JsonKind::kObject)) {
    keys.fail(name, "must be an object, not " + std::string(json_kind_name(value.kind())));
    return {};
  }
  if (value.size() == 0) return {};
  for (JsonValue member = value.first(); member; member = member.next()) {  // a kind of layer's own, or a kind of position's
    if (!member.is(JsonKind::kObject) && member.key() != "mrope_section") continue;
    keys.refuse(name, in_quotes(member.key()) + " is not supported: rope is the same for all layers and positions");
    return {};
  }
  KeyReader rope(keys.file(), value);
  Rope read;
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (type == "yarn") {
    read.yarn = read_yarn(keys, rope, config);
  } else if (rope.status.ok() && type != "default") {
    keys.refuse(name, "rope type " + in_quotes(type) + " is not supported (default and yarn are)");
  }
  if (rope.real("partial_rotary_factor", 1, 0, 1) != 1) keys.refuse(name, "a partial_rotary_factor is not supported");
  read.theta = rope.real("rope_theta", theta, kRopeThetaRange);
  if (keys.status.ok()) keys.status = rope.status;
  return read;
}

void read_rope(KeyReader& keys, ModelConfig& config) {
  config.rope_theta = keys.real("rope_theta", 10000, kRopeThetaRange);
  const std::optional<Rope> older = read_rope_object(keys, "rope_scaling", config.rope_theta, config);
  const std::optional<Rope> newer = read_rope_object(keys, "rope_parameters", config.rope_theta, config);
  if (older && newer && *older != *newer) keys.fail("rope_scaling", "says something else than rope_parameters; remove one");
  if (const auto& rope = older ? older : newer) {
    config.rope_theta = rope->theta;
    config.yarn = rope->yarn;
  }
  if (config.yarn && config.rope_theta <= 1) keys.fail("rope_theta", "must be above 1 with rope type yarn");
}

// What would change the forward pass and is not known to it.
void refuse_variants(KeyReader& keys, const ModelConfig& config) {
  if (const std::string act = keys.text("hidden_act", "silu"); act != "silu") {
    keys.refuse("hidden_act", in_quotes(act) + " is not supported (silu is)");
  }
  if (keys.flag("use_sliding_window", false)) keys.refuse("use_sliding_window", "sliding windows are not supported");
  if (config.qk_norm && keys.flag("attention_bias", false)) {
    keys.refuse("attention_bias",
                "attention biases are not supported for " + std::string(architecture_name(config.architecture)));
  }
  // Null too: transformers takes that for false.
  if (keys.is_null("is_causal") || !keys.flag("is_causal", true)) {
    keys.refuse("is_causal", "attention to later tokens is not supported");
  }
  if (keys.find("transformers_weights") && keys.text("transformers_weights", "") != "model.safetensors") {
    keys.refuse("transformers_weights", "weights in a file of another name are not supported");
  }
  if (keys.find("quantization_config")) keys.refuse("quantization_config", "quantised checkpoints are not supported");
  const JsonValue layer_types = keys.find("layer_types");
  if (!layer_types) return;
  for (JsonValue type = layer_types.first(); type; type = type.next()) {
    if (!type.is(JsonKind::kString)) return keys.fail("layer_types", "holds something other than strings");
    if (type.as_string() != "full_attention") {
      return keys.refuse("layer_types", in_quotes(type.as_string()) + " is not supported (full_attention is)");
    }
  }
}

// eos_token_id: a number or a list. Nothing is read where the key is missing or null.
void read_eos(KeyReader& keys, ModelConfig& config) {
  constexpr std::string_view kKey = "eos_token_id";
  const JsonValue value = keys.find(kKey);
  if (!value) return;
  config.eos_ids.clear();
  const bool is_list = value.is(JsonKind::kArray);
  for (JsonValue id = is_list ? value.first() : value; id; id = is_list ? id.next() : JsonValue()) {
    const auto number = id.as_int();
    if (!number)
      return keys.fail(kKey, "must be an integer or a list of integers, not " + std::string(json_kind_name(id.kind())));
    if (*number < 0 || *number >= config.vocab_size) {
      return keys.fail(kKey, std::to_string(*number) + " is outside the vocabulary of " + std::to_string(config.vocab_size));
    }
    config.eos_ids.push_back(static_cast<int32_t>(*number));
  }
  std::sort(config.eos_ids.begin(), config.eos_ids.end());
  config.eos_ids.erase(std::unique(config.eos_ids.begin(), config.eos_ids.end()), config.eos_ids.end());
}

Status check_object(const std::string& file, const JsonDocument& document) {
  return document.root().is(JsonKind::kObject) ? Status() : bad_input(file + ": not a JSON object");
}

Status read_config(const std::string& file, const JsonDocument& document, ModelConfig& config) {
  OTR_RETURN_IF_ERROR(check_object(file, document));
  KeyReader keys(file, document.root());
  read_architecture(keys, config);
  read_sizes(keys, config);
  read_experts(keys, config);
  config.rms_norm_eps = keys.real("rms_norm_eps", 1e-6, 1e-30, 0.1);
  config.tie_word_embeddings = keys.flag("tie_word_embeddings", false);
  read_rope(keys, config);
  refuse_variants(keys, config);
  read_eos(keys, config);
  return keys.status;
}

Status read_generation_config(const std::string& file, const JsonDocument& document, ModelConfig& config) {
  OTR_RETURN_IF_ERROR(check_object(file, document));
  KeyReader keys(file, document.root());
  read_eos(keys, config);
  return keys.status;
}

}  // namespace

std::string_view architecture_name(Architecture architecture) {
  switch (architecture) {
    case Architecture::kQwen2: return "qwen2";
    case Architecture::kQwen3: return "qwen3";
    case Architecture::kQwen3Moe: return "qwen3_moe";
  }
  __builtin_unreachable();
}

Result<ModelConfig> load_model_config(const std::string& folder) {
  ModelConfig config;
  const std::string path = join_path(folder, "config.json");
  OTR_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::load(path, kMaxConfigBytes));
  OTR_RETURN_IF_ERROR(read_config(path, document, config));
  const std::string generation_path = join_path(folder, "generation_config.json");
  if (!path_exists(generation_path)) return config;
  OTR_ASSIGN_OR_RETURN(const JsonDocument generation, JsonDocument::load(generation_path, kMaxConfigBytes));
  OTR_RETURN_IF_ERROR(read_generation_config(generation_path, generation, config));
  return config;
}

Result<ModelConfig> parse_model_config(const std::string& label, std::string_view config_text,
                                       std::string_view generation_text) {
  ModelConfig config;
  const std::string file = label + ": config.json", generation_file = label + ": generation_config.json";
  OTR_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(file, config_text));
  OTR_RETURN_IF_ERROR(read_config(file, document, config));
  if (generation_text.empty()) return config;
  OTR_ASSIGN_OR_RETURN(const JsonDocument generation, JsonDocument::parse(generation_file, generation_text));
  OTR_RETURN_IF_ERROR(read_generation_config(generation_file, generation, config));
  return config;
}

bool ModelConfig::has_experts(int32_t layer) const {
  return experts && !std::binary_search(experts->dense_layers.begin(), experts->dense_layers.end(), layer);
}

int64_t ModelConfig::token_intermediate_size(int32_t layer) const {
  return has_experts(layer) ? int64_t{experts->experts_per_token} * experts->intermediate_size : intermediate_size;
}

int64_t context_limit(const ModelConfig& config) {
  if (!config.yarn) return config.max_position_embeddings;
  const double stretched = config.yarn->factor * static_cast<double>(config.yarn->original_max_positions);
  return std::max<int64_t>(config.max_position_embeddings, static_cast<int64_t>(std::min<double>(stretched, kMaxPositions)));
}

}  // namespace otr
