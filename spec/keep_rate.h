// KeepRate: the share of drafted tokens that were kept, among those that the target judged: a chain is judged up to its first
// wrong token. Starts at one half, with the weight of two tokens.
//
// Thread safety: values.
#pragma once

#include <cstdint>

namespace otr {

struct KeepRate {
  int64_t tried = 0, kept = 0;

  float value() const { return static_cast<float>(kept + 1) / static_cast<float>(tried + 2); }
  // What is long ago counts less: where there are many judged tokens, half.
  void fade() {
    constexpr int64_t kMany = 1 << 14;
    if (tried > kMany) tried /= 2, kept /= 2;
  }
  // A chain of `drafted` tokens of which the first `num_kept` were kept.
  void add_chain(int32_t drafted, int32_t num_kept) {
    kept += num_kept;
    tried += num_kept + (num_kept < drafted ? 1 : 0);
  }
};

}  // namespace otr
