#include "graph/model_weights.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <string>

#include "kernels/base/elementary.h"
#include "kernels/base/thread_pool.h"
#include "loader/weight_names.h"

namespace otr {

// Hands out pieces of the three buffers in order and fills them.
class ModelWeights::Builder {
 public:
  Builder(const Checkpoint& checkpoint, ThreadPool& pool, ModelWeights* weights)
      : checkpoint_(checkpoint), pool_(pool), w_(*weights), c_(weights->config_) {}

  Status build() {
    OTR_RETURN_IF_ERROR(allocate());
    const int64_t hidden = c_.hidden_size;
    OTR_RETURN_IF_ERROR(checkpoint_.read_as_element(kEmbeddingWeight, std::array{int64_t{c_.vocab_size}, hidden}, w_.embedding_.data()));
    w_.layers_.resize(static_cast<size_t>(c_.num_layers));
    for (int32_t i = 0; i < c_.num_layers; ++i) OTR_RETURN_IF_ERROR(read_layer(i, &w_.layers_[static_cast<size_t>(i)]));
    OTR_ASSIGN_OR_RETURN(w_.final_norm_, read_floats(std::string(kFinalNormWeight), c_.hidden_size));
    if (c_.tie_word_embeddings) {
      w_.lm_head_ = pack(w_.embedding_.data(), c_.vocab_size, c_.hidden_size);
    } else {
      OTR_ASSIGN_OR_RETURN(w_.lm_head_, read_linear({{std::string(kLmHeadWeight), c_.vocab_size}}, c_.hidden_size));
    }
    fill_inv_freq();
    assert(packed_used_ == static_cast<int64_t>(w_.packed_.size()) && floats_used_ <= static_cast<int64_t>(w_.floats_.size()));
    return {};
  }

 private:
  struct Part {
    std::string name;
    int32_t out_features;
  };

  int32_t q_rows() const { return c_.num_heads * c_.head_dim; }
  int32_t kv_rows() const { return c_.num_kv_heads * c_.head_dim; }

  Status allocate() {
    const int64_t layer = linear_packed_elements(q_rows() + 2 * kv_rows(), c_.hidden_size) +
                          linear_packed_elements(c_.hidden_size, q_rows()) +
                          linear_packed_elements(2 * int64_t{c_.intermediate_size}, c_.hidden_size) +
                          linear_packed_elements(c_.hidden_size, c_.intermediate_size);
    const int64_t packed = layer * c_.num_layers + linear_packed_elements(c_.vocab_size, c_.hidden_size);
    const int64_t floats = (2 * int64_t{c_.hidden_size} + q_rows() + 2 * kv_rows() + 2 * c_.head_dim) * c_.num_layers +
                           c_.hidden_size + c_.head_dim / 2;
    OTR_ASSIGN_OR_RETURN(w_.packed_, Buffer<Element>::create(packed, "weights"));
    OTR_ASSIGN_OR_RETURN(w_.floats_, Buffer<float>::create(floats, "weights"));
    OTR_ASSIGN_OR_RETURN(w_.embedding_, Buffer<Element>::create(int64_t{c_.vocab_size} * c_.hidden_size, "embedding"));
    const int64_t largest = std::max<int64_t>({int64_t{q_rows() + 2 * kv_rows()} * c_.hidden_size, int64_t{c_.hidden_size} * q_rows(),
                                               2 * int64_t{c_.intermediate_size} * c_.hidden_size,
                                               c_.tie_word_embeddings ? 0 : int64_t{c_.vocab_size} * c_.hidden_size});
    OTR_ASSIGN_OR_RETURN(row_major_, Buffer<Element>::create(largest, "loading buffer"));
    return {};
  }

  Status read_layer(int32_t i, LayerWeights* layer) {
    const auto name = [i](const char* suffix) { return layer_weight(i, suffix); };
    OTR_ASSIGN_OR_RETURN(layer->input_norm, read_floats(name("input_layernorm.weight"), c_.hidden_size));
    OTR_ASSIGN_OR_RETURN(layer->post_norm, read_floats(name("post_attention_layernorm.weight"), c_.hidden_size));
    OTR_ASSIGN_OR_RETURN(layer->qkv, read_linear({{name("self_attn.q_proj.weight"), q_rows()},
                                                  {name("self_attn.k_proj.weight"), kv_rows()},
                                                  {name("self_attn.v_proj.weight"), kv_rows()}},
                                                 c_.hidden_size));
    if (c_.qkv_bias) {  // consecutive pieces: together the fused weight's bias
      OTR_ASSIGN_OR_RETURN(layer->qkv.bias, read_floats(name("self_attn.q_proj.bias"), q_rows()));
      for (const char* suffix : {"self_attn.k_proj.bias", "self_attn.v_proj.bias"}) {
        OTR_ASSIGN_OR_RETURN([[maybe_unused]] const float* bias, read_floats(name(suffix), kv_rows()));
      }
    }
    if (c_.qk_norm) {
      OTR_ASSIGN_OR_RETURN(layer->q_norm, read_floats(name("self_attn.q_norm.weight"), c_.head_dim));
      OTR_ASSIGN_OR_RETURN(layer->k_norm, read_floats(name("self_attn.k_norm.weight"), c_.head_dim));
    }
    OTR_ASSIGN_OR_RETURN(layer->o, read_linear({{name("self_attn.o_proj.weight"), c_.hidden_size}}, q_rows()));
    OTR_ASSIGN_OR_RETURN(layer->gate_up, read_linear({{name("mlp.gate_proj.weight"), c_.intermediate_size},
                                                      {name("mlp.up_proj.weight"), c_.intermediate_size}},
                                                     c_.hidden_size));
    OTR_ASSIGN_OR_RETURN(layer->down, read_linear({{name("mlp.down_proj.weight"), c_.hidden_size}}, c_.intermediate_size));
    return {};
  }

  // Stacks the parts' rows and packs them as one weight.
  Result<LinearWeight> read_linear(const std::vector<Part>& parts, int32_t in_features) {
    int32_t rows = 0;
    for (const Part& part : parts) {
      OTR_RETURN_IF_ERROR(checkpoint_.read_as_element(part.name, std::array{int64_t{part.out_features}, int64_t{in_features}},
                                                      row_major_.data() + int64_t{rows} * in_features));
      rows += part.out_features;
    }
    return pack(row_major_.data(), rows, in_features);
  }

  LinearWeight pack(const Element* row_major, int32_t out_features, int32_t in_features) {
    Element* packed = w_.packed_.data() + packed_used_;
    packed_used_ += linear_packed_elements(out_features, in_features);
    linear_pack(row_major, out_features, in_features, packed, pool_);
    return {.in_features = in_features, .out_features = out_features, .packed = packed, .bias = nullptr};
  }

  Result<const float*> read_floats(const std::string& name, int32_t size) {
    float* out = w_.floats_.data() + floats_used_;
    floats_used_ += size;
    OTR_RETURN_IF_ERROR(checkpoint_.read_as_float(name, std::array{int64_t{size}}, out));
    return const_cast<const float*>(out);
  }

  // 1 / theta^(2i / head_dim) with the two float32 roundings of the reference implementations.
  void fill_inv_freq() {
    float* out = w_.floats_.data() + floats_used_;
    floats_used_ += c_.head_dim / 2;
    for (int32_t i = 0; i < c_.head_dim / 2; ++i) {
      const float exponent = static_cast<float>(2 * i) / static_cast<float>(c_.head_dim);
      out[i] = 1.0f / static_cast<float>(pow64(c_.rope_theta, exponent));
    }
    w_.inv_freq_ = out;
  }

  const Checkpoint& checkpoint_;
  ThreadPool& pool_;
  ModelWeights& w_;
  const ModelConfig& c_;
  Buffer<Element> row_major_;  // one fused weight before packing
  int64_t packed_used_ = 0, floats_used_ = 0;
};

Result<ModelWeights> ModelWeights::load(const ModelConfig& config, const Checkpoint& checkpoint, ThreadPool& pool) {
  OTR_RETURN_IF_ERROR(validate_tensors(config, checkpoint));
  ModelWeights weights;
  weights.config_ = config;
  OTR_RETURN_IF_ERROR(Builder(checkpoint, pool, &weights).build());
  return weights;
}

}  // namespace otr
