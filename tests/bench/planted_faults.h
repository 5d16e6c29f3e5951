// Wrong values planted into the kernels of a table, for tests of the suite: one output, at a place that a seed draws, the same
// in every call. No product code knows of it. One table at a time.
#pragma once

#include <cmath>

#include "kernels/base/philox.h"
#include "kernels/dispatch.h"

namespace otr::bench {

inline KernelTable unplanted;  // the kernels themselves
inline uint32_t plant_seed = 0;
inline bool plant_gated_alone = false;  // of products: in calls with gated outputs, no others

inline int64_t planted_place(int64_t n) {
  const PhiloxBlock b = philox4x32(PhiloxKey{plant_seed, 0}, PhiloxBlock{{0, 0, 0, 0}});
  return static_cast<int64_t>((uint64_t{b.w[0]} << 31 ^ b.w[1]) % static_cast<uint64_t>(n));
}

inline void spoil(float* value, float by) { *value += by; }
inline void spoil(Element* value, float by) { *value = to_element(to_float(*value) + by); }

// Off by half; a gated output by half of itself at least, being rounded to bf16.
template <typename Params>
void plant_in_product(const Params& p) {
  if (p.gated != nullptr) {
    const int64_t width = p.weight.out_features / 2, at = planted_place(p.num_rows * width);
    Element* const value = p.gated + at / width * p.gated_stride + at % width;
    spoil(value, 0.5f + 0.5f * std::fabs(to_float(*value)));
  } else if (!plant_gated_alone) {
    const int64_t width = p.weight.out_features, at = planted_place(p.num_rows * width);
    spoil(p.out + at / width * p.out_stride + at % width, 0.5f);
  }
}

inline void wrong_linear(const LinearParams& p, const LaunchContext& on) {
  unplanted.linear(p, on);
  plant_in_product(p);
}

inline void wrong_linear_w4(const LinearW4Params& p, const LaunchContext& on) {
  unplanted.linear_w4(p, on);
  plant_in_product(p);
}

// All of a block of 32 outputs, in every row, off by little more than each may be.
inline void wrong_block(const LinearParams& p, const LaunchContext& on) {
  unplanted.linear(p, on);
  const int64_t first = planted_place(p.weight.out_features / kLinearBlockN) * kLinearBlockN;
  for (int64_t r = 0; r < p.num_rows; ++r) {
    for (int64_t n = first; n < first + kLinearBlockN; ++n) spoil(p.out + r * p.out_stride + n, 0.0005f);
  }
}

inline void wrong_rope_append(const RopeAppendParams& p, const LaunchContext& on) {
  unplanted.rope_append(p, on);
  p.fault[planted_place(p.rows->num_rows)] = 1;
}

inline void wrong_attention(const AttentionParams& p, const LaunchContext& on) {
  unplanted.attention(p, on);
  const int64_t width = int64_t{p.num_heads} * p.layout.head_dim, at = planted_place(p.rows->num_rows * width);
  spoil(p.out + at / width * p.out_stride + at % width, 0.1f);
}

inline void wrong_sample(const SampleParams& p, const LaunchContext& on) {
  unplanted.sample(p, on);
  ++p.results[planted_place(p.num_draws)].token;
}

inline void wrong_candidates(const CandidateParams& p, const LaunchContext& on) {
  unplanted.candidates(p, on);
  Candidates& found = p.results[planted_place(p.num_draws)];
  for (float* value : {found.score, found.gap, &found.mean_score}) *value += 0.01f;
}

inline void plant_wrong(KernelTable& table) {
  unplanted = table;
  table.linear = wrong_linear;
  table.linear_w4 = wrong_linear_w4;
  table.attention = wrong_attention;
  table.rope_append = wrong_rope_append;
  table.sample = wrong_sample;
  table.candidates = wrong_candidates;
}

}  // namespace otr::bench
