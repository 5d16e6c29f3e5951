// The models whose shapes the suite takes, and the row counts.
#pragma once

#include <cstdint>

namespace otr::bench {

struct ModelShape {
  const char* name;
  int32_t hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim, vocab_size;
  bool qkv_bias, qk_norm;

  constexpr int32_t qkv_features() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

inline constexpr ModelShape kModels[] = {
    {"qwen2.5-0.5b", 896, 4864, 24, 14, 2, 64, 151936, true, false},
    {"qwen2.5-1.5b", 1536, 8960, 28, 12, 2, 128, 151936, true, false},
    {"qwen2.5-7b", 3584, 18944, 28, 28, 4, 128, 152064, true, false},
    {"qwen3-8b", 4096, 12288, 36, 32, 8, 128, 151936, false, true},
};

// The matrix products of a layer, and the lm_head.
struct Projection {
  const char* name;
  int32_t out_features, in_features;
  bool bias, residual;
  bool gated = false;  // the outputs are silu(gate) * up
};
inline constexpr int kNumProjections = 5;

constexpr Projection projection(const ModelShape& m, int i) {
  switch (i) {
    case 0: return {"qkv", m.qkv_features(), m.hidden_size, m.qkv_bias, false};
    case 1: return {"o", m.hidden_size, m.num_heads * m.head_dim, false, true};
    case 2: return {"gate_up", 2 * m.intermediate_size, m.hidden_size, false, false, true};
    case 3: return {"down", m.hidden_size, m.intermediate_size, false, true};
    default: return {"lm_head", m.vocab_size, m.hidden_size, false, false};
  }
}

// 17: one row more than tiles of 16 hold.
inline constexpr int kLinearRows[] = {1, 4, 8, 16, 17, 32, 64, 256, 1024};
inline constexpr int kMaxLmHeadRows = 64;  // logits of more rows at once are rare, and large
inline constexpr int kElementwiseRows[] = {1, 16, 17, 256, 1024};

}  // namespace otr::bench
