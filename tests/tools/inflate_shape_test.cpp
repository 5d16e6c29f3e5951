#include "tools/outrider/inflate_shape.h"

#include <gtest/gtest.h>

#include "loader/weight_names.h"

namespace otr::cli {
namespace {

TEST(InflateShapes, EveryNameIsAShapeThatASmallModelGets) {
  ModelConfig small;  // 3 heads of 4 on one KV head
  small.hidden_size = 6;
  small.intermediate_size = 5;
  small.num_layers = 2;
  small.num_heads = 3;
  small.num_kv_heads = 1;
  small.head_dim = 4;
  small.vocab_size = 7;
  small.rms_norm_eps = 1e-6;
  small.rope_theta = 1e6;
  small.tie_word_embeddings = true;
  small.qkv_bias = true;
  for (const char* name : {"qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-32b"}) {
    const Result<ModelConfig> wide = inflated_config(small, named_shape(name));
    ASSERT_TRUE(wide.ok()) << name << ": " << wide.status().message();
    EXPECT_EQ(inflate_plan(small, wide.value()).size(), expected_tensors(wide.value()).size()) << name;
  }
}

}  // namespace
}  // namespace otr::cli
