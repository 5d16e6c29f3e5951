#include "tests/cuda/sm90_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/attention/attention_sm90.h"
#include "kernels/embed/embed_sm90.h"
#include "kernels/linear/linear_sm90.h"
#include "kernels/linear_w4/linear_w4_sm90.h"
#include "kernels/page/page_sm90.h"
#include "kernels/quantize_w4/quantize_w4_sm90.h"
#include "kernels/rmsnorm/rmsnorm_sm90.h"
#include "kernels/rope_append/rope_append_sm90.h"
#include "kernels/sample/sample_sm90.h"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/w4_repack.h"

namespace otr::testing_util {
namespace {

template <typename T>
std::unique_ptr<DeviceBuffer<T>> upload(const T* values, int64_t size) {
  if (values == nullptr) return nullptr;
  return std::make_unique<DeviceBuffer<T>>(values, static_cast<size_t>(size));
}
template <typename T>
T* pointer(const std::unique_ptr<DeviceBuffer<T>>& buffer) {
  return buffer != nullptr ? buffer->data() : nullptr;
}
template <typename T>
void download(const std::unique_ptr<DeviceBuffer<T>>& buffer, T* to) {
  if (buffer == nullptr) return;
  const std::vector<T> values = buffer->read();
  std::copy(values.begin(), values.end(), to);
}

// On the side stream, as the engine's launches are on one that no other waits for.
void launched(const Status& status) {
  EXPECT_TRUE(status.ok()) << status.message();
  wait_for(side_stream());
}

// A weight of linear as checkpoints have it; `gated`: gates, then ups.
std::vector<Element> row_major(const LinearWeight& w, bool gated) {
  const int64_t stride = linear_sm90_stride(w.in_features);
  std::vector<Element> rows(static_cast<size_t>(w.out_features * stride), Element{0x7fff});  // the gaps are not read
  for (int64_t n = 0; n < w.out_features; ++n) {
    const int64_t packed_row = gated ? gated_row(n, w.out_features) : n;
    for (int64_t k = 0; k < w.in_features; ++k)
      rows[static_cast<size_t>(n * stride + k)] = w.packed[linear_packed_index(packed_row, k, w.in_features)];
  }
  return rows;
}

// What linear and linear_w4 read and write besides their weight: `on` is p with the device's copies of it.
template <typename Params>
struct ProjectionOnDevice {
  std::unique_ptr<DeviceBuffer<float>> bias, out, residual;
  std::unique_ptr<DeviceBuffer<Element>> x, gated;
  Params on;

  explicit ProjectionOnDevice(const Params& p) : on(p) {
    x = upload(p.x, p.num_rows * p.x_stride);
    on.x = pointer(x);
    if (p.gated != nullptr) {
      gated = upload(p.gated, p.num_rows * p.gated_stride);
      on.gated = pointer(gated);
      return;
    }
    bias = upload(p.weight.bias, p.weight.out_features);
    out = upload(p.out, p.num_rows * p.out_stride);
    if (p.residual != p.out) residual = upload(p.residual, p.num_rows * p.out_stride);
    on.weight.bias = pointer(bias);
    on.out = pointer(out);
    on.residual = p.residual == p.out ? pointer(out) : pointer(residual);
  }
  void read_back(const Params& p) const {
    if (p.gated != nullptr) return download(gated, p.gated);
    download(out, p.out);
  }
};

void linear_on_device(const LinearParams& p, const LaunchContext&) {
  const DeviceBuffer<Element> weight(row_major(p.weight, p.gated != nullptr));
  ProjectionOnDevice<LinearParams> device(p);
  LinearParams& on = device.on;
  on.weight.packed = weight.data();
  if (p.gated != nullptr) {
    launched(linear_silu_mul_sm90({on.num_rows, on.weight, on.x, on.x_stride, on.gated, on.gated_stride}, side_stream()));
  } else {
    launched(linear_sm90(on, side_stream()));
  }
  device.read_back(p);
}

void linear_w4_on_device(const LinearW4Params& p, const LaunchContext&) {
  const DeviceBuffer<uint8_t> weight(
      repack_w4(p.weight.packed, p.weight.out_features, p.weight.in_features, p.gated != nullptr));
  ProjectionOnDevice<LinearW4Params> device(p);
  device.on.weight.packed = weight.data();
  launched(linear_w4_sm90(device.on, side_stream()));
  device.read_back(p);
}

void quantize_w4_on_device(const QuantizeW4Params& p, const LaunchContext&) {
  const LinearWeight& w = p.weight;
  const DeviceBuffer<Element> weight(row_major(w, false));
  const DeviceBuffer<uint8_t> packed(static_cast<size_t>(w4_sm90_packed_bytes(w.out_features, w.in_features)));
  launched(quantize_w4_sm90({{w.in_features, w.out_features, weight.data(), nullptr}, packed.data()}, false, side_stream()));
  unpack_w4(packed.read(), w.out_features, w.in_features, p.packed);
}

void rmsnorm_on_device(const RmsNormParams& p, const LaunchContext&) {
  int64_t rows = p.num_rows;
  for (int32_t r = 0; p.row_index != nullptr && r < p.num_rows; ++r) rows = std::max<int64_t>(rows, p.row_index[r] + 1);
  if (p.row_index != nullptr) rows = *std::max_element(p.row_index, p.row_index + p.num_rows) + 1;
  const auto x = upload(p.x, rows * p.hidden_size);
  const auto index = upload(p.row_index, p.num_rows);
  const auto weight = upload(p.weight, p.hidden_size);
  const auto out = upload(p.out, p.num_rows * p.out_stride);
  launched(
      rmsnorm_sm90({p.num_rows, p.hidden_size, p.eps, pointer(x), pointer(index), pointer(weight), pointer(out), p.out_stride},
                   side_stream()));
  download(out, p.out);
}

void embed_on_device(const EmbedParams& p, const LaunchContext&) {
  const int64_t vocab = *std::max_element(p.token_ids, p.token_ids + p.num_rows) + 1;
  const auto ids = upload(p.token_ids, p.num_rows);
  const auto out = upload(p.out, int64_t{p.num_rows} * p.hidden_size);
  std::unique_ptr<DeviceBuffer<Element>> table = upload(p.table, vocab * p.hidden_size);
  if (p.packed != nullptr) {
    const int64_t stride = linear_sm90_stride(p.hidden_size);
    std::vector<Element> rows(static_cast<size_t>(vocab * stride), Element{0x7fff});
    for (int64_t n = 0; n < vocab; ++n) {
      for (int64_t k = 0; k < p.hidden_size; ++k)
        rows[static_cast<size_t>(n * stride + k)] = p.packed[linear_packed_index(n, k, p.hidden_size)];
    }
    table = std::make_unique<DeviceBuffer<Element>>(rows);
  }
  const bool packed = p.packed != nullptr;
  launched(embed_sm90({p.num_rows, p.hidden_size, pointer(ids), packed ? nullptr : table->data(),
                       packed ? table->data() : nullptr, pointer(out)},
                      side_stream()));
  download(out, p.out);
}

void rope_table_on_device(const RopeTableParams& p, const LaunchContext&) {
  const auto positions = upload(p.positions, p.num_rows);
  const auto inv_freq = upload(p.inv_freq, p.half_dim);
  const auto cos = upload(p.cos, int64_t{p.num_rows} * p.half_dim), sin = upload(p.sin, int64_t{p.num_rows} * p.half_dim);
  launched(rope_table_sm90({p.num_rows, p.half_dim, pointer(positions), pointer(inv_freq), p.scale, pointer(cos), pointer(sin)},
                           side_stream()));
  download(cos, p.cos);
  download(sin, p.sin);
}

// The arrays of a batch on the device. Page tables are as long as their segments' last positions say.
struct DeviceRows {
  int64_t num_pages = 0;  // of the pool, as far as the batch names it
  std::unique_ptr<DeviceBuffer<int32_t>> positions;
  std::unique_ptr<DeviceBuffer<RowSegment>> segments;
  std::unique_ptr<DeviceBuffer<RowTile>> tiles;
  std::unique_ptr<DeviceBuffer<TileBundle>> bundles;
  std::unique_ptr<DeviceBuffer<PageId>> page_tables;
  std::unique_ptr<DeviceBuffer<KvCopy>> copies;
  RowBatch batch;

  explicit DeviceRows(const RowBatch& rows) : batch(rows) {
    int64_t entries = 0;
    for (int32_t s = 0; s < rows.num_segments; ++s) {
      const RowSegment& segment = rows.segments[s];
      const int32_t last = rows.positions[segment.first_row + segment.num_rows - 1];
      entries = std::max<int64_t>(entries, segment.first_page + last / kPageTokens + 1);
    }
    for (int64_t i = 0; i < entries; ++i) num_pages = std::max<int64_t>(num_pages, rows.page_tables[i] + 1);
    for (int32_t i = 0; i < rows.num_copies; ++i) num_pages = std::max<int64_t>(num_pages, rows.copies[i].to + 1);
    positions = upload(rows.positions, rows.num_rows);
    segments = upload(rows.segments, rows.num_segments);
    tiles = upload(rows.tiles, rows.num_tiles);
    bundles = upload(rows.bundles, rows.num_bundles);
    page_tables = upload(rows.page_tables, entries);
    copies = upload(rows.copies, rows.num_copies);
    batch.positions = pointer(positions);
    batch.segments = pointer(segments);
    batch.tiles = pointer(tiles);
    batch.bundles = pointer(bundles);
    batch.page_tables = pointer(page_tables);
    batch.copies = pointer(copies);
  }
};

void rope_append_on_device(const RopeAppendParams& p, const LaunchContext&) {
  const DeviceRows rows(*p.rows);
  const int64_t n = p.rows->num_rows, hd = p.layout.head_dim;
  const auto qkv = upload(p.qkv, n * (p.num_heads + 2 * p.layout.num_kv_heads) * hd);
  const auto q_norm = upload(p.q_norm, hd), k_norm = upload(p.k_norm, hd);
  const auto cos = upload(p.cos, n * hd / 2), sin = upload(p.sin, n * hd / 2);
  const auto q = upload(p.q, n * p.num_heads * hd), pages = upload(p.pages, rows.num_pages * p.layout.page_elements());
  const auto fault = upload(p.fault, n);
  RopeAppendParams on = p;
  on.rows = &rows.batch;
  on.qkv = pointer(qkv);
  on.q_norm = pointer(q_norm);
  on.k_norm = pointer(k_norm);
  on.cos = pointer(cos);
  on.sin = pointer(sin);
  on.q = pointer(q);
  on.pages = pointer(pages);
  on.fault = pointer(fault);
  launched(rope_append_sm90(on, side_stream()));
  download(q, p.q);
  download(pages, p.pages);
  download(fault, p.fault);
}

// Once with every task in one block, once with tasks shared by blocks through a workspace: the same bits. Some row
// counts are launched as a capture is, which learns on the device how many tasks there are; of two a multiprocessor and more it
// leaves nothing in the workspace.
void attention_on_device(const AttentionParams& p, const LaunchContext&) {
  const DeviceRows rows(*p.rows);
  const int64_t n = p.rows->num_rows;
  const auto q = upload(p.q, n * p.num_heads * p.layout.head_dim);
  const auto pages = upload(p.pages, rows.num_pages * p.layout.page_elements());
  const auto out = upload(p.out, n * p.out_stride);
  AttentionParams on = p;
  on.rows = &rows.batch;
  on.q = pointer(q);
  on.pages = pointer(pages);
  on.out = pointer(out);
  const int32_t max_keys = n == 0 ? 0 : *std::max_element(p.rows->positions, p.rows->positions + n) + 1;
  launched(attention_sm90(on, {nullptr, 0, max_keys}, side_stream()));
  const DeviceBuffer<float> partials(
      static_cast<size_t>(attention_sm90_workspace(p.rows->num_rows, p.num_heads, p.layout.head_dim, max_keys)));
  const auto shared = upload(p.out, n * p.out_stride);
  on.out = pointer(shared);
  RowBatch captured = rows.batch;
  const DeviceBuffer<int32_t> num_bundles(std::vector<int32_t>{captured.num_bundles});
  captured.num_bundles_at = num_bundles.data();
  if (n % 3 == 1) on.rows = &captured;
  launched(attention_sm90(on, {partials.data(), static_cast<int64_t>(partials.size()), max_keys}, side_stream()));
  const std::vector<Element> a = out->read(), b = shared->read();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].bits, b[i].bits) << "in one block and in several differ at " << i;
  if (n % 3 == 1 && captured.num_bundles * p.layout.num_kv_heads >= 2 * device_limits_sm90().value().num_sms) {
    const std::vector<float> left = partials.read(), untouched = DeviceBuffer<float>(partials.size()).read();
    EXPECT_EQ(std::memcmp(left.data(), untouched.data(), left.size() * sizeof(float)), 0);
  }
  download(out, p.out);
}

SampleDraw& sample_draw(SampleDraw& draw) { return draw; }
SampleDraw& sample_draw(CandidateDraw& draw) { return draw.draw; }

// What sample and candidates read and write, and their workspace: `on` is p with the device's copies of it. REQUIRES: p has
// draws.
template <typename Params, typename Draw, typename Result>
struct DrawsOnDevice {
  std::vector<std::unique_ptr<DeviceBuffer<PenaltyEntry>>> penalties;
  std::unique_ptr<DeviceBuffer<Draw>> draws;
  std::unique_ptr<DeviceBuffer<float>> logits;
  std::unique_ptr<DeviceBuffer<Result>> results;
  DeviceBuffer<float> scaled;
  DeviceBuffer<int32_t> order, spare;
  DeviceBuffer<SampleChunk> chunks;
  Params on;

  static size_t entries(const Params& p) {
    return static_cast<size_t>(p.num_draws) * static_cast<size_t>(sample_workspace_stride(p.vocab_size));
  }
  static size_t num_chunks(const Params& p) {
    return static_cast<size_t>(p.num_draws) * static_cast<size_t>(sample_num_chunks(p.vocab_size));
  }
  explicit DrawsOnDevice(const Params& p)
      : scaled(entries(p)), order(entries(p)), spare(entries(p)), chunks(num_chunks(p)), on(p) {
    int64_t rows = 0;
    std::vector<Draw> copies(p.draws, p.draws + p.num_draws);
    for (Draw& copy : copies) {
      SampleDraw& d = sample_draw(copy);
      rows = std::max<int64_t>(rows, d.logits_row + 1);
      penalties.push_back(upload(d.penalties, d.num_penalties));
      d.penalties = pointer(penalties.back());
    }
    draws = std::make_unique<DeviceBuffer<Draw>>(copies);
    logits = upload(p.logits, (rows - 1) * p.logits_stride + p.vocab_size);
    results = upload(p.results, p.num_draws);
    on.draws = draws->data();
    on.logits = pointer(logits);
    on.results = pointer(results);
    on.scaled = scaled.data();
    on.order = order.data();
  }
};

void sample_on_device(const SampleParams& p, const LaunchContext&) {
  if (p.num_draws == 0) return;
  const DrawsOnDevice<SampleParams, SampleDraw, SampleResult> device(p);
  launched(sample_sm90(device.on, {device.chunks.data(), device.spare.data()}, side_stream()));
  download(device.results, p.results);
}

void candidates_on_device(const CandidateParams& p, const LaunchContext&) {
  if (p.num_draws == 0) return;
  const DrawsOnDevice<CandidateParams, CandidateDraw, Candidates> device(p);
  const DeviceBuffer<CandidateList> lists(device.chunks.size());
  launched(candidates_sm90(device.on, {device.chunks.data(), lists.data(), device.spare.data()}, side_stream()));
  download(device.results, p.results);
}

template <typename Params>
int64_t named_pages(const Params& p, const PageId* ids, int32_t count) {
  int64_t pages = 0;
  for (int32_t i = 0; i < count; ++i) pages = std::max<int64_t>(pages, ids[i] + 1);
  return pages * p.layout.page_elements();
}

void page_copy_on_device(const PageCopyParams& p, const LaunchContext&) {
  const auto pages = upload(p.pages, std::max(named_pages(p, p.from, p.num_copies), named_pages(p, p.to, p.num_copies)));
  const auto from = upload(p.from, p.num_copies), to = upload(p.to, p.num_copies);
  launched(page_copy_sm90({p.layout, pointer(pages), pointer(from), pointer(to), p.num_copies}, side_stream()));
  download(pages, p.pages);
}

void page_zero_on_device(const PageZeroParams& p, const LaunchContext&) {
  const auto pages = upload(p.pages, named_pages(p, p.ids, p.num_ids));
  const auto ids = upload(p.ids, p.num_ids);
  launched(page_zero_sm90({p.layout, pointer(pages), pointer(ids), p.num_ids}, side_stream()));
  download(pages, p.pages);
}

}  // namespace

const KernelTable* sm90_table(std::string* why) {
  int count = 0, major = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0 ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess || major != 9) {
    *why = "no device of compute capability 9.0";
    return nullptr;
  }
  static const KernelTable table = [] {
    KernelTable t = {};
    t.path = "cuda-sm90a";
    t.embed = embed_on_device;
    t.rmsnorm = rmsnorm_on_device;
    t.linear = linear_on_device;
    t.linear_w4 = linear_w4_on_device;
    t.quantize_w4 = quantize_w4_on_device;
    t.rope_table = rope_table_on_device;
    t.rope_append = rope_append_on_device;
    t.attention = attention_on_device;
    t.sample = sample_on_device;
    t.candidates = candidates_on_device;
    t.page_copy = page_copy_on_device;
    t.page_zero = page_zero_on_device;
    t.attention_tile_rows = attention_sm90_tile_rows;
    return t;
  }();
  return &table;
}

}  // namespace otr::testing_util
