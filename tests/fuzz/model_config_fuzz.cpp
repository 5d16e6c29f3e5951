// config.json and generation_config.json: what is accepted keeps the invariants that the rest of the engine computes with.
// Input: config.json, and after a zero byte generation_config.json.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "graph/rope_frequencies.h"
#include "loader/model_config.h"
#include "loader/weight_names.h"
#include "loader/weight_plan.h"
#include "tests/fuzz/fuzz_target.h"

namespace otr::fuzz {
namespace {

void require_size(int32_t size, int32_t most) { require(size >= 1 && size <= most, "sizes are positive and bounded"); }

void require_invariants(const ModelConfig& c) {
  require_size(c.hidden_size, kMaxHiddenSize);
  require_size(c.intermediate_size, kMaxIntermediateSize);
  require_size(c.num_layers, kMaxLayers);
  require_size(c.num_heads, kMaxHeads);
  require_size(c.num_kv_heads, c.num_heads);
  require_size(c.head_dim, kMaxHeadDim);
  require_size(c.vocab_size, kMaxVocabSize);
  require_size(c.max_position_embeddings, kMaxPositions);
  require(c.num_heads % c.num_kv_heads == 0 && c.head_dim % 2 == 0, "heads divide, head_dim is even");
  require(c.rms_norm_eps > 0 && c.rms_norm_eps < 1 && c.rope_theta >= 1, "eps and theta are in range");
  for (const int32_t id : c.eos_ids) require(id >= 0 && id < c.vocab_size, "eos ids are in the vocabulary");
  require(std::is_sorted(c.eos_ids.begin(), c.eos_ids.end()), "eos ids ascend");
  require(context_limit(c) >= c.max_position_embeddings && context_limit(c) <= kMaxPositions, "the context is bounded");
  require(!c.experts || c.architecture == Architecture::kQwen3Moe, "experts belong to their architecture");
  if (c.experts) {
    require_size(c.experts->num_experts, kMaxExperts);
    require_size(c.experts->experts_per_token, c.experts->num_experts);
    require_size(c.experts->intermediate_size, kMaxIntermediateSize);
    require(int64_t{c.experts->num_experts} * c.num_layers <= kMaxExpertsOfLayers, "all experts are bounded");
    const std::vector<int32_t>& dense = c.experts->dense_layers;
    require(std::ranges::adjacent_find(dense, std::greater_equal<>()) == dense.end(), "dense layers ascend");
    require(static_cast<int32_t>(dense.size()) < c.num_layers, "some layer has experts");
    require(dense.empty() || (dense.front() >= 0 && dense.back() < c.num_layers), "dense layers are layers");
  }
  std::vector<float> frequencies(static_cast<size_t>(c.head_dim) / 2);
  require(std::isfinite(rope_frequencies(c, frequencies)), "cosine and sine are finite");
  require(std::ranges::all_of(frequencies, [](float f) { return f >= 0 && f <= 1; }), "frequencies are between 0 and 1");
}

}  // namespace
}  // namespace otr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace otr::fuzz;
  const std::string_view text = as_text(data, size);
  const size_t zero = text.find('\0');
  const auto config =
      otr::parse_model_config("model", text.substr(0, zero), zero == text.npos ? std::string_view() : text.substr(zero + 1));
  if (!config.ok()) return require_reason(config.status(), "model: "), 0;
  require_invariants(config.value());
  if (config.value().num_layers > 8) return 0;  // the same, only slower
  int64_t stacked = 0;
  for (const otr::WeightPiece& piece : otr::weight_plan(config.value()).pieces) {
    require(piece.elements() > 0 && piece.offset >= 0, "pieces have places");
    stacked += static_cast<int64_t>(piece.parts.size());
  }
  require(stacked == static_cast<int64_t>(otr::expected_tensors(config.value()).size()), "the plan takes every tensor once");
  return 0;
}
