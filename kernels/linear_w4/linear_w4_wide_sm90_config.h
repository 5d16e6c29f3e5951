// How linear_w4 runs on sm_90a above kW4NarrowRows rows: a pure function of the problem and the device, printable, the same for
// every caller.
//
// A block's tile is 128 outputs (two blocks of the weight's layout, one for each of two warpgroups) by tile_n tokens: 64 up to
// 64 rows, else 128. Weights with few tiles are split over the blocks of a cluster, in ranges of groups of 128 inputs; splits
// follow from the weight's shape alone, so that a row has the same bits among all row counts above kW4NarrowRows.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/layouts/w4_fragments.h"
#include "kernels/layouts/wgmma_layout.h"
#include "kernels/linear/linear_sm90_config.h"

namespace otr {

inline constexpr int kW4NarrowRows = 32;  // up to so many the other form: linear_w4_sm90_config.h
inline constexpr int kW4WideConsumers = 2;
inline constexpr int kW4WideBlockM = kW4WideConsumers * kW4Sm90BlockM;
inline constexpr int kW4WideThreads = (kW4WideConsumers + 1) * 128;  // of the last warpgroup one thread loads
inline constexpr int kW4WideMaxSlots = 8;
inline constexpr int kW4WideMaxCluster = 4;

// Shared memory: slots, expanded weights, what splits leave for each other, barriers. A slot is tile_n rows of 128 inputs (two
// operand tiles), then two groups of weights, then what is missing to a multiple of 1,024.
inline constexpr int kW4WideOperandBytes = kW4Sm90BlockM * kOperandRowBytes;  // 64 outputs x 64 inputs of bf16
inline constexpr int kW4WideExpandedBytes =
    kW4WideConsumers * 2 * 2 * kW4WideOperandBytes;  // [warpgroup][in turn][half of a group]
inline constexpr int kW4WidePieces = 4;              // columns of 8 tokens that splits add up at a time
inline constexpr int kW4WideExchangeBytes = kW4WidePieces * kW4WideConsumers * 128 * 16;
inline constexpr int kW4WideBarrierBytes = 2 * kW4WideMaxSlots * 8;

OTR_HOST_DEVICE constexpr int w4_wide_tokens_bytes(int tile_n) { return tile_n * kW4Sm90GroupK * 2; }
OTR_HOST_DEVICE constexpr int w4_wide_slot_bytes(int tile_n) {
  return (w4_wide_tokens_bytes(tile_n) + kW4WideConsumers * kW4Sm90GroupBytes + kSwizzleGroupBytes - 1) / kSwizzleGroupBytes *
         kSwizzleGroupBytes;
}

// Twice the splits while their blocks are no more than the multiprocessors of an H100 or H200, and have 4 groups or more each.
OTR_HOST_DEVICE constexpr int w4_wide_splits(int64_t out_features, int64_t in_features) {
  const int64_t tiles = (out_features + kW4WideBlockM - 1) / kW4WideBlockM;
  int splits = 1;
  while (splits < kW4WideMaxCluster && tiles * splits * 2 <= 132 && w4_sm90_groups(in_features) >= splits * 2 * 4) splits *= 2;
  return splits;
}
// Split s of S takes the groups [s G / S, (s + 1) G / S) of G.
OTR_HOST_DEVICE constexpr int w4_wide_split_begin(int split, int splits, int num_groups) { return split * num_groups / splits; }

struct LinearW4WideSm90Config {
  int32_t tile_n;        // tokens
  int32_t splits;        // blocks of a cluster: 1, 2 or 4
  int32_t num_slots;     // of the ring
  int32_t shared_bytes;  // of a block
  int32_t tiles_m, tiles_n;
  int32_t num_clusters;  // of the grid; tiles are dealt out to them in turn, tokens fastest

  OTR_HOST_DEVICE constexpr int tiles() const { return tiles_m * tiles_n; }
};

// REQUIRES: all sizes positive.
LinearW4WideSm90Config choose_linear_w4_wide_sm90(const LinearSm90Problem& problem, const DeviceLimits& device);

std::string to_string(const LinearW4WideSm90Config& config);

// ---- Expanded weights -------------------------------------------------------------------------------------------------------

// A lane of the warp of a fragment expands, of half h of a group, four words: steps 2 h and 2 h + 1 of 32 inputs, each of
// outputs g and g + 8. In turn `turn` (0, 1) it writes step w4_wide_step(lane, turn) of the two: lanes of odd g the second one
// first, so that eight lanes' stores of 16 bytes, of two rows, fall on different banks.
OTR_HOST_DEVICE constexpr int w4_wide_step(int lane, int turn) { return turn ^ (lane / 4 & 1); }
// Byte offset, in the operand tile of half h, of the 8 inputs that a lane's word of `step` holds: of output g (+ 8 where
// `upper`) of fragment `fragment`.
OTR_HOST_DEVICE constexpr uint32_t w4_wide_offset(int fragment, int lane, int step, bool upper) {
  const int row = fragment * kW4Sm90FragmentM + lane / 4 + (upper ? 8 : 0);
  return operand_offset(static_cast<uint32_t>(row), static_cast<uint32_t>(step * kW4Sm90StepK + lane % 4 * 8));
}

}  // namespace otr
