#include "loader/weight_plan.h"

#include "kernels/linear/linear.h"
#include "loader/weight_names.h"

namespace otr {
namespace {

class PlanBuilder {
 public:
  explicit PlanBuilder(const ModelConfig& config) : c_(config) {}

  WeightPlan build() {
    const int32_t hidden = c_.hidden_size;
    const bool tied = c_.tie_word_embeddings;
    if (!tied) matrix("embedding", hidden, {{std::string(kEmbeddingWeight), c_.vocab_size}});
    for (int32_t layer = 0; layer < c_.num_layers; ++layer) add_layer(layer);
    vector("final_norm", {{std::string(kFinalNormWeight), hidden}});
    linear("lm_head", hidden, {{std::string(tied ? kEmbeddingWeight : kLmHeadWeight), c_.vocab_size}});
    return std::move(plan_);
  }

 private:
  void add_layer(int32_t layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const auto tensor = [layer](const char* suffix) { return layer_weight(layer, suffix); };
    const int32_t hidden = c_.hidden_size, q = c_.num_heads * c_.head_dim, kv = c_.num_kv_heads * c_.head_dim;
    vector(prefix + "input_norm", {{tensor("input_layernorm.weight"), hidden}});
    linear(prefix + "qkv", hidden,
           {{tensor("self_attn.q_proj.weight"), q},
            {tensor("self_attn.k_proj.weight"), kv},
            {tensor("self_attn.v_proj.weight"), kv}});
    if (c_.qkv_bias) {
      vector(
          prefix + "qkv_bias",
          {{tensor("self_attn.q_proj.bias"), q}, {tensor("self_attn.k_proj.bias"), kv}, {tensor("self_attn.v_proj.bias"), kv}});
    }
    if (c_.qk_norm) {
      vector(prefix + "q_norm", {{tensor("self_attn.q_norm.weight"), c_.head_dim}});
      vector(prefix + "k_norm", {{tensor("self_attn.k_norm.weight"), c_.head_dim}});
    }
    linear(prefix + "o", q, {{tensor("self_attn.o_proj.weight"), hidden}});
    vector(prefix + "post_norm", {{tensor("post_attention_layernorm.weight"), hidden}});
    const auto mlp = [&](const std::string& piece, const std::string& names, int32_t inner) {
      const auto named = [&](const char* suffix) { return layer_weight(layer, names + suffix); };
      linear(piece + "gate_up", hidden, {{named("gate_proj.weight"), inner}, {named("up_proj.weight"), inner}}, true);
      linear(piece + "down", inner, {{named("down_proj.weight"), hidden}});
    };
    if (!c_.has_experts(layer)) return mlp(prefix, "mlp.", c_.intermediate_size);
    linear(prefix + "router", hidden, {{tensor("mlp.gate.weight"), c_.experts->num_experts}});
    for (int32_t expert = 0; expert < c_.experts->num_experts; ++expert) {
      mlp(prefix + "experts." + std::to_string(expert) + ".", expert_prefix(expert), c_.experts->intermediate_size);
    }
  }

  void add(PieceKind kind, std::string name, int32_t in_features, std::vector<PiecePart> parts, bool in_turns, int64_t* arena) {
    int32_t rows = 0;
    for (const PiecePart& part : parts)
      rows += in_turns ? static_cast<int32_t>(linear_padded(part.out_features)) : part.out_features;
    const size_t index = plan_.pieces.size();
    plan_.by_name.emplace(name, index);
    for (const PiecePart& part : parts) plan_.by_tensor.emplace(part.tensor, index);
    plan_.pieces.push_back({std::move(name), kind, rows, in_features, *arena, std::move(parts), in_turns});
    *arena += plan_.pieces.back().elements();
  }
  void linear(std::string name, int32_t in_features, std::vector<PiecePart> parts, bool in_turns = false) {
    add(PieceKind::kLinear, std::move(name), in_features, std::move(parts), in_turns, &plan_.packed_elements);
  }
  void matrix(std::string name, int32_t in_features, std::vector<PiecePart> parts) {
    add(PieceKind::kMatrix, std::move(name), in_features, std::move(parts), false, &plan_.matrix_elements);
  }
  void vector(std::string name, std::vector<PiecePart> parts) {
    add(PieceKind::kVector, std::move(name), 1, std::move(parts), false, &plan_.vector_elements);
  }

  const ModelConfig& c_;
  WeightPlan plan_;
};

}  // namespace

int64_t WeightPiece::elements() const {
  return kind == PieceKind::kLinear ? linear_packed_elements(out_features, in_features) : int64_t{out_features} * in_features;
}

WeightPlan::Place WeightPlan::place_of(std::string_view tensor) const {
  const auto found = by_tensor.find(std::string(tensor));
  if (found == by_tensor.end()) return {};
  const WeightPiece& p = pieces[found->second];
  int32_t first_row = 0;
  for (const PiecePart& part : p.parts) {
    if (part.tensor == tensor) return {&p, &part, first_row};
    first_row += p.in_turns ? kLinearTileN : part.out_features;
  }
  __builtin_unreachable();
}

WeightPlan weight_plan(const ModelConfig& config) { return PlanBuilder(config).build(); }

}  // namespace otr
