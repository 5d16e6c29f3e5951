// How attention on sm_90a deals its work out: tasks (a bundle of tiles and a KV head) to blocks, and long ones to several
// blocks by splits. Decides time alone. Constant expressions of host and device.
#pragma once

#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/layouts/wgmma_layout.h"

namespace otr {

inline constexpr int kAttentionSm90Rows = kWgmmaM;  // query rows x group heads of a task

OTR_HOST_DEVICE constexpr int attention_sm90_tile_rows(int num_heads, int num_kv_heads) {
  const int group = num_heads / num_kv_heads;
  return group >= kAttentionSm90Rows ? 1 : kAttentionSm90Rows / group;
}

OTR_HOST_DEVICE constexpr int attention_num_splits(int64_t num_keys) {
  return static_cast<int>((num_keys + kAttentionSplit - 1) / kAttentionSplit);
}

// Floats of the workspace: o, m and l of every row, head and split.
OTR_HOST_DEVICE constexpr int64_t attention_sm90_workspace(int num_rows, int num_heads, int head_dim, int max_keys) {
  return int64_t{num_rows} * num_heads * attention_num_splits(max_keys) * (head_dim + 2);
}

// Rows whose partial results are worth having room for: those of all tasks as long as there are fewer than two a multiprocessor
// (attention_sm90_parts), each with a tile full of rows. At most max_rows, and what 512 MB hold: 72 rows of 128 K keys at
// Qwen2.5-7B's shape, 201 of 32 K at that of 32B. With more rows each task stays in one block.
inline constexpr int64_t kAttentionMostPartials = int64_t{512} << 18;  // floats
OTR_HOST_DEVICE constexpr int attention_sm90_split_rows(int num_heads, const KvLayout& layout, int max_keys, int max_rows,
                                                        int num_sms) {
  const int64_t row = attention_sm90_workspace(1, num_heads, layout.head_dim, max_keys);
  const int64_t held = row > 0 ? kAttentionMostPartials / row : max_rows;
  const int bundles = (2 * num_sms + layout.num_kv_heads - 1) / layout.num_kv_heads;
  const int64_t wanted = int64_t{bundles} * attention_sm90_tile_rows(num_heads, layout.num_kv_heads);
  const int64_t rows = wanted < held ? wanted : held;
  return rows < max_rows ? static_cast<int>(rows) : max_rows;
}

// Pages that a pool may have: the copy engine's coordinates are 32 bits, of rows of head_dim (keys) and of a page's tokens
// (values) from the pool's beginning. Of head_dim 32 they end at 128 GiB.
OTR_HOST_DEVICE constexpr int64_t attention_sm90_max_pages(const KvLayout& layout) {
  const int64_t narrower = layout.head_dim < kPageTokens ? layout.head_dim : kPageTokens;
  return int64_t{0x7fffffff} * narrower / layout.page_elements();
}

// Blocks that share a task: as many as give every multiprocessor its two blocks, at most one a split, and 1 where the workspace
// is too small.
OTR_HOST_DEVICE constexpr int attention_sm90_parts(int num_tasks, int num_sms, int max_keys, bool workspace_suffices) {
  const int splits = attention_num_splits(max_keys), wanted = (2 * num_sms + num_tasks - 1) / num_tasks;
  const int parts = wanted < splits ? wanted : splits;
  return workspace_suffices && parts > 1 ? parts : 1;
}

// Shared memory: a slot holds one page's keys or values of a head; head_dim 32 is padded to 64 by the copy engine.
OTR_HOST_DEVICE constexpr int attention_slot_bytes(int head_dim) { return kPageTokens * (head_dim < 64 ? 64 : head_dim) * 2; }
OTR_HOST_DEVICE constexpr int attention_num_slots(int head_dim) { return head_dim == 128 ? 4 : 10; }  // 64 or 80 KB a block
// q, slots, the merged o in float32, and 1 KB of barriers and positions: two blocks share 228 KB, of which each takes 1 KB for
// itself.
OTR_HOST_DEVICE constexpr int attention_shared_bytes(int head_dim) {
  return (1 + attention_num_slots(head_dim)) * attention_slot_bytes(head_dim) + kAttentionSm90Rows * head_dim * 4 + 1024;
}

}  // namespace otr
