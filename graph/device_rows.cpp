#include "graph/device_rows.h"

#include <algorithm>
#include <cassert>

#include "kernels/page/page.h"

namespace otr {

Result<DeviceRows> DeviceRows::create(const DeviceRowLimits& limits, Accelerator* accelerator) {
  DeviceRows r;
  r.limits_ = limits;
  MirrorLayout layout;
  r.page_tables_ = layout.add<PageId>(limits.max_page_entries);
  r.token_ids_ = layout.add<int32_t>(limits.max_rows);
  r.positions_ = layout.add<int32_t>(limits.max_rows);
  r.logit_rows_ = layout.add<int32_t>(limits.max_logit_rows);
  r.segments_ = layout.add<RowSegment>(limits.max_rows);
  r.tiles_ = layout.add<RowTile>(limits.max_rows);
  r.bundles_ = layout.add<TileBundle>(limits.max_rows);
  r.num_bundles_ = layout.add<int32_t>(1);
  r.num_rows_ = layout.add<int32_t>(1);
  r.copies_ = layout.add<KvCopy>(int64_t{limits.max_copies} + kKvCopyBlocks);
  constexpr int64_t kMostHostBytes = 64 << 20;  // of memory that the system cannot move
  const int64_t images = std::clamp<int64_t>(kMostHostBytes / layout.bytes(), 1, limits.max_under_way);
  OTR_ASSIGN_OR_RETURN(r.mirror_, Mirror::create(layout.bytes(), "row descriptors", accelerator, static_cast<int32_t>(images)));
  return r;
}

Status DeviceRows::fill(const RowBatch& batch, int32_t bucket) {
  assert(batch.num_rows <= bucket && bucket <= limits_.max_rows && batch.num_logit_rows <= limits_.max_logit_rows);
  assert(batch.num_copies <= limits_.max_copies);
  OTR_RETURN_IF_ERROR(mirror_.begin());
  fill_rows(batch, bucket);
  const int64_t begin = fill_pages(batch);
  KvCopy* copies = mirror_.host<KvCopy>(copies_);
  std::fill_n(std::copy_n(batch.copies, batch.num_copies, copies), kKvCopyBlocks, KvCopy{-1, kNoKvPage, kNoKvPage});
  mirror_.down(begin, copies_ + (int64_t{batch.num_copies} + kKvCopyBlocks) * static_cast<int64_t>(sizeof(KvCopy)));
  return {};
}

void DeviceRows::fill_rows(const RowBatch& batch, int32_t bucket) {
  const auto padded = [this, bucket]<typename T>(const T* from, int32_t count, int64_t offset, const T& rest) {
    T* to = mirror_.host<T>(offset);
    std::fill(std::copy_n(from, count, to), to + bucket, rest);
  };
  padded(batch.token_ids, batch.num_rows, token_ids_, int32_t{0});
  padded(batch.positions, batch.num_rows, positions_, int32_t{0});
  padded(batch.tiles, batch.num_tiles, tiles_, RowTile{0, 0, 0});
  padded(batch.bundles, batch.num_bundles, bundles_, TileBundle{0, 0, 0});
  *mirror_.host<int32_t>(num_bundles_) = batch.num_bundles;
  *mirror_.host<int32_t>(num_rows_) = batch.num_rows;
  std::copy_n(batch.logit_rows, batch.num_logit_rows, mirror_.host<int32_t>(logit_rows_));
}

// Segments, and their page tables at the end of the space there is for them. Returns where those begin.
int64_t DeviceRows::fill_pages(const RowBatch& batch) {
  int64_t entries = 0;
  for (int32_t s = 0; s < batch.num_segments; ++s) {
    const RowSegment& segment = batch.segments[s];
    const int32_t last = batch.positions[segment.first_row + segment.num_rows - 1];
    entries = std::max<int64_t>(entries, int64_t{segment.first_page} + last / kPageTokens + 1);
  }
  assert(entries <= limits_.max_page_entries);
  const int64_t skip = limits_.max_page_entries - entries;
  std::copy_n(batch.page_tables, entries, mirror_.host<PageId>(page_tables_) + skip);
  RowSegment* segments = mirror_.host<RowSegment>(segments_);
  for (int32_t s = 0; s < batch.num_segments; ++s) {
    segments[s] = batch.segments[s];
    segments[s].first_page += static_cast<int32_t>(skip);
  }
  return page_tables_ + skip * static_cast<int64_t>(sizeof(PageId));
}

RowBatch DeviceRows::padded(int32_t bucket) const {
  return {.num_rows = bucket,
          .num_segments = bucket,
          .num_tiles = bucket,
          .num_bundles = bucket,
          .num_logit_rows = 0,
          .num_copies = limits_.max_copies,
          .token_ids = mirror_.device<int32_t>(token_ids_),
          .positions = mirror_.device<int32_t>(positions_),
          .segments = mirror_.device<RowSegment>(segments_),
          .tiles = mirror_.device<RowTile>(tiles_),
          .bundles = mirror_.device<TileBundle>(bundles_),
          .page_tables = mirror_.device<PageId>(page_tables_),
          .logit_rows = nullptr,
          .copies = mirror_.device<KvCopy>(copies_),
          .num_bundles_at = mirror_.device<int32_t>(num_bundles_),
          .num_rows_at = mirror_.device<int32_t>(num_rows_)};
}

}  // namespace otr
