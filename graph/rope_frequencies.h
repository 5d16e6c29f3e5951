// The rotary frequencies of a model: 1 / theta^(2i / head_dim), or YaRN's blend of them (Peng et al., "YaRN: Efficient Context
// Window Extension of Large Language Models", 2023, section 3.2-3.4) in the static form that Qwen checkpoints use.
//
// With s the factor and L the original context, frequency i is divided by s where a wavelength turns less than beta_slow times
// in L, kept where it turns more than beta_fast times, and blended linearly in i between; cosine and sine are multiplied by the
// attention factor, 0.1 ln s + 1 unless given. Computed with the float32 roundings of the reference implementations.
#pragma once

#include <span>

#include "loader/model_config.h"

namespace otr {

// Fills inv_freq [head_dim / 2] and returns the factor of cosine and sine. REQUIRES: inv_freq.size() == config.head_dim / 2.
float rope_frequencies(const ModelConfig& config, std::span<float> inv_freq);

}  // namespace otr
