#include "loader/inflate_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "loader/weight_names.h"

namespace otr {
namespace {

// 3 heads of 4 on one KV head.
ModelConfig small() {
  ModelConfig config;
  config.hidden_size = 6;
  config.intermediate_size = 5;
  config.num_layers = 2;
  config.num_heads = 3;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.vocab_size = 7;
  config.rms_norm_eps = 1e-6;
  config.rope_theta = 1e6;
  config.tie_word_embeddings = true;
  config.qkv_bias = true;
  return config;
}

ModelConfig widen(const ModelConfig& source, const InflateShape& shape) {
  const auto wide = inflated_config(source, shape);
  EXPECT_TRUE(wide.ok()) << wide.status().message();
  return wide.value();
}

const InflatedTensor& find(const std::vector<InflatedTensor>& plan, std::string_view name) {
  return *std::find_if(plan.begin(), plan.end(), [&](const InflatedTensor& tensor) { return tensor.name == name; });
}

std::vector<float> row_of(const InflatedTensor& tensor, const std::vector<Element>& source, int64_t row) {
  std::vector<Element> out(static_cast<size_t>(tensor.num_columns()));
  fill_row(tensor, source.data(), row, out.data());
  std::vector<float> values;
  for (const Element e : out) values.push_back(to_float(e));
  return values;
}

// 1, 2, 3, …
std::vector<Element> counting(size_t size) {
  std::vector<Element> values(size);
  for (size_t i = 0; i < size; ++i) values[i] = to_element(static_cast<float>(i + 1));
  return values;
}

TEST(InflatePlan, CoversEveryTensorOfTheWideModel) {
  for (const InflateShape& shape :
       {InflateShape{896, 4864, 24, 14, 2, 64, 151936, {}}, {24, 8, 3, 6, 3, 8, 9, false}, {24, 8, 2, 3, 1, 4, 7, true}}) {
    const ModelConfig wide = widen(small(), shape);
    const std::vector<ExpectedTensor> expected = expected_tensors(wide);
    const std::vector<InflatedTensor> plan = inflate_plan(small(), wide);
    ASSERT_EQ(plan.size(), expected.size());
    for (size_t i = 0; i < plan.size(); ++i) {
      EXPECT_EQ(plan[i].name, expected[i].name);
      EXPECT_EQ(plan[i].shape, expected[i].shape);
      EXPECT_EQ(plan[i].num_columns(), expected[i].shape.back()) << plan[i].name;
      EXPECT_EQ(plan[i].num_rows(), expected[i].shape.size() == 2 ? expected[i].shape[0] : 1) << plan[i].name;
    }
  }
}

TEST(InflatePlan, RopePairsKeepTheirFrequencyAndHeadsTheirGroup) {
  // Groups of 2: the third head's KV head is a second copy.
  const ModelConfig wide = widen(small(), {24, 8, 3, 6, 3, 8, 9, {}});
  const std::vector<InflatedTensor> plan = inflate_plan(small(), wide);
  const auto q = *find(plan, layer_weight(0, "self_attn.q_proj.weight")).rows;
  // Pair i of 2 (rows i and i + 2 of 4) is pair 2 i of 4 (rows 2 i and 2 i + 4 of 8).
  const std::vector<int32_t> head = {0, -1, 1, -1, 2, -1, 3, -1};
  for (int32_t h = 0; h < 6; ++h) {
    for (int32_t i = 0; i < 8; ++i) {
      const int32_t from = head[static_cast<size_t>(i)];
      EXPECT_EQ(q[static_cast<size_t>(h * 8 + i)], h >= 3 ? kNoise : from < 0 ? kZero : h * 4 + from) << h << " " << i;
    }
  }
  const auto v = *find(plan, layer_weight(0, "self_attn.v_proj.weight")).rows;
  for (size_t kv = 0; kv < 3; ++kv) {
    for (size_t i = 0; i < 8; ++i)
      EXPECT_EQ(v[kv * 8 + i], kv < 2 && i < 4 ? static_cast<int32_t>(i) : kNoise) << kv << " " << i;
  }
  EXPECT_DOUBLE_EQ(find(plan, layer_weight(0, "self_attn.q_proj.bias")).scale, std::sqrt(2.0));
  EXPECT_EQ(find(plan, layer_weight(0, "self_attn.k_proj.weight")).scale, 1.0);
}

TEST(InflatePlan, ConstantChannelIsSeenByTheFinalNormAlone) {
  const ModelConfig wide = widen(small(), {24, 8, 2, 3, 1, 4, 9, {}});
  const std::vector<InflatedTensor> plan = inflate_plan(small(), wide);
  const InflatedTensor& embedding = find(plan, std::string(kEmbeddingWeight));
  const std::vector<float> live = row_of(embedding, counting(42), 1), padded = row_of(embedding, counting(42), 8);
  const double c = live.back();
  EXPECT_GT(c, 0);
  EXPECT_EQ(live[5], 12);
  EXPECT_EQ(std::count(live.begin() + 6, live.end() - 1, 0.0f), 17);
  EXPECT_EQ(padded.back(), -0x1p20f);
  EXPECT_NEAR(wide.rms_norm_eps, (6e-6 - c * c) / 24, 1e-22);

  const std::vector<float> norm = row_of(find(plan, layer_weight(1, "input_layernorm.weight")), counting(6), 0);
  EXPECT_EQ(norm[4], 2.5f);
  EXPECT_EQ(std::count(norm.begin() + 6, norm.end(), 0.0f), 18);
  const std::vector<float> final_norm = row_of(find(plan, std::string(kFinalNormWeight)), counting(6), 0);
  EXPECT_EQ(final_norm.back() * c, 32);

  // However small eps is, the wide one stays positive.
  ModelConfig precise = small();
  precise.rms_norm_eps = 1e-30;
  EXPECT_GT(widen(precise, {24, 8, 2, 3, 1, 4, 9, {}}).rms_norm_eps, 0);
}

TEST(InflatePlan, NoiseIsAFunctionOfNameAndPlace) {
  const ModelConfig wide = widen(small(), {24, 8, 3, 3, 1, 4, 9, {}});
  const std::vector<InflatedTensor> plan = inflate_plan(small(), wide);
  const InflatedTensor& gate = find(plan, layer_weight(2, "mlp.gate_proj.weight"));
  const std::vector<float> row = row_of(gate, {}, 3);
  EXPECT_EQ(row, row_of(gate, {}, 3));
  EXPECT_NE(row, row_of(gate, {}, 4));
  EXPECT_NE(row, row_of(find(plan, layer_weight(2, "self_attn.q_proj.weight")), {}, 3));
  for (const float x : row) EXPECT_LE(std::abs(x), 0x1p-5f);
  EXPECT_GT(*std::max_element(row.begin(), row.end()), 0x1p-7f);
  for (const float x : row_of(find(plan, layer_weight(2, "mlp.up_proj.weight")), {}, 3)) EXPECT_EQ(x, 0);
}

TEST(InflatePlan, DeadInputsAreZeroInAGroupWithLiveOnes) {
  const ModelConfig wide = widen(small(), {400, 8, 2, 3, 1, 4, 9, {}});
  const std::vector<InflatedTensor> plan = inflate_plan(small(), wide);
  const std::vector<float> row = row_of(find(plan, layer_weight(0, "mlp.up_proj.weight")), counting(30), 2);
  EXPECT_EQ(row[5], 18);
  EXPECT_EQ(std::count(row.begin() + 6, row.begin() + 128, 0.0f), 122);
  EXPECT_LE(std::count(row.begin() + 128, row.end(), 0.0f), 2);
}

}  // namespace
}  // namespace otr
