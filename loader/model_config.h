// ModelConfig: the shape of a model, read from a Hugging Face folder's config.json and generation_config.json.
//
// Known: Qwen2 and Qwen2.5 (model_type qwen2), Qwen3 dense (qwen3) and with experts (qwen3_moe). A missing key has
// transformers' default. Everything a forward pass would have to treat differently (rope types other than default and yarn,
// active sliding windows, attention to later tokens, other activations, quantised weights, other model types) is refused by
// name, and so are keys that contradict each other (rope_scaling and rope_parameters). From generation_config.json only the
// end-of-sequence ids are read. Where it has no eos_token_id, config.json's counts, while transformers then never stops.
//
// Errors: kBadInput "<file>: <key>: <reason>" for wrong contents, kUnsupported likewise for what this build does not do,
// kIoError where a file cannot be read. Thread safety: values, no shared state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace otr {

enum class Architecture { kQwen2, kQwen3, kQwen3Moe };

std::string_view architecture_name(Architecture architecture);  // as in config.json's model_type

// YaRN's parameters, defaults filled in (graph/rope_frequencies.h says what they do).
struct YarnScaling {
  double factor = 1;  // >= 1
  int64_t original_max_positions = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  double attention_factor = 1;
  bool truncate = true;  // the ramp's ends are rounded to whole frequencies

  bool operator==(const YarnScaling&) const = default;
};

// A mixture of experts: an MLP of which every token takes a few experts of many.
struct ExpertsConfig {
  int32_t num_experts = 0;
  int32_t experts_per_token = 0;      // 1 … num_experts
  int32_t intermediate_size = 0;      // of one expert
  bool normalised = false;            // the weights of a token's experts add up to 1, not to what all experts' do
  std::vector<int32_t> dense_layers;  // that have a plain MLP instead; ascending

  bool operator==(const ExpertsConfig&) const = default;
};

// Invariants of a loaded config: every size is positive and at most kMax* below; num_heads % num_kv_heads == 0; head_dim is
// even; 0 < rms_norm_eps < 1; rope_theta and YaRN's numbers are in their ranges below, rope_theta above 1 with YaRN (whose
// blend divides by its logarithm), so that all rotary frequencies are finite; every eos id is in [0, vocab_size), ascending, no
// duplicates; experts only in a qwen3_moe of which a layer has them, kMaxExpertsOfLayers at most.
struct ModelConfig {
  Architecture architecture = Architecture::kQwen2;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab_size = 0;
  int32_t max_position_embeddings = 0;
  double rms_norm_eps = 0;
  double rope_theta = 0;
  std::optional<YarnScaling> yarn;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;         // q_proj, k_proj and v_proj have biases (Qwen2)
  bool qk_norm = false;          // every head of q and k passes an RMSNorm before RoPE (Qwen3)
  std::vector<int32_t> eos_ids;  // may be empty
  std::optional<ExpertsConfig> experts;

  // Whether the layer's MLP is a mixture of experts.
  bool has_experts(int32_t layer) const;
  // The width of all that a token runs of the layer's MLP: of its experts together.
  int64_t token_intermediate_size(int32_t layer) const;
};

inline constexpr int32_t kMaxHiddenSize = 1 << 16;
inline constexpr int32_t kMaxIntermediateSize = 1 << 18;
inline constexpr int32_t kMaxLayers = 1024;
inline constexpr int32_t kMaxHeads = 1024;
inline constexpr int32_t kMaxHeadDim = 256;
inline constexpr int32_t kMaxExperts = 1024, kMaxExpertsOfLayers = 1 << 16;  // of one layer, of all together
inline constexpr int32_t kMaxVocabSize = 1 << 21;
inline constexpr int32_t kMaxPositions = 1 << 24;

struct RealRange {
  double least, most;
};
inline constexpr RealRange kRopeThetaRange{1, 1e15}, kYarnFactorRange{1, 1e6}, kYarnBetaRange{1e-3, 1e6};

// Reads and checks `folder`/config.json and, where there is one, `folder`/generation_config.json.
Result<ModelConfig> load_model_config(const std::string& folder);

// The same from the files' contents, `generation_text` empty if there is none. `label` names their container in errors.
Result<ModelConfig> parse_model_config(const std::string& label, std::string_view config_text,
                                       std::string_view generation_text);

// Positions a sequence (prompt + response) may occupy: a prompt of this many tokens or more is refused. With YaRN the larger of
// max_position_embeddings and factor * original context.
int64_t context_limit(const ModelConfig& config);

}  // namespace otr
