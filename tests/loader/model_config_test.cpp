#include "loader/model_config.h"

#include "tests/loader/loader_fixture.h"

namespace otr {
namespace {

// Qwen2.5-0.5B's keys, Qwen3-0.6B's and Qwen3-30B-A3B's.
constexpr std::string_view kQwen2 = R"({"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,
"eos_token_id":151645,"hidden_act":"silu","hidden_size":896,"initializer_range":0.02,"intermediate_size":4864,
"max_position_embeddings":32768,"max_window_layers":21,"model_type":"qwen2","num_attention_heads":14,"num_hidden_layers":24,
"num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"sliding_window":32768,"tie_word_embeddings":true,
"torch_dtype":"bfloat16","use_cache":true,"use_sliding_window":false,"vocab_size":151936})";
constexpr std::string_view kQwen3 = R"({"attention_bias":false,"eos_token_id":[151645,151643,151645],"head_dim":128,
"hidden_act":"silu","hidden_size":1024,"intermediate_size":3072,"layer_types":["full_attention","full_attention"],
"max_position_embeddings":40960,"model_type":"qwen3","num_attention_heads":16,"num_hidden_layers":28,"num_key_value_heads":8,
"rms_norm_eps":1e-06,"rope_parameters":{"rope_type":"default","rope_theta":1000000},"rope_scaling":null,
"sliding_window":null,"tie_word_embeddings":true,"use_sliding_window":false,"vocab_size":151936})";

constexpr std::string_view kQwen3Moe = R"({"attention_bias":false,"bos_token_id":151643,"decoder_sparse_step":1,
"eos_token_id":151645,"head_dim":128,"hidden_act":"silu","hidden_size":2048,"intermediate_size":6144,
"max_position_embeddings":40960,"max_window_layers":48,"mlp_only_layers":[],"model_type":"qwen3_moe","moe_intermediate_size":768,
"norm_topk_prob":true,"num_attention_heads":32,"num_experts":128,"num_experts_per_tok":8,"num_hidden_layers":48,
"num_key_value_heads":4,"output_router_logits":false,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":1000000.0,
"router_aux_loss_coef":0.001,"sliding_window":null,"tie_word_embeddings":false,"use_sliding_window":false,"vocab_size":151936})";

// `base` with one key's value replaced, or the key added.
std::string with_key(std::string_view base, const std::string& key, const std::string& value) {
  std::string text(base);
  const size_t at = text.find("\"" + key + "\":");
  if (at == text.npos) return "{\"" + key + "\":" + value + "," + text.substr(1);
  const size_t begin = at + key.size() + 3;
  size_t end = begin;
  for (int depth = 0; depth > 0 || (text[end] != ',' && text[end] != '}'); ++end) {
    depth += text[end] == '[' || text[end] == '{';
    depth -= text[end] == ']' || text[end] == '}';
  }
  return text.replace(begin, end - begin, value);
}

Result<ModelConfig> load(std::string_view config, std::string_view generation = "") {
  const TempFolder folder;
  folder.write("config.json", config);
  if (!generation.empty()) folder.write("generation_config.json", generation);
  return load_model_config(folder.path());
}

void expect_refused(std::string_view base, const std::string& key, const std::string& value, StatusCode code,
                    const std::string& reason) {
  SCOPED_TRACE(key + " " + value);
  expect_error(load(with_key(base, key, value)).status(), code, {"/config.json: " + key + ": ", reason});
}

TEST(ModelConfig, ReadsQwen2) {
  const auto config = load(kQwen2);
  ASSERT_TRUE(config.ok()) << config.status().message();
  const ModelConfig& c = config.value();
  EXPECT_EQ(c.architecture, Architecture::kQwen2);
  EXPECT_EQ(c.hidden_size, 896);
  EXPECT_EQ(c.intermediate_size, 4864);
  EXPECT_EQ(c.num_layers, 24);
  EXPECT_EQ(c.num_heads, 14);
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.vocab_size, 151936);
  EXPECT_EQ(c.max_position_embeddings, 32768);
  EXPECT_EQ(context_limit(c), 32768);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.rope_theta, 1e6);
  EXPECT_TRUE(c.tie_word_embeddings && c.qkv_bias && !c.qk_norm);
  EXPECT_EQ(c.eos_ids, std::vector<int32_t>{151645});
}

TEST(ModelConfig, ReadsQwen3AndTheNewerRopeSpelling) {
  const auto config = load(kQwen3);
  ASSERT_TRUE(config.ok()) << config.status().message();
  const ModelConfig& c = config.value();
  EXPECT_EQ(c.architecture, Architecture::kQwen3);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.rope_theta, 1e6);
  EXPECT_TRUE(!c.qkv_bias && c.qk_norm);
  EXPECT_EQ(c.eos_ids, (std::vector<int32_t>{151643, 151645}));
}

TEST(ModelConfig, MissingKeysHaveTransformersDefaults) {
  const auto config = load(R"({"model_type":"qwen2"})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const ModelConfig& c = config.value();
  EXPECT_EQ(c.vocab_size, 151936);
  EXPECT_EQ(c.hidden_size, 4096);
  EXPECT_EQ(c.intermediate_size, 22016);
  EXPECT_EQ(c.num_layers, 32);
  EXPECT_EQ(c.num_heads, 32);
  EXPECT_EQ(c.num_kv_heads, 32);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.max_position_embeddings, 32768);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_TRUE(c.eos_ids.empty());

  const auto null_heads = load(R"({"model_type":"qwen3","num_attention_heads":16,"num_key_value_heads":null})");
  ASSERT_TRUE(null_heads.ok()) << null_heads.status().message();
  EXPECT_EQ(null_heads.value().num_kv_heads, 16);
  EXPECT_EQ(null_heads.value().head_dim, 128);
}

TEST(ModelConfig, RopeParametersWinOverTheTopLevel) {
  const auto config = load(with_key(with_key(kQwen2, "rope_theta", "5"), "rope_parameters", R"({"rope_theta":70})"));
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config.value().rope_theta, 70);
  EXPECT_TRUE(load(with_key(kQwen2, "rope_scaling", R"({"type":"default"})")).ok());
}

TEST(ModelConfig, ReadsYarnInBothSpellings) {
  const auto older =
      load(with_key(kQwen2, "rope_scaling", R"({"type":"yarn","factor":4.0,"original_max_position_embeddings":32768})"));
  ASSERT_TRUE(older.ok()) << older.status().message();
  ASSERT_TRUE(older.value().yarn.has_value());
  EXPECT_EQ(older.value().yarn->factor, 4.0);
  EXPECT_EQ(older.value().yarn->beta_fast, 32.0);
  EXPECT_NEAR(older.value().yarn->attention_factor, 1.1386294361119891, 1e-12);  // 0.1 ln 4 + 1
  EXPECT_EQ(context_limit(older.value()), 131072);
  const auto newer =
      load(with_key(kQwen3, "rope_parameters",
                    R"({"rope_type":"yarn","rope_theta":70,"factor":2.0,"attention_factor":1.5,"beta_slow":2,"truncate":false,
          "original_max_position_embeddings":1000})"));
  ASSERT_TRUE(newer.ok()) << newer.status().message();
  EXPECT_EQ(newer.value().rope_theta, 70);
  EXPECT_EQ(newer.value().yarn->attention_factor, 1.5);
  EXPECT_EQ(newer.value().yarn->beta_slow, 2.0);
  EXPECT_FALSE(newer.value().yarn->truncate);
  EXPECT_EQ(context_limit(newer.value()), newer.value().max_position_embeddings);
  for (const char* bad :
       {R"({"type":"yarn"})", R"({"type":"yarn","factor":0.5})", R"({"type":"yarn","factor":2,"beta_slow":64})",
        R"({"type":"yarn","factor":2,"original_max_position_embeddings":0})", R"({"type":"yarn","factor":2,"rope_theta":1})"}) {
    EXPECT_EQ(load(with_key(kQwen2, "rope_scaling", bad)).status().code(), StatusCode::kBadInput) << bad;
  }
}

// Of the two transformers takes rope_scaling, whatever the other says.
TEST(ModelConfig, RefusesRopeSpellingsThatDiffer) {
  const auto both = [](const std::string& older, const std::string& newer) {
    return load(with_key(with_key(kQwen2, "rope_scaling", older), "rope_parameters", newer));
  };
  const std::string yarn = R"({"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768})";
  const std::string theta = R"({"rope_type":"default","rope_theta":1000000})";
  for (const auto& [older, newer] : std::vector<std::pair<std::string, std::string>>{
           {yarn, theta},
           {theta, yarn},
           {yarn, R"({"rope_type":"yarn","factor":2.0,"original_max_position_embeddings":32768})"},
           {yarn, R"({"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768,"beta_fast":16})"},
           {R"({"rope_type":"default"})", R"({"rope_type":"default","rope_theta":5})"}}) {
    expect_error(both(older, newer).status(), StatusCode::kBadInput,
                 {"/config.json: rope_scaling: says something else than rope_parameters"});
  }
  for (const auto& [older, newer] : std::vector<std::pair<std::string, std::string>>{
           {yarn, yarn},
           {R"({"type":"yarn","factor":4})", yarn},
           {yarn, R"({"type":"yarn","factor":4,"rope_theta":1e6,"original_max_position_embeddings":32768})"},
           {"null", yarn},
           {yarn, "null"},
           {"{}", yarn},
           {yarn, "{}"}}) {
    const auto config = both(older, newer);
    ASSERT_TRUE(config.ok()) << config.status().message();
    ASSERT_TRUE(config.value().yarn) << older << newer;
    EXPECT_EQ(config.value().yarn->factor, 4.0);
    EXPECT_EQ(config.value().rope_theta, 1e6);
  }
  EXPECT_TRUE(both(theta, R"({"rope_type":"default"})").ok()) << "the top level's rope_theta";
}

TEST(ModelConfig, YarnsOriginalContextMayStandAtTheTopLevel) {
  const auto with_original = [](const std::string& top, const std::string& rope) {
    return load(with_key(with_key(kQwen2, "original_max_position_embeddings", top), "rope_scaling", rope));
  };
  const std::string bare = R"({"type":"yarn","factor":4})";
  const auto taken = with_original("8192", bare);
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  EXPECT_EQ(taken.value().yarn->original_max_positions, 8192);
  EXPECT_EQ(with_original("null", bare).value().yarn->original_max_positions, 32768);
  const std::string own = R"({"type":"yarn","factor":4,"original_max_position_embeddings":8192})";
  EXPECT_EQ(with_original("8192", own).value().yarn->original_max_positions, 8192);
  expect_error(with_original("4096", own).status(), StatusCode::kBadInput,
               {"/config.json: original_max_position_embeddings: 4096 is not yarn's own, 8192"});
  expect_error(with_original("0", bare).status(), StatusCode::kBadInput, {"original_max_position_embeddings: 0 is outside"});
  EXPECT_TRUE(with_original("4096", R"({"type":"default"})").ok()) << "of no effect without yarn";
}

TEST(ModelConfig, GenerationConfigDecidesTheStopIds) {
  const auto list = load(kQwen2, R"({"eos_token_id":[7,3],"temperature":0.7})");
  ASSERT_TRUE(list.ok());
  EXPECT_EQ(list.value().eos_ids, (std::vector<int32_t>{3, 7}));
  const auto number = load(kQwen2, R"({"eos_token_id":5})");
  ASSERT_TRUE(number.ok());
  EXPECT_EQ(number.value().eos_ids, std::vector<int32_t>{5});
  for (const char* silent : {R"({"top_p":0.8})", R"({"eos_token_id":null})"}) {
    const auto config = load(kQwen2, silent);
    ASSERT_TRUE(config.ok());
    EXPECT_EQ(config.value().eos_ids, std::vector<int32_t>{151645});
  }
  for (const char* bad : {"-1", "151936", "\"x\"", "[1,2.0]", "[[1]]", "18446744073709551615"}) {
    expect_error(load(kQwen2, std::string("{\"eos_token_id\":") + bad + "}").status(), StatusCode::kBadInput,
                 {"/generation_config.json: eos_token_id: "});
  }
}

TEST(ModelConfig, ChecksEveryNumber) {
  for (const std::string key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                                "num_key_value_heads", "vocab_size", "max_position_embeddings", "head_dim"}) {
    for (const char* value : {"0", "-1", "2147483647", "9223372036854775807", "18446744073709551615"}) {
      expect_refused(kQwen2, key, value, StatusCode::kBadInput, "");
    }
    expect_refused(kQwen2, key, "64.0", StatusCode::kBadInput, "must be an integer, not a fraction");
    expect_refused(kQwen2, key, "\"64\"", StatusCode::kBadInput, "must be an integer, not a string");
    expect_refused(kQwen2, key, "[64]", StatusCode::kBadInput, "must be an integer, not an array");
  }
  expect_refused(kQwen2, "hidden_size", "65537", StatusCode::kBadInput, "65537 is outside 1..65536");
  expect_refused(kQwen2, "num_key_value_heads", "4", StatusCode::kBadInput, "4 does not divide num_attention_heads 14");
  expect_refused(kQwen2, "num_key_value_heads", "28", StatusCode::kBadInput, "28 does not divide");
  expect_refused(kQwen2, "head_dim", "63", StatusCode::kBadInput, "63 is odd");
  expect_refused(kQwen3, "head_dim", "258", StatusCode::kBadInput, "258 is outside 1..256");
  for (const char* value : {"0", "-1e-6", "1", "\"x\"", "true"}) {
    expect_refused(kQwen2, "rms_norm_eps", value, StatusCode::kBadInput, "");
  }
  for (const char* value : {"0", "-10000", "1e300", "\"x\""}) {
    expect_refused(kQwen2, "rope_theta", value, StatusCode::kBadInput, "");
  }
  expect_refused(kQwen2, "eos_token_id", "151936", StatusCode::kBadInput, "outside the vocabulary of 151936");
  expect_refused(kQwen2, "tie_word_embeddings", "1", StatusCode::kBadInput, "must be true or false");
  expect_error(load(R"({"model_type":"qwen2","hidden_size":100,"num_attention_heads":32})").status(), StatusCode::kBadInput,
               {"num_attention_heads", "does not divide hidden_size"});
  expect_error(load(R"({"model_type":"qwen2","hidden_size":60000,"num_attention_heads":1,"num_key_value_heads":1})").status(),
               StatusCode::kBadInput, {"head_dim", "60000"});
}

TEST(ModelConfig, RefusesByNameWhatItDoesNotKnow) {
  const auto expect_unsupported = [](std::string_view base, const char* key, const char* value, const char* reason) {
    expect_refused(base, key, value, StatusCode::kUnsupported, reason);
  };
  expect_unsupported(kQwen2, "model_type", "\"llama\"", "'llama'");
  expect_unsupported(kQwen2, "model_type", "\"qwen2_moe\"", "'qwen2_moe' is a mixture of experts");
  expect_unsupported(kQwen3, "model_type", "\"qwen3_next\"", "'qwen3_next'");
  expect_unsupported(kQwen3Moe, "attention_bias", "true", "attention biases are not supported for qwen3_moe");
  expect_unsupported(kQwen2, "hidden_act", "\"gelu\"", "'gelu'");
  expect_unsupported(kQwen2, "use_sliding_window", "true", "sliding windows");
  expect_unsupported(kQwen3, "attention_bias", "true", "attention biases");
  expect_unsupported(kQwen3, "layer_types", R"(["full_attention","sliding_attention"])", "'sliding_attention'");
  expect_unsupported(kQwen2, "quantization_config", R"({"bits":4})", "quantised");
  expect_unsupported(kQwen2, "transformers_weights", "\"other.safetensors\"", "a file of another name");
  expect_unsupported(kQwen2, "is_causal", "false", "later tokens");
  expect_unsupported(kQwen3, "is_causal", "null", "later tokens");
  expect_unsupported(kQwen3, "rope_parameters", R"({"rope_type":"llama3"})", "'llama3'");
  expect_unsupported(kQwen3, "rope_parameters", R"({"rope_type":"default","partial_rotary_factor":0.5})",
                     "partial_rotary_factor");
  expect_unsupported(kQwen3, "rope_parameters", R"({"full_attention":{"rope_type":"yarn","factor":4.0}})", "'full_attention'");
  expect_unsupported(kQwen2, "rope_scaling", R"({"type":"default","mrope_section":[16,24,24]})", "'mrope_section'");
  EXPECT_TRUE(load(with_key(kQwen2, "attention_bias", "true")).ok()) << "Qwen2 has its biases in any case";
  EXPECT_TRUE(load(with_key(with_key(kQwen2, "is_causal", "true"), "transformers_weights", "null")).ok());
  EXPECT_TRUE(load(with_key(kQwen2, "transformers_weights", "\"model.safetensors\"")).ok());
}

TEST(ModelConfig, ReadsExperts) {
  const auto config = load(kQwen3Moe);
  ASSERT_TRUE(config.ok()) << config.status().message();
  const ModelConfig& c = config.value();
  EXPECT_EQ(c.architecture, Architecture::kQwen3Moe);
  EXPECT_TRUE(c.qk_norm && !c.qkv_bias);
  EXPECT_EQ(c.head_dim, 128);
  ASSERT_TRUE(c.experts);
  EXPECT_EQ(*c.experts, (ExpertsConfig{128, 8, 768, true, {}}));
  EXPECT_TRUE(c.has_experts(0) && c.has_experts(47));

  const auto mixed = load(with_key(with_key(kQwen3Moe, "mlp_only_layers", "[3,0,3]"), "decoder_sparse_step", "16"));
  ASSERT_TRUE(mixed.ok()) << mixed.status().message();
  for (int32_t layer = 0; layer < 48; ++layer)
    EXPECT_EQ(mixed.value().has_experts(layer), layer == 15 || layer == 31 || layer == 47);
  const auto named = load(with_key(kQwen3Moe, "mlp_only_layers", "[47,2]"));
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named.value().experts->dense_layers, (std::vector<int32_t>{2, 47}));
  EXPECT_FALSE(load(kQwen3).value().experts);

  std::string newer(kQwen3Moe);
  newer.replace(newer.find("num_experts"), std::string("num_experts").size(), "num_local_experts");
  const auto local = load(with_key(newer, "num_local_experts", "16"));
  ASSERT_TRUE(local.ok()) << local.status().message();
  EXPECT_EQ(local.value().experts->num_experts, 16);

  // transformers' defaults
  const auto silent = load(R"({"model_type":"qwen3_moe","hidden_size":2048,"num_hidden_layers":2})");
  ASSERT_TRUE(silent.ok()) << silent.status().message();
  EXPECT_EQ(*silent.value().experts, (ExpertsConfig{128, 8, 768, false, {}}));
  EXPECT_EQ(silent.value().head_dim, 64);
  EXPECT_EQ(silent.value().num_kv_heads, 4);
  EXPECT_EQ(silent.value().intermediate_size, 6144);
  const auto least = load(R"({"model_type":"qwen3_moe"})");
  ASSERT_TRUE(least.ok()) << least.status().message();
  EXPECT_EQ(least.value().hidden_size, 2048);
  EXPECT_EQ(least.value().num_layers, 24);
  EXPECT_FALSE(load(with_key(kQwen3Moe, "decoder_sparse_step", "49")).value().experts) << "no layer has any";
  EXPECT_TRUE(load(with_key(kQwen3Moe, "mlp_only_layers", "[48]")).value().has_experts(47)) << "as transformers";

  for (const char* key : {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step"}) {
    for (const char* bad : {"0", "-1", "2147483647", "\"8\"", "1.5"})
      expect_refused(kQwen3Moe, key, bad, StatusCode::kBadInput, "");
  }
  expect_error(load(with_key(kQwen3Moe, "num_experts", "7")).status(), StatusCode::kBadInput,
               {"num_experts_per_tok: 8 is above num_experts 7"});
  expect_refused(kQwen3Moe, "num_experts_per_tok", "129", StatusCode::kBadInput, "129 is above num_experts 128");
  expect_error(load(with_key(kQwen3Moe, "num_hidden_layers", "1000")).status(), StatusCode::kBadInput,
               {"num_experts: 128 in 1000 layers are more than 65536 in all"});
  expect_refused(kQwen3Moe, "norm_topk_prob", "1", StatusCode::kBadInput, "must be true or false");
  for (const char* bad : {"3", "[-1]", "[\"a\"]", "[[1]]", "{}"}) {
    expect_refused(kQwen3Moe, "mlp_only_layers", bad, StatusCode::kBadInput, "");
  }
}

TEST(ModelConfig, RefusesBrokenFiles) {
  const TempFolder folder;
  expect_error(load_model_config(folder.path()).status(), StatusCode::kIoError, {"/config.json", "No such file"});
  expect_error(load("[]").status(), StatusCode::kBadInput, {"/config.json", "not a JSON object"});
  expect_error(load("{}").status(), StatusCode::kBadInput, {"/config.json", "model_type: missing"});
  expect_error(load(R"({"model_type":"qwen2","model_type":"qwen3"})").status(), StatusCode::kBadInput, {"duplicate key"});
  expect_error(load(R"({"model_type":2})").status(), StatusCode::kBadInput, {"model_type", "must be a string"});
  expect_error(load(kQwen3.substr(0, 200)).status(), StatusCode::kBadInput, {"/config.json: JSON: "});
  expect_error(load(kQwen2, "{").status(), StatusCode::kBadInput, {"/generation_config.json: JSON: "});
  expect_error(load(with_key(kQwen3, "rope_parameters", "[]")).status(), StatusCode::kBadInput, {"rope_parameters"});
  expect_error(load(with_key(kQwen3, "rope_parameters", R"({"rope_theta":0})")).status(), StatusCode::kBadInput,
               {"rope_theta"});
}

TEST(ModelConfig, SurvivesMutations) {
  std::mt19937 random(1);
  const TempFolder folder;
  const std::string yarn = R"({"type":"yarn","factor":4.0,"original_max_position_embeddings":8192})";
  std::string twice(kQwen2);  // of keys that must agree
  for (const auto& [key, value] : {std::pair<std::string, std::string>{"original_max_position_embeddings", "8192"},
                                   {"rope_scaling", yarn},
                                   {"rope_parameters", yarn},
                                   {"is_causal", "true"}})
    twice = with_key(twice, key, value);
  ASSERT_TRUE(load(twice).ok());
  int accepted = 0;
  for (int i = 0; i < 4500; ++i) {
    folder.write("config.json", mutated(i % 3 == 0 ? twice : std::string(i % 3 == 1 ? kQwen2 : kQwen3), random));
    const auto config = load_model_config(folder.path());
    accepted += config.ok();
    if (!config.ok()) expect_error(config.status(), config.status().code(), {"config.json"});
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 3000);
}

}  // namespace
}  // namespace otr
