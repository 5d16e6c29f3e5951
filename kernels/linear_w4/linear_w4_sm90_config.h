// How linear_w4 runs on sm_90a up to kW4NarrowRows rows (more: linear_w4_wide_sm90_config.h): a pure function of the problem
// and the device, printable, the same for every caller.
//
// A block's tile is 64 outputs by tile_n tokens. Its 8 warps are splits of the contraction: each takes every 8th group of 128
// inputs, through a ring of its own, and keeps sums of the whole tile. Weights with few tiles are also split over the blocks of
// a cluster, so that their bytes are asked for by more multiprocessors. Splits follow from the weight's shape alone; only
// tile_n follows from the rows.
//
//   rows <= 8 / 16   tile_n 8 / 16
//   more             tile_n 32; beyond them, where a measurement asks for it, every further 32 tokens read the weight again, from L2
#pragma once

#include <cstdint>
#include <string>

#include "kernels/layouts/w4_fragments.h"
#include "kernels/linear/linear_sm90_config.h"

namespace otr {

inline constexpr int kW4Sm90Warps = 8;
inline constexpr int kW4Sm90MaxSlots = 8;
inline constexpr int kW4Sm90MaxCluster = 4;
// Shared memory: the warps' slots, then what warps leave for each other (4 fragments of 16 outputs by 8 tokens each), then
// barriers.
inline constexpr int kW4Sm90ExchangeBytes = kW4Sm90Warps * 4 * 32 * 16;
inline constexpr int kW4Sm90BarrierBytes = kW4Sm90Warps * kW4Sm90MaxSlots * 8;

OTR_HOST_DEVICE constexpr int w4_sm90_slot_bytes(int tile_n) { return kW4Sm90GroupBytes + tile_n * kW4Sm90GroupK * 2; }

// Blocks of a cluster: twice as many while there are fewer than 96 blocks, and groups for every warp of them.
OTR_HOST_DEVICE constexpr int w4_sm90_cluster(int64_t out_features, int64_t in_features) {
  int cluster = 1;
  while (cluster < kW4Sm90MaxCluster && w4_sm90_blocks(out_features) * cluster < 96 &&
         w4_sm90_groups(in_features) >= 2 * cluster * kW4Sm90Warps) {
    cluster *= 2;
  }
  return cluster;
}
// Split s of S takes groups s, s + S, s + 2 S, …; of fewer groups than splits the last splits have none.
OTR_HOST_DEVICE constexpr int w4_sm90_splits(int64_t out_features, int64_t in_features) {
  return w4_sm90_cluster(out_features, in_features) * kW4Sm90Warps;
}

struct LinearW4Sm90Config {
  int32_t tile_n;        // tokens
  int32_t cluster;       // blocks of a cluster: 1, 2 or 4
  int32_t num_slots;     // of a warp's ring
  int32_t shared_bytes;  // of a block
  int32_t tiles_m, tiles_n;
  int32_t num_clusters;  // of the grid; tiles are dealt out to them in turn, tokens fastest

  OTR_HOST_DEVICE constexpr int tiles() const { return tiles_m * tiles_n; }
};

// REQUIRES: all sizes positive.
LinearW4Sm90Config choose_linear_w4_sm90(const LinearSm90Problem& problem, const DeviceLimits& device);

// Of experts: p.num_rows are those of a tile (8, 16 or 32), of which there are at most max_tiles. Splits are a block's 8 warps,
// for a row alone has several experts' tiles.
LinearW4Sm90Config choose_linear_w4_experts_sm90(const LinearSm90Problem& problem, int32_t max_tiles,
                                                 const DeviceLimits& device);

std::string to_string(const LinearW4Sm90Config& config);

}  // namespace otr
