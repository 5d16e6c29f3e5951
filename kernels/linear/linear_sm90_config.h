// Which kernel of the sm_90a family computes a product of linear, with what tile, ring and grid: a pure function of the problem
// and the device, printable, the same for every caller. It decides time alone: no choice here changes a bit of the result, as
// the order of every sum follows from the weight's shape (split_schedule.h).
//
// One family: the weight is wgmma's operand of 64 rows, the tokens are its N columns. A block's tile is tile_m outputs (64 for
// each consumer warpgroup) by tile_n tokens; a ring slot holds tile_m + tile_n rows of 64 inputs.
//
//   rows <= 64    tile_m 64, tile_n 8 … 64: two blocks a multiprocessor, up to 113 KB each, nearly all of it slots
//   rows <= 256   tile_m 128, tile_n 128
//   more          tile_m 128, tile_n 256; 192 if the weight is split, since its sums need a second set of accumulators. Two
//                 blocks are a cluster: each loads half of the tokens for both
//
// In the first two forms the splits of a weight are the blocks of a cluster (`side_by_side`).
#pragma once

#include <cstdint>
#include <string>

#include "kernels/layouts/split_schedule.h"

namespace otr {

struct LinearSm90Problem {
  int32_t num_rows;
  int32_t out_features;
  int32_t in_features;
  bool silu_mul;  // out_features = 2 x intermediate size; gate and up are computed together
};

struct DeviceLimits {
  int32_t num_sms = 132;
  int32_t shared_per_block = 232448;  // 227 KB
  int32_t shared_per_sm = 233472;     // 228 KB, of which each block takes 1 KB for itself

  // How many clusters of so many blocks run at once at most, where a multiprocessor holds `blocks_per_sm` of them: a cluster
  // lies inside one GPC, of 18 multiprocessors, and leaves idle what does not fill another.
  constexpr int resident_clusters(int cluster, int blocks_per_sm) const {
    constexpr int kSmsOfGpc = 18;
    const int gpcs = (num_sms + kSmsOfGpc - 1) / kSmsOfGpc, inside = gpcs * (kSmsOfGpc * blocks_per_sm / cluster),
              all = num_sms * blocks_per_sm / cluster, least = inside < all ? inside : all;
    return least > 1 ? least : 1;
  }
};

struct LinearSm90Config {
  int32_t consumers;     // warpgroups that compute; one more loads
  int32_t tile_n;        // tokens
  int32_t splits;        // of the contraction
  bool side_by_side;     // splits are the blocks of a cluster; else one after the other in a block
  int32_t cluster;       // blocks of a cluster: splits, or 2 that share tokens
  int32_t num_slots;     // of the ring
  int32_t shared_bytes;  // of a block
  int32_t tiles_m, tiles_n;
  int32_t num_clusters;  // of the grid; tiles are dealt out to them in turn
  bool prefetch;  // it begins before the launch ahead of it has ended, and fetches the weights of its first slots into L2

  OTR_HOST_DEVICE constexpr int tile_m() const { return consumers * kWgmmaM; }
  OTR_HOST_DEVICE constexpr int slot_bytes() const { return (tile_m() + tile_n) * kOperandRowBytes; }
  // Tiles that clusters take: pairs of tiles_m where two blocks share tokens.
  OTR_HOST_DEVICE constexpr int tiles() const { return (side_by_side ? tiles_m : (tiles_m + 1) / 2) * tiles_n; }
};

// REQUIRES: all sizes positive; silu_mul: out_features a multiple of 16.
LinearSm90Config choose_linear_sm90(const LinearSm90Problem& problem, const DeviceLimits& device);
// The same for another number of splits than the weight's own (1, 2, 4 or 8, at most a block of inputs each): for measurements.
LinearSm90Config choose_linear_sm90(const LinearSm90Problem& problem, const DeviceLimits& device, int splits);

inline constexpr int32_t kLinearExpertsRows = 128;  // the most of a tile of experts
// Of experts: p.num_rows are those of a tile (8, 16, 32, 64 or 128), of which there are at most max_tiles. Splits are 1, for a
// row alone has several experts' tiles: 8 of 1,536 outputs are 192.
LinearSm90Config choose_linear_experts_sm90(const LinearSm90Problem& problem, int32_t max_tiles, const DeviceLimits& device);

std::string to_string(const LinearSm90Config& config);

// The tile that a cluster takes as number `index`. Weight tiles turn fastest, in bands of eight that go through all tokens: a
// wave of clusters then reads a nearly square piece of both operands, which L2 holds.
struct TileCoordinates {
  int32_t m, n;  // m: a pair's first tile_m where two blocks share tokens
};
OTR_HOST_DEVICE constexpr TileCoordinates linear_tile(int32_t index, int32_t columns_m, int32_t tiles_n) {
  constexpr int32_t kBand = 8;
  const int32_t band = index / (kBand * tiles_n), first = band * kBand;
  const int32_t width = columns_m - first < kBand ? columns_m - first : kBand;
  const int32_t inside = index - first * tiles_n;
  return {first + inside % width, inside / width};
}

// Row of the tile that register i of a consumer thread (counted over all consumer warpgroups) holds.
OTR_HOST_DEVICE constexpr int linear_tile_row(int thread, int i) {
  return accumulator_row(thread % 128, i) + thread / 128 * kWgmmaM;
}
// Which output of the pair (gate, up) stands in a tile's row `tile_row`: paired_box puts 8 ups behind 8 gates.
OTR_HOST_DEVICE constexpr int linear_paired_output(int tile_m_begin, int tile_row) {
  return tile_m_begin / 2 + tile_row / 16 * 8 + tile_row % 8;
}

// Shared memory of a block: slots, then the exchange of side-by-side splits, then barriers.
inline constexpr int kLinearBarrierBytes = 512;
inline constexpr int kLinearMaxSlots = 24;
OTR_HOST_DEVICE constexpr int linear_exchange_bytes(int splits, int tile_n, int consumers) {
  return exchange_bytes(splits, tile_n / 8, consumers * 128);
}

}  // namespace otr
