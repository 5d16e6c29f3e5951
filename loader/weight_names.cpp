#include "loader/weight_names.h"

#include <algorithm>

#include "loader/checkpoint.h"
#include "loader/item_status.h"

namespace otr {
namespace {

void add_layer(const ModelConfig& config, int32_t layer, std::vector<ExpectedTensor>& out) {
  const int64_t hidden = config.hidden_size, head_dim = config.head_dim;
  const int64_t q = config.num_heads * head_dim, kv = config.num_kv_heads * head_dim;
  const auto add = [&](std::string_view suffix, std::vector<int64_t> shape) {
    out.push_back({layer_weight(layer, suffix), std::move(shape)});
  };
  add("input_layernorm.weight", {hidden});
  add("self_attn.q_proj.weight", {q, hidden});
  add("self_attn.k_proj.weight", {kv, hidden});
  add("self_attn.v_proj.weight", {kv, hidden});
  if (config.qkv_bias) {
    add("self_attn.q_proj.bias", {q});
    add("self_attn.k_proj.bias", {kv});
    add("self_attn.v_proj.bias", {kv});
  }
  if (config.qk_norm) {
    add("self_attn.q_norm.weight", {head_dim});
    add("self_attn.k_norm.weight", {head_dim});
  }
  add("self_attn.o_proj.weight", {hidden, q});
  add("post_attention_layernorm.weight", {hidden});
  const auto add_mlp = [&](const std::string& mlp, int64_t inner) {
    add(mlp + "gate_proj.weight", {inner, hidden});
    add(mlp + "up_proj.weight", {inner, hidden});
    add(mlp + "down_proj.weight", {hidden, inner});
  };
  if (!config.has_experts(layer)) return add_mlp("mlp.", config.intermediate_size);
  add("mlp.gate.weight", {config.experts->num_experts, hidden});
  for (int32_t expert = 0; expert < config.experts->num_experts; ++expert)
    add_mlp(expert_prefix(expert), config.experts->intermediate_size);
}

Status check_tensor(const Checkpoint& checkpoint, const ExpectedTensor& expected) {
  const std::string& file = checkpoint.file_of(expected.name);
  const TensorInfo* found = checkpoint.find(expected.name);
  if (!found) return bad_item(file, expected.name, "missing; expected shape " + shape_text(expected.shape));
  if (found->shape != expected.shape) {
    return bad_item(file, expected.name,
                    "expected shape " + shape_text(expected.shape) + ", found " + shape_text(found->shape));
  }
  if (!dtype_is_loadable(found->dtype)) {
    return unsupported_item(file, expected.name,
                            "dtype " + std::string(dtype_name(found->dtype)) + " cannot be loaded (BF16, F16 and F32 can)");
  }
  return {};
}

// REQUIRES: the checkpoint has the embedding.
Status check_tied_head(const Checkpoint& checkpoint) {
  const TensorInfo *head = checkpoint.find(kLmHeadWeight), *embedding = checkpoint.find(kEmbeddingWeight);
  if (!head) return {};
  if (head->shape != embedding->shape || head->dtype != embedding->dtype) {
    const auto text = [](const TensorInfo& t) { return std::string(dtype_name(t.dtype)) + " " + shape_text(t.shape); };
    return bad_item(checkpoint.file_of(kLmHeadWeight), kLmHeadWeight,
                    "is " + text(*head) + " and " + std::string(kEmbeddingWeight) + " " + text(*embedding) +
                        ", but config.json's tie_word_embeddings says that they are one");
  }
  checkpoint.tie(kEmbeddingWeight, kLmHeadWeight);
  return {};
}

}  // namespace

std::string layer_weight(int32_t layer, std::string_view suffix) {
  return "model.layers." + std::to_string(layer) + "." + std::string(suffix);
}

std::string expert_prefix(int32_t expert) { return "mlp.experts." + std::to_string(expert) + "."; }

bool is_never_read(const ModelConfig& config, std::string_view name) {
  return (config.tie_word_embeddings && name == kLmHeadWeight) || name.ends_with("rotary_emb.inv_freq");
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  std::vector<ExpectedTensor> out;
  const int64_t vocab = config.vocab_size, hidden = config.hidden_size;
  out.push_back({std::string(kEmbeddingWeight), {vocab, hidden}});
  for (int32_t layer = 0; layer < config.num_layers; ++layer) add_layer(config, layer, out);
  out.push_back({std::string(kFinalNormWeight), {hidden}});
  if (!config.tie_word_embeddings) out.push_back({std::string(kLmHeadWeight), {vocab, hidden}});
  return out;
}

StackedTensor stacked_experts(const ModelConfig& config, std::string_view name) {
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const bool gate_up = name == layer_weight(layer, "mlp.experts.gate_up_proj");
    if (!config.has_experts(layer) || !(gate_up || name == layer_weight(layer, "mlp.experts.down_proj"))) continue;
    const int64_t hidden = config.hidden_size, experts = config.experts->num_experts, inner = config.experts->intermediate_size;
    StackedTensor stacked;
    stacked.shape = gate_up ? std::vector{experts, 2 * inner, hidden} : std::vector{experts, hidden, inner};
    for (int32_t expert = 0; expert < experts; ++expert) {
      const auto add = [&](std::string_view suffix, std::vector<int64_t> shape) {
        stacked.parts.push_back({layer_weight(layer, expert_prefix(expert) + std::string(suffix)), std::move(shape)});
      };
      if (!gate_up) add("down_proj.weight", {hidden, inner});
      if (gate_up) add("gate_proj.weight", {inner, hidden});
      if (gate_up) add("up_proj.weight", {inner, hidden});
    }
    return stacked;
  }
  return {};
}

Status validate_tensors(const ModelConfig& config, const Checkpoint& checkpoint) {
  std::vector<ExpectedTensor> expected = expected_tensors(config);
  for (const ExpectedTensor& tensor : expected) OTR_RETURN_IF_ERROR(check_tensor(checkpoint, tensor));
  std::sort(expected.begin(), expected.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (const std::string_view name : checkpoint.names()) {
    const auto at = std::lower_bound(expected.begin(), expected.end(), name,
                                     [](const ExpectedTensor& t, std::string_view n) { return t.name < n; });
    if ((at != expected.end() && at->name == name) || is_never_read(config, name)) continue;
    return bad_item(checkpoint.file_of(name), name,
                    "unexpected tensor of shape " + shape_text(checkpoint.find(name)->shape) + " in a " +
                        std::string(architecture_name(config.architecture)) + " model of " + std::to_string(config.num_layers) +
                        " layers");
  }
  return config.tie_word_embeddings ? check_tied_head(checkpoint) : Status();
}

}  // namespace otr
