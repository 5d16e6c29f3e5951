// The product that attention_tile.h makes twice a split: of some lanes' rows with what pages hold in vectors of pairs (page.h).
#pragma once

#include <cstdint>

#include "kernels/attention/attention.h"

namespace otr {

// Lanes are so many values apart: an odd number of cache lines of float32, of halves of lines of bf16, so that they do not
// compete for the same places of L1.
inline constexpr int kAttentionStride = 272;
static_assert(kAttentionStride >= kAttentionSplit && kAttentionStride >= kAttentionMaxHeadDim);

// c[lane][16 block + i] = sum over pairs, ascending, of a[lane][2 pair …] b[block][pair][i][…]
template <typename Operand>
struct AttentionProduct {
  const Element* const* pieces;  // piece n holds b's pairs from n * piece_pairs on: [blocks][block_elements]
  const Element* const* ahead;   // likewise, what is read after this product: hints
  int64_t block_elements;
  int blocks, pairs, piece_pairs;
  const Operand* a;  // [lanes][kAttentionStride]
  float* c;          // [lanes][kAttentionStride]
  int lanes;

  using Lanes = void (*)(const AttentionProduct&, int first_lane);  // makes the product of some lanes
};

// In parts of equal size.
template <typename Isa>
OTR_INLINE void attention_product(const AttentionProduct<typename Isa::Operand>& t) {
  constexpr int kMostLanes = static_cast<int>(sizeof Isa::kProducts / sizeof Isa::kProducts[0]) - 1;
  const int parts = (t.lanes + kMostLanes - 1) / kMostLanes;
  for (int i = 0; i < parts; ++i) {
    const int begin = t.lanes * i / parts, end = t.lanes * (i + 1) / parts;
    Isa::kProducts[end - begin](t, begin);
  }
}

}  // namespace otr
