// Weight names: which tensors a model of a given config consists of, and the check that a checkpoint holds exactly those.
//
// Thread safety: pure functions, but for what validate_tensors() notes in the checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "loader/model_config.h"

namespace otr {

class Checkpoint;

inline constexpr std::string_view kEmbeddingWeight = "model.embed_tokens.weight";
inline constexpr std::string_view kFinalNormWeight = "model.norm.weight";
inline constexpr std::string_view kLmHeadWeight = "lm_head.weight";

// "model.layers.<layer>.<suffix>", for example layer_weight(3, "self_attn.q_proj.weight").
std::string layer_weight(int32_t layer, std::string_view suffix);

// "mlp.experts.<expert>.", which its tensors' suffixes in a layer begin with.
std::string expert_prefix(int32_t expert);

// Tensors that checkpoints hold and the engine has no use for: a tied model's lm_head.weight, and rotary_emb.inv_freq buffers.
bool is_never_read(const ModelConfig& config, std::string_view name);

struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;  // matrices are [out_features, in_features]
};

// Every tensor the model needs, in the order of the forward pass; lm_head.weight only where embeddings are not tied.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

// All experts of a layer in one tensor, as transformers holds them in memory from version 5 on: "….mlp.experts.gate_up_proj"
// [num_experts, 2 intermediate_size, hidden_size], an expert's gates before its ups, and "….mlp.experts.down_proj"
// [num_experts, hidden_size, intermediate_size].
struct StackedTensor {
  std::vector<int64_t> shape;
  std::vector<ExpectedTensor> parts;  // the checkpoint's tensors that lie one behind the other there; empty: it is none
};
StackedTensor stacked_experts(const ModelConfig& config, std::string_view name);

// Refuses a missing, unexpected or mis-shaped tensor, and one whose dtype cannot be loaded. What is_never_read() is accepted. A
// tied model's lm_head.weight must be a copy of the embedding, since transformers takes it where it is not: shape and dtype are
// checked here, the values by whoever reads the embedding (Checkpoint::tie).
Status validate_tensors(const ModelConfig& config, const Checkpoint& checkpoint);

}  // namespace otr
