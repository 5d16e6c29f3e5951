// The 4-bit weight of linear_w4 on sm_90a, in the order in which the tensor cores' registers take it. Constant expressions of
// host and device.
//
// Blocks of 64 outputs, each [groups of 128 inputs] of 4,352 bytes (4.25 bits a weight):
//
//   4 fragments of 16 outputs, 1,024 bytes each: [2 halves of 64 inputs][32 lanes][16 bytes]
//   64 scale words, as linear_w4.h has them: [64 outputs]
//
// A lane's 16 bytes are four words of 8 inputs: steps 2 h and 2 h + 1 of 32 inputs, in each outputs g and g + 8, g = lane / 4.
// The word's inputs are 8 (lane % 4) … + 7 of the step, in nibbles 0, 2, 4, 6, 1, 3, 5, 7: pair i, (word >> 4 i) & 0x000f000f,
// is two neighbouring inputs in the halves of a register. So one 128-bit load is 16 registers of mma.m16n8k16's left operand
// without a shuffle; that a lane's inputs lie side by side, where the instruction counts them 2, 2, 2, 2, changes the order of
// a sum and nothing else, as long as the right operand is taken from the same places: 16 bytes of a token's row.
//
// Outputs and inputs are padded with q = zero (exact zeros): to 64 and 128. Of gate and up (`paired`) a fragment holds 8 gates,
// then their 8 ups: a thread has both sums.
#pragma once

#include <cstdint>

#include "kernels/base/macros.h"

namespace otr {

inline constexpr int kW4Sm90BlockM = 64;     // outputs of a block
inline constexpr int kW4Sm90FragmentM = 16;  // outputs of a fragment
inline constexpr int kW4Sm90GroupK = 128;    // inputs that share a scale
inline constexpr int kW4Sm90StepK = 32;      // inputs that four lanes' words cover
inline constexpr int kW4Sm90FragmentBytes = kW4Sm90FragmentM * kW4Sm90GroupK / 2;
inline constexpr int kW4Sm90WordsOffset = kW4Sm90BlockM * kW4Sm90GroupK / 2;  // of the scale words in a group
inline constexpr int kW4Sm90GroupBytes = kW4Sm90WordsOffset + kW4Sm90BlockM * 4;

OTR_HOST_DEVICE constexpr int w4_sm90_groups(int64_t in_features) {
  return static_cast<int>((in_features + kW4Sm90GroupK - 1) / kW4Sm90GroupK);
}
OTR_HOST_DEVICE constexpr int w4_sm90_blocks(int64_t out_features) {
  return static_cast<int>((out_features + kW4Sm90BlockM - 1) / kW4Sm90BlockM);
}
OTR_HOST_DEVICE constexpr int64_t w4_sm90_packed_bytes(int64_t out_features, int64_t in_features) {
  return int64_t{w4_sm90_blocks(out_features)} * w4_sm90_groups(in_features) * kW4Sm90GroupBytes;
}

// The output that row `row` of the packed weight is, out_features or more for padding. REQUIRES: paired: out_features % 16 ==
// 0.
OTR_HOST_DEVICE constexpr int64_t w4_sm90_output(int64_t row, int64_t out_features, bool paired) {
  if (!paired || row >= out_features) return row;
  return row / 16 * 8 + row % 8 + (row % 16 < 8 ? 0 : out_features / 2);
}
// Its inverse: the row of output n.
OTR_HOST_DEVICE constexpr int64_t w4_sm90_row(int64_t n, int64_t out_features, bool paired) {
  if (!paired) return n;
  const int64_t half = out_features / 2, i = n < half ? n : n - half;
  return i / 8 * 16 + i % 8 + (n < half ? 0 : 8);
}

OTR_HOST_DEVICE constexpr int64_t w4_sm90_group_offset(int64_t block, int64_t group, int64_t in_features) {
  return (block * w4_sm90_groups(in_features) + group) * kW4Sm90GroupBytes;
}
// Byte offset of the scale word of a row and group.
OTR_HOST_DEVICE constexpr int64_t w4_sm90_word_offset(int64_t row, int64_t group, int64_t in_features) {
  return w4_sm90_group_offset(row / kW4Sm90BlockM, group, in_features) + kW4Sm90WordsOffset + row % kW4Sm90BlockM * 4;
}
// Byte offset, in a fragment, of a lane's 16 bytes of half h.
OTR_HOST_DEVICE constexpr int w4_sm90_lane_offset(int h, int lane) { return h * 512 + lane * 16; }
// Index of q[row][k], in nibbles from the start of the weight, the lower nibble of a byte first.
OTR_HOST_DEVICE constexpr int64_t w4_sm90_nibble_index(int64_t row, int64_t k, int64_t in_features) {
  const int inside = static_cast<int>(k % kW4Sm90GroupK), step = inside / kW4Sm90StepK, place = inside % 8;
  const int lane = static_cast<int>(row % 8) * 4 + inside % kW4Sm90StepK / 8;
  const int64_t fragment = w4_sm90_group_offset(row / kW4Sm90BlockM, k / kW4Sm90GroupK, in_features) +
                           row % kW4Sm90BlockM / kW4Sm90FragmentM * kW4Sm90FragmentBytes;
  const int word = step % 2 * 2 + static_cast<int>(row % kW4Sm90FragmentM / 8);
  return (fragment + w4_sm90_lane_offset(step / 2, lane) + word * 4) * 2 + place % 2 * 4 + place / 2;
}

// Inputs 2 i and 2 i + 1 of a word as two bf16, each 128 + q: 0x4300 is 128, of which q takes the last mantissa bits. One LOP3
// and a shift.
OTR_HOST_DEVICE constexpr uint32_t w4_magic_pair(uint32_t word, int i) { return (word >> (4 * i) & 0x000f000fu) | 0x43004300u; }
// What is to be taken off both to leave q - zero, which is exact: 128 + zero, of a scale word.
OTR_HOST_DEVICE constexpr uint32_t w4_magic_zero(uint32_t scale_word) {
  return ((scale_word & 0xf) | (scale_word & 0xf) << 16) | 0x43004300u;
}

}  // namespace otr
