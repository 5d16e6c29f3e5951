// How a weight's contraction is cut and how the pieces are put together again, on sm_90a: a function of the weight's shape
// alone, so that a row has the same bits among 1 row and among thousands. Constant expressions of host and device.
//
// The inputs are blocks of 64; split s of S takes the blocks [s B / S, (s + 1) B / S). Inside a split wgmma adds steps of 16
// inputs, ascending, to one accumulator; the splits' sums are added in ascending order. Few rows: the S blocks of a cluster
// compute the splits side by side. Many rows: one block computes them one after the other, in the same order.
#pragma once

#include <cstdint>

#include "kernels/base/macros.h"
#include "kernels/layouts/wgmma_layout.h"

namespace otr {

inline constexpr int kMaxSplits = 8;  // the largest portable cluster

OTR_HOST_DEVICE constexpr int num_k_blocks(int64_t in_features) {
  return static_cast<int>((in_features + kOperandK - 1) / kOperandK);
}

// Twice the splits while there are fewer than 96 tiles of work and at least 8 blocks for each: 96 of 132 multiprocessors with
// 200 KB on the way each hold 19 MB in flight, several times what latency asks for (4.8 TB/s x 1 us = 5 MB).
OTR_HOST_DEVICE constexpr int weight_splits(int64_t out_features, int64_t in_features) {
  const int64_t tiles = (out_features + kWgmmaM - 1) / kWgmmaM;
  int splits = 1;
  while (splits < kMaxSplits && tiles * splits < 96 && num_k_blocks(in_features) >= 2 * splits * 8) splits *= 2;
  return splits;
}

OTR_HOST_DEVICE constexpr int split_begin(int split, int num_splits, int num_blocks) {
  return static_cast<int>(int64_t{split} * num_blocks / num_splits);
}

// Side by side, every block of the cluster adds up a share of the columns: groups of 8 columns (4 registers of a thread) go
// round. Group g belongs to rank g % S, and is the (g / S)-th of its groups.
OTR_HOST_DEVICE constexpr int group_owner(int group, int num_splits) { return group % num_splits; }
OTR_HOST_DEVICE constexpr int owned_groups(int rank, int num_splits, int num_groups) {
  return num_groups > rank ? (num_groups - rank + num_splits - 1) / num_splits : 0;
}
// Other ranks that own groups: to each of them `rank` sends, and from each it hears when what it sent has been read. (A rank
// that owns nothing must not be waited for: it could say so before `rank` has sent, and turn the barrier's phase too early.)
OTR_HOST_DEVICE constexpr int exchange_partners(int rank, int num_splits, int num_groups) {
  const int owners = num_groups < num_splits ? num_groups : num_splits;
  return owners - (rank < owners ? 1 : 0);
}
// The 16-byte piece, in the owner's exchange buffer, where source rank `source` leaves the registers of `group` of one thread.
// REQUIRES: source != owner.
OTR_HOST_DEVICE constexpr int exchange_piece(int source, int group, int thread, int num_splits, int num_groups,
                                             int num_threads) {
  const int owner = group_owner(group, num_splits), place = source < owner ? source : source - 1;
  return (place * owned_groups(0, num_splits, num_groups) + group / num_splits) * num_threads + thread;
}
OTR_HOST_DEVICE constexpr int exchange_bytes(int num_splits, int num_groups, int num_threads) {
  return (num_splits - 1) * owned_groups(0, num_splits, num_groups) * num_threads * 16;
}

}  // namespace otr
