#include "graph/model_weights.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "loader/checkpoint.h"
#include "tests/runtime/tiny_model.h"

namespace otr {
namespace {

// Every weight of the tiny model lies where the kernels look for it: q, k, v stacked, gate and up in turns, biases and norms in
// float32.
TEST(ModelWeights, TensorsLieWhereKernelsReadThem) {
  const TinyModel model({.num_layers = 2, .num_heads = 3});
  const TinyShape& shape = model.shape();
  ThreadPool pool(2);
  Result<OpenModel> opened = open_model(model.path());
  ASSERT_TRUE(opened.ok());
  const Result<ModelWeights> loaded = ModelWeights::load(opened.value().config, *opened.value().weights, pool);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const ModelWeights& weights = loaded.value();
  const Result<Checkpoint> checkpoint = Checkpoint::open(model.path());
  ASSERT_TRUE(checkpoint.ok());

  const auto expect_rows = [&](const LinearWeight& w, int32_t first_row, const std::string& name, int64_t rows, int64_t columns,
                               bool in_turns = false) {
    std::vector<Element> wanted(static_cast<size_t>(rows * columns));
    ASSERT_TRUE(checkpoint.value().read_as_element(name, std::array{rows, columns}, wanted.data()).ok()) << name;
    int64_t wrong = 0;
    for (int64_t n = 0; n < rows; ++n) {
      const int64_t row = in_turns ? first_row + n / 16 * 32 + n % 16 : first_row + n;
      for (int64_t k = 0; k < columns; ++k) {
        wrong +=
            to_float(w.packed[linear_packed_index(row, k, columns)]) != to_float(wanted[static_cast<size_t>(n * columns + k)]);
      }
    }
    EXPECT_EQ(wrong, 0) << name;
    EXPECT_EQ(w.in_features, columns) << name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(w.packed) % 64, 0u) << name;
  };
  const auto expect_floats = [&](const float* values, const std::string& name, int64_t size) {
    std::vector<float> wanted(static_cast<size_t>(size));
    ASSERT_TRUE(checkpoint.value().read_as_float(name, std::array{size}, wanted.data()).ok()) << name;
    EXPECT_EQ(std::vector<float>(values, values + size), wanted) << name;
  };
  const int32_t q = shape.num_heads * shape.head_dim, kv = shape.num_kv_heads * shape.head_dim;
  const int64_t hidden = shape.hidden_size, inner = shape.intermediate_size;
  ASSERT_EQ(weights.layers().size(), 2u);
  for (int32_t i = 0; i < 2; ++i) {
    SCOPED_TRACE(i);
    const LayerWeights& layer = weights.layers()[static_cast<size_t>(i)];
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    expect_floats(layer.input_norm, prefix + "input_layernorm.weight", hidden);
    expect_floats(layer.post_norm, prefix + "post_attention_layernorm.weight", hidden);
    EXPECT_EQ(layer.qkv.out_features, q + 2 * kv);
    expect_rows(layer.qkv, 0, prefix + "self_attn.q_proj.weight", q, hidden);
    expect_rows(layer.qkv, q, prefix + "self_attn.k_proj.weight", kv, hidden);
    expect_rows(layer.qkv, q + kv, prefix + "self_attn.v_proj.weight", kv, hidden);
    ASSERT_NE(layer.qkv.bias, nullptr);
    expect_floats(layer.qkv.bias, prefix + "self_attn.q_proj.bias", q);
    expect_floats(layer.qkv.bias + q, prefix + "self_attn.k_proj.bias", kv);
    expect_floats(layer.qkv.bias + q + kv, prefix + "self_attn.v_proj.bias", kv);
    EXPECT_EQ(layer.q_norm, nullptr);
    expect_rows(layer.o, 0, prefix + "self_attn.o_proj.weight", hidden, q);
    EXPECT_EQ(layer.gate_up.out_features, 2 * linear_padded(inner));
    expect_rows(layer.gate_up, 0, prefix + "mlp.gate_proj.weight", inner, hidden, true);
    expect_rows(layer.gate_up, 16, prefix + "mlp.up_proj.weight", inner, hidden, true);
    expect_rows(layer.down, 0, prefix + "mlp.down_proj.weight", hidden, inner);
  }
  expect_floats(weights.final_norm(), "model.norm.weight", hidden);
  expect_rows(weights.lm_head(), 0, "lm_head.weight", shape.vocab_size, hidden);
}

}  // namespace
}  // namespace otr
