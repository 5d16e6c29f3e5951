#include "graph/model_weights.h"

#include <string>

#include "graph/rope_frequencies.h"
#include "kernels/base/thread_pool.h"
#include "loader/weight_plan.h"

namespace otr {

Result<ModelWeights> ModelWeights::load(const ModelConfig& config, WeightSource& source, ThreadPool& pool) {
  ModelWeights w;
  w.config_ = config;
  const WeightPlan plan = weight_plan(config);
  OTR_ASSIGN_OR_RETURN(w.packed_, Buffer<Element>::create(plan.packed_elements, "weights"));
  OTR_ASSIGN_OR_RETURN(w.embedding_, Buffer<Element>::create(plan.matrix_elements, "embedding"));
  OTR_ASSIGN_OR_RETURN(w.vectors_, Buffer<float>::create(plan.vector_elements + config.head_dim / 2, "weights"));
  std::vector<WeightTarget> targets;
  for (const WeightPiece& piece : plan.pieces) targets.push_back({&piece, w.address(piece)});
  OTR_RETURN_IF_ERROR(source.read(targets, pool));
  float* inv_freq = w.vectors_.data() + plan.vector_elements;
  w.rope_scale_ = rope_frequencies(config, {inv_freq, static_cast<size_t>(config.head_dim / 2)});
  w.inv_freq_ = inv_freq;
  w.bind(plan);
  return w;
}

void* ModelWeights::address(const WeightPiece& piece) {
  switch (piece.kind) {
    case PieceKind::kLinear: return packed_.data() + piece.offset;
    case PieceKind::kMatrix: return embedding_.data() + piece.offset;
    case PieceKind::kVector: return vectors_.data() + piece.offset;
  }
  __builtin_unreachable();
}

// Points the named weights at their pieces.
void ModelWeights::bind(const WeightPlan& plan) {
  const auto vector = [&](const std::string& name) -> const float* { return vectors_.data() + plan.piece(name).offset; };
  const auto linear = [&](const std::string& name, const float* bias) {
    const WeightPiece& p = plan.piece(name);
    return LinearWeight{.in_features = p.in_features, .out_features = p.out_features, .packed = packed_.data() + p.offset, .bias = bias};
  };
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const std::string prefix = "layers." + std::to_string(i) + ".";
    layers_.push_back({.input_norm = vector(prefix + "input_norm"),
                       .qkv = linear(prefix + "qkv", config_.qkv_bias ? vector(prefix + "qkv_bias") : nullptr),
                       .q_norm = config_.qk_norm ? vector(prefix + "q_norm") : nullptr,
                       .k_norm = config_.qk_norm ? vector(prefix + "k_norm") : nullptr,
                       .o = linear(prefix + "o", nullptr),
                       .post_norm = vector(prefix + "post_norm"),
                       .gate_up = linear(prefix + "gate_up", nullptr),
                       .down = linear(prefix + "down", nullptr)});
  }
  final_norm_ = vector("final_norm");
  lm_head_ = linear("lm_head", nullptr);
}

}  // namespace otr
