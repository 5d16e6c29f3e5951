// TinyModel: a small random Qwen2 (or Qwen3-MoE) checkpoint in a directory of its own, removed with the object. The same bytes
// on every machine.
//
// Tests use it where only the engine matters: a row costs a few microseconds, and no test depends on weights that somebody
// trains.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/base/element.h"
#include "kernels/page/page.h"

namespace otr {

struct TinyShape {
  int32_t vocab_size = 97;
  int32_t hidden_size = 32;
  int32_t intermediate_size = 48;
  int32_t num_layers = 1;
  int32_t num_heads = 2;
  int32_t num_kv_heads = 1;
  int32_t head_dim = 32;
  int32_t max_position_embeddings = 1024;
  double rms_norm_eps = 1e-6;
  std::vector<int32_t> eos_ids = {3};
  uint32_t seed = 1;
  bool tied = false;  // no lm_head of its own
  // With experts it is a Qwen3.
  int32_t num_experts = 0;
  int32_t experts_per_token = 2;
  int32_t expert_intermediate_size = 24;
  std::vector<int32_t> dense_layers = {};
  // Faults and extremes to order.
  int32_t nan_embedding = -1;  // the token whose embedding is NaN
  int32_t nan_lm_head = -1;    // the token whose lm_head row is NaN
  float lm_head_scale = 1.0f;
};

class TinyModel {
 public:
  explicit TinyModel(const TinyShape& shape = {}) : shape_(shape) {
    std::string pattern = (std::filesystem::temp_directory_path() / "outrider-tiny-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make " + pattern);
    path_ = pattern;
    write_config();
    write_weights();
  }
  ~TinyModel() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TinyModel(const TinyModel&) = delete;
  TinyModel& operator=(const TinyModel&) = delete;

  const std::string& path() const { return path_; }
  const TinyShape& shape() const { return shape_; }
  KvLayout layout() const {
    return {.num_layers = shape_.num_layers, .num_kv_heads = shape_.num_kv_heads, .head_dim = shape_.head_dim};
  }
  uint64_t kv_bytes(int64_t num_pages) const { return static_cast<uint64_t>(layout().page_bytes() * num_pages); }

 private:
  struct Tensor {
    std::string name;
    std::vector<int64_t> sizes;
    std::vector<float> values;
  };

  void write_config() const {
    std::ofstream out(path_ + "/config.json");
    out << "{\"model_type\": \"" << (shape_.num_experts > 0 ? "qwen3_moe" : "qwen2")
        << "\", \"hidden_size\": " << shape_.hidden_size << ", \"intermediate_size\": " << shape_.intermediate_size
        << ", \"num_hidden_layers\": " << shape_.num_layers << ", \"num_attention_heads\": " << shape_.num_heads
        << ", \"num_key_value_heads\": " << shape_.num_kv_heads << ", \"head_dim\": " << shape_.head_dim
        << ", \"vocab_size\": " << shape_.vocab_size << ", \"max_position_embeddings\": " << shape_.max_position_embeddings
        << ", \"rms_norm_eps\": " << shape_.rms_norm_eps << ", \"rope_theta\": 10000, \"hidden_act\": \"silu\", "
        << "\"tie_word_embeddings\": " << (shape_.tied ? "true" : "false") << ", \"eos_token_id\": [";
    for (size_t i = 0; i < shape_.eos_ids.size(); ++i) out << (i > 0 ? ", " : "") << shape_.eos_ids[i];
    out << "]";
    if (shape_.num_experts > 0) {
      out << ", \"num_experts\": " << shape_.num_experts << ", \"num_experts_per_tok\": " << shape_.experts_per_token
          << ", \"moe_intermediate_size\": " << shape_.expert_intermediate_size
          << ", \"norm_topk_prob\": true, \"mlp_only_layers\": [";
      for (size_t i = 0; i < shape_.dense_layers.size(); ++i) out << (i > 0 ? ", " : "") << shape_.dense_layers[i];
      out << "]";
    }
    out << "}\n";
  }

  void write_weights() const {
    std::mt19937 random(shape_.seed);
    std::vector<Tensor> tensors;
    // Uniform in [-scale, scale], from the generator's own bits: distributions differ between libraries.
    const auto add = [&](const std::string& name, std::vector<int64_t> sizes, float scale, float offset = 0.0f) {
      int64_t count = 1;
      for (const int64_t size : sizes) count *= size;
      Tensor t{name, std::move(sizes), {}};
      for (int64_t i = 0; i < count; ++i) {
        const float unit = static_cast<float>(static_cast<int32_t>(random() >> 8) - (1 << 23)) * 0x1p-23f;
        t.values.push_back(offset + scale * unit);
      }
      tensors.push_back(std::move(t));
    };
    const int64_t hidden = shape_.hidden_size, inner = shape_.intermediate_size, vocab = shape_.vocab_size;
    const int64_t q = int64_t{shape_.num_heads} * shape_.head_dim, kv = int64_t{shape_.num_kv_heads} * shape_.head_dim;
    const auto fan_in = [](int64_t n) { return 2.0f / std::sqrt(static_cast<float>(n)); };
    add("model.embed_tokens.weight", {vocab, hidden}, 1.0f);
    for (int32_t i = 0; i < shape_.num_layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      add(layer + "input_layernorm.weight", {hidden}, 0.3f, 1.0f);
      add(layer + "self_attn.q_proj.weight", {q, hidden}, fan_in(hidden));
      add(layer + "self_attn.k_proj.weight", {kv, hidden}, fan_in(hidden));
      add(layer + "self_attn.v_proj.weight", {kv, hidden}, fan_in(hidden));
      if (shape_.num_experts > 0) {
        add(layer + "self_attn.q_norm.weight", {shape_.head_dim}, 0.3f, 1.0f);
        add(layer + "self_attn.k_norm.weight", {shape_.head_dim}, 0.3f, 1.0f);
      } else {
        add(layer + "self_attn.q_proj.bias", {q}, 0.5f);
        add(layer + "self_attn.k_proj.bias", {kv}, 0.5f);
        add(layer + "self_attn.v_proj.bias", {kv}, 0.5f);
      }
      add(layer + "self_attn.o_proj.weight", {hidden, q}, fan_in(q));
      add(layer + "post_attention_layernorm.weight", {hidden}, 0.3f, 1.0f);
      const auto add_mlp = [&](const std::string& mlp, int64_t width) {
        add(mlp + "gate_proj.weight", {width, hidden}, fan_in(hidden));
        add(mlp + "up_proj.weight", {width, hidden}, fan_in(hidden));
        add(mlp + "down_proj.weight", {hidden, width}, fan_in(width));
      };
      if (shape_.num_experts == 0 || std::ranges::count(shape_.dense_layers, i) > 0) {
        add_mlp(layer + "mlp.", inner);
        continue;
      }
      add(layer + "mlp.gate.weight", {shape_.num_experts, hidden}, 2 * fan_in(hidden));
      for (int32_t e = 0; e < shape_.num_experts; ++e)
        add_mlp(layer + "mlp.experts." + std::to_string(e) + ".", shape_.expert_intermediate_size);
    }
    add("model.norm.weight", {hidden}, 0.3f, 1.0f);
    if (!shape_.tied) add("lm_head.weight", {vocab, hidden}, fan_in(hidden) * shape_.lm_head_scale);
    const auto spoil = [&](Tensor& t, int32_t row) {
      for (int64_t i = 0; row >= 0 && i < hidden; ++i) t.values[static_cast<size_t>(row * hidden + i)] = std::nanf("");
    };
    spoil(tensors.front(), shape_.nan_embedding);
    spoil(tensors.back(), shape_.nan_lm_head);
    write_safetensors(tensors);
  }

  void write_safetensors(const std::vector<Tensor>& tensors) const {
    std::string header = "{", data;
    for (const Tensor& t : tensors) {
      header += (header.size() > 1 ? ", \"" : "\"") + t.name + "\": {\"dtype\": \"BF16\", \"shape\": [";
      for (size_t i = 0; i < t.sizes.size(); ++i) header += (i > 0 ? ", " : "") + std::to_string(t.sizes[i]);
      header += "], \"data_offsets\": [" + std::to_string(data.size()) + ", " +
                std::to_string(data.size() + 2 * t.values.size()) + "]}";
      for (const float value : t.values) {
        const uint16_t bits = bf16_from_float(value).bits;
        data.append({static_cast<char>(bits & 0xff), static_cast<char>(bits >> 8)});
      }
    }
    header += "}";
    std::ofstream out(path_ + "/model.safetensors", std::ios::binary);
    for (int shift = 0; shift < 64; shift += 8) out.put(static_cast<char>(uint64_t{header.size()} >> shift & 0xff));
    out << header << data;
    if (!out.flush()) throw std::runtime_error("cannot write " + path_);
  }

  TinyShape shape_;
  std::string path_;
};

}  // namespace otr
