#include "loader/weight_names.h"

#include <algorithm>
#include <functional>

#include "loader/checkpoint.h"
#include "tests/loader/loader_fixture.h"

namespace otr {
namespace {

ModelConfig small_config(Architecture architecture, bool tied) {
  ModelConfig c;
  c.architecture = architecture;
  c.hidden_size = 6;
  c.intermediate_size = 10;
  c.num_layers = 2;
  c.num_heads = 2;
  c.num_kv_heads = 1;
  c.head_dim = 4;
  c.vocab_size = 5;
  c.tie_word_embeddings = tied;
  c.qkv_bias = architecture == Architecture::kQwen2;
  c.qk_norm = !c.qkv_bias;
  if (architecture == Architecture::kQwen3Moe)
    c.experts = ExpertsConfig{.num_experts = 4, .experts_per_token = 2, .intermediate_size = 7, .dense_layers = {0}};
  return c;
}

std::vector<TestTensor> tensors_of(const ModelConfig& config) {
  std::vector<TestTensor> tensors;
  for (const ExpectedTensor& t : expected_tensors(config)) {
    size_t bytes = 2;
    for (const int64_t dim : t.shape) bytes *= static_cast<size_t>(dim);
    tensors.push_back({t.name, "BF16", t.shape, std::string(bytes, '\0')});
  }
  return tensors;
}

Status validate(const ModelConfig& config, const std::vector<TestTensor>& tensors) {
  const TempFolder folder;
  folder.write("model.safetensors", safetensors_bytes(tensors));
  const auto checkpoint = Checkpoint::open(folder.path());
  return checkpoint.ok() ? validate_tensors(config, checkpoint.value()) : checkpoint.status();
}

std::vector<int64_t> shape_of(const ModelConfig& config, const std::string& name) {
  for (const ExpectedTensor& t : expected_tensors(config)) {
    if (t.name == name) return t.shape;
  }
  return {-1};
}

TEST(WeightNames, ListsQwen2AndQwen3) {
  const ModelConfig qwen2 = small_config(Architecture::kQwen2, true), qwen3 = small_config(Architecture::kQwen3, false);
  EXPECT_EQ(expected_tensors(qwen2).size(), 2u + 2 * 12);
  EXPECT_EQ(expected_tensors(qwen3).size(), 3u + 2 * 11);
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shape_of(qwen2, "model.embed_tokens.weight"), (Shape{5, 6}));
  EXPECT_EQ(shape_of(qwen2, "model.layers.1.self_attn.q_proj.weight"), (Shape{8, 6}));
  EXPECT_EQ(shape_of(qwen2, "model.layers.1.self_attn.k_proj.bias"), Shape{4});
  EXPECT_EQ(shape_of(qwen2, "model.layers.0.self_attn.o_proj.weight"), (Shape{6, 8}));
  EXPECT_EQ(shape_of(qwen2, "model.layers.0.mlp.down_proj.weight"), (Shape{6, 10}));
  EXPECT_EQ(shape_of(qwen2, "lm_head.weight"), Shape{-1});
  EXPECT_EQ(shape_of(qwen3, "lm_head.weight"), (Shape{5, 6}));
  EXPECT_EQ(shape_of(qwen3, "model.layers.0.self_attn.q_norm.weight"), Shape{4});
  EXPECT_EQ(shape_of(qwen3, "model.layers.0.self_attn.v_proj.bias"), Shape{-1});
  EXPECT_EQ(shape_of(qwen3, "model.norm.weight"), Shape{6});
}

// Of a layer that has experts, by their names in memory: the parts cover the whole, in the order of its rows.
TEST(WeightNames, StackedExperts) {
  const ModelConfig moe = small_config(Architecture::kQwen3Moe, true);  // in layer 1
  using Shape = std::vector<int64_t>;
  const StackedTensor gate_up = stacked_experts(moe, "model.layers.1.mlp.experts.gate_up_proj");
  EXPECT_EQ(gate_up.shape, (Shape{4, 14, 6}));
  ASSERT_EQ(gate_up.parts.size(), 8u);
  EXPECT_EQ(gate_up.parts[4].name, "model.layers.1.mlp.experts.2.gate_proj.weight");
  EXPECT_EQ(gate_up.parts[5].name, "model.layers.1.mlp.experts.2.up_proj.weight");
  const StackedTensor down = stacked_experts(moe, "model.layers.1.mlp.experts.down_proj");
  EXPECT_EQ(down.shape, (Shape{4, 6, 7}));
  ASSERT_EQ(down.parts.size(), 4u);
  EXPECT_EQ(down.parts[3].name, "model.layers.1.mlp.experts.3.down_proj.weight");
  for (const StackedTensor* stacked : {&gate_up, &down}) {
    int64_t elements = 0;
    for (const ExpectedTensor& part : stacked->parts) {
      EXPECT_EQ(shape_of(moe, part.name), part.shape) << part.name;
      elements += part.shape[0] * part.shape[1];
    }
    EXPECT_EQ(elements, stacked->shape[0] * stacked->shape[1] * stacked->shape[2]);
  }
  for (const char* none : {"model.layers.0.mlp.experts.down_proj", "model.layers.2.mlp.experts.down_proj",
                           "model.layers.1.mlp.experts.up_proj", "model.layers.1.mlp.experts.down_proj.weight"}) {
    EXPECT_TRUE(stacked_experts(moe, none).parts.empty()) << none;
  }
  EXPECT_TRUE(stacked_experts(small_config(Architecture::kQwen3, true), "model.layers.1.mlp.experts.down_proj").parts.empty());
}

TEST(WeightNames, ListsExperts) {
  const ModelConfig moe = small_config(Architecture::kQwen3Moe, true);  // in layer 1
  EXPECT_EQ(expected_tensors(moe).size(), 2u + 11 + (8 + 1 + 3 * 4));
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shape_of(moe, "model.layers.1.mlp.gate.weight"), (Shape{4, 6}));
  EXPECT_EQ(shape_of(moe, "model.layers.1.mlp.experts.3.up_proj.weight"), (Shape{7, 6}));
  EXPECT_EQ(shape_of(moe, "model.layers.1.mlp.experts.0.down_proj.weight"), (Shape{6, 7}));
  EXPECT_EQ(shape_of(moe, "model.layers.1.mlp.experts.4.down_proj.weight"), Shape{-1});
  EXPECT_EQ(shape_of(moe, "model.layers.1.mlp.up_proj.weight"), Shape{-1});
  EXPECT_EQ(shape_of(moe, "model.layers.0.mlp.up_proj.weight"), (Shape{10, 6}));
  EXPECT_EQ(shape_of(moe, "model.layers.0.mlp.gate.weight"), Shape{-1});
}

TEST(WeightNames, AcceptsCompleteCheckpoints) {
  for (const Architecture architecture : {Architecture::kQwen2, Architecture::kQwen3, Architecture::kQwen3Moe}) {
    for (const bool tied : {false, true}) {
      const ModelConfig config = small_config(architecture, tied);
      std::vector<TestTensor> tensors = tensors_of(config);
      EXPECT_TRUE(validate(config, tensors).ok()) << validate(config, tensors).message();
      tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "I64", {1}, "12345678"});
      if (tied) tensors.push_back({"lm_head.weight", "BF16", {5, 6}, std::string(60, '\0')});
      EXPECT_TRUE(validate(config, tensors).ok()) << validate(config, tensors).message();
    }
  }
}

// Its values are compared where they are read (weight_source_test.cpp).
TEST(WeightNames, ATiedModelsHeadIsOfTheEmbeddingsShapeAndType) {
  const ModelConfig config = small_config(Architecture::kQwen2, true);
  for (const TestTensor& head :
       {TestTensor{"lm_head.weight", "BF16", {6, 5}, std::string(60, '\0')},
        TestTensor{"lm_head.weight", "BF16", {4, 6}, std::string(48, '\0')},
        TestTensor{"lm_head.weight", "F16", {5, 6}, std::string(60, '\0')}, TestTensor{"lm_head.weight", "U8", {1}, "x"}}) {
    std::vector<TestTensor> tensors = tensors_of(config);
    tensors.push_back(head);
    expect_error(validate(config, tensors), StatusCode::kBadInput,
                 {"/model.safetensors: lm_head.weight: is " + head.dtype + " " + shape_text(head.shape) +
                      " and model.embed_tokens.weight BF16 [5, 6]",
                  "tie_word_embeddings"});
  }
}

TEST(WeightNames, RefusesMissingUnexpectedAndMisshapenTensors) {
  const ModelConfig config = small_config(Architecture::kQwen2, false);
  const std::vector<TestTensor> good = tensors_of(config);
  for (size_t i = 0; i < good.size(); ++i) {
    std::vector<TestTensor> tensors = good;
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
    expect_error(validate(config, tensors), StatusCode::kBadInput,
                 {"/model.safetensors: " + good[i].name + ": missing; expected shape " + shape_text(good[i].shape)});
    tensors = good;
    tensors[i].shape.push_back(1);
    expect_error(validate(config, tensors), StatusCode::kBadInput,
                 {"/model.safetensors: " + good[i].name + ": expected shape " + shape_text(good[i].shape) + ", found "});
  }
  for (const char* name : {"model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_norm.weight", "score.weight",
                           "model.layers.0.mlp.up_proj.bias", "a", "zzz"}) {
    std::vector<TestTensor> tensors = good;
    tensors.push_back({name, "U8", {1}, "x"});
    expect_error(validate(config, tensors), StatusCode::kBadInput,
                 {"/model.safetensors: " + std::string(name) + ": unexpected tensor of shape [1]", "qwen2"});
  }
  std::vector<TestTensor> tensors = good;
  tensors[3].dtype = "I16";
  expect_error(validate(config, tensors), StatusCode::kUnsupported, {tensors[3].name, "dtype I16 cannot be loaded"});
}

// Reject list, item 9: a config that does not fit its tensors.
TEST(WeightNames, RefusesAConfigOfOtherShapes) {
  const ModelConfig config = small_config(Architecture::kQwen3, false);
  const std::vector<TestTensor> tensors = tensors_of(config);
  const std::vector<std::function<void(ModelConfig&)>> changes = {[](ModelConfig& c) { c.vocab_size += 1; },
                                                                  [](ModelConfig& c) { c.num_heads = 4; },
                                                                  [](ModelConfig& c) { c.num_kv_heads = 2; },
                                                                  [](ModelConfig& c) { c.head_dim = 8; },
                                                                  [](ModelConfig& c) { c.hidden_size = 8; },
                                                                  [](ModelConfig& c) { c.intermediate_size = 12; },
                                                                  [](ModelConfig& c) { c.num_layers = 3; },
                                                                  [](ModelConfig& c) { c.num_layers = 1; },
                                                                  [](ModelConfig& c) { c.qkv_bias = true; },
                                                                  [](ModelConfig& c) { c.qk_norm = false; },
                                                                  [](ModelConfig& c) { c.vocab_size = kMaxVocabSize; },
                                                                  [](ModelConfig& c) { c.num_layers = kMaxLayers; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    ModelConfig changed = config;
    changes[i](changed);
    expect_error(validate(changed, tensors), StatusCode::kBadInput, {"/model.safetensors: "});
  }
}

TEST(WeightNames, TheShippedModelsAreComplete) {
  for (const char* name : {"target", "drafter"}) {
    const std::string folder = std::string(OUTRIDER_TEST_DATA) + "/tinymath/" + name;
    if (!std::filesystem::exists(folder + "/model.safetensors")) GTEST_SKIP() << folder << " is not there";
    const auto config = load_model_config(folder);
    ASSERT_TRUE(config.ok()) << config.status().message();
    const auto checkpoint = Checkpoint::open(folder);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    const Status status = validate_tensors(config.value(), checkpoint.value());
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

}  // namespace
}  // namespace otr
