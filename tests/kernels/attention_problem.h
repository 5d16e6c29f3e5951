// Sequences with keys, values and queries, for tests of attention.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/attention/attention.h"
#include "tests/kernels/kernel_test_util.h"

namespace otr::testing_util {

struct AttentionHeads {
  int num_heads, num_kv_heads, head_dim;
};
// Consecutive positions of one sequence, processed in one segment.
struct AttentionSpan {
  int sequence, first, count;
};

// Sequences with all their keys in pages, in one layer of three; pages nobody owns and the other layers hold NaN, slots past a
// sequence's end large finite numbers. Queries exist for every position.
class AttentionProblem {
 public:
  static constexpr int kLayers = 3, kLayer = 1;
  const AttentionHeads heads;
  const KvLayout layout;
  float scale;
  std::vector<int> lengths;
  std::vector<std::vector<PageId>> tables;
  std::vector<std::vector<Element>> q;  // [sequence][position][num_heads][head_dim]
  std::vector<Element> pages;

  AttentionProblem(const KernelTable& kernels, AttentionHeads h, std::vector<int> sequence_lengths, uint32_t seed = 1)
      : heads(h),
        layout{kLayers, h.num_kv_heads, h.head_dim, kernels.kv_packing},
        scale(1.0f / std::sqrt(static_cast<float>(h.head_dim))),
        lengths(std::move(sequence_lengths)) {
    std::vector<PageId> ids;
    for (const int length : lengths) ids.resize(ids.size() + static_cast<size_t>(length + kPageTokens - 1) / kPageTokens);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<PageId>(2 * i + 1);  // every other page is nobody's
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    pages.assign((2 * ids.size() + 1) * page_size(), nan_element());
    size_t next = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const size_t count = static_cast<size_t>(lengths[s] + kPageTokens - 1) / kPageTokens;
      const auto first = ids.begin() + static_cast<std::ptrdiff_t>(next);
      tables.emplace_back(first, first + static_cast<std::ptrdiff_t>(count));
      next += count;
      const size_t token = static_cast<size_t>(h.num_heads) * h.head_dim;
      q.push_back(random_elements(lengths[s] * token, 1.5f, seed + 17 + static_cast<uint32_t>(s)));
    }
    const std::vector<Element> noise = random_elements(8191, 1.0f, seed + 5);
    size_t at = 0;
    for_each_slot([&](int, int, int, int, Element* k, Element* v) {
      *k = noise[at++ % 8191];
      *v = noise[at++ % 8191];
    });
    fill_beyond(1e30f);
  }

  size_t page_size() const { return static_cast<size_t>(layout.page_elements()); }
  Element* k_at(int sequence, int kv_head, int position, int d) {
    return head_of(sequence, position) + layout.k_offset(kLayer, kv_head) + layout.k_index(position % kPageTokens, d);
  }
  Element* v_at(int sequence, int kv_head, int position, int d) {
    return head_of(sequence, position) + layout.v_offset(kLayer, kv_head) + layout.v_index(position % kPageTokens, d);
  }

  // visit(sequence, kv_head, position, d, k, v) for every written key.
  template <typename Visit>
  void for_each_slot(const Visit& visit) {
    for (int s = 0; s < static_cast<int>(lengths.size()); ++s) {
      for (int head = 0; head < layout.num_kv_heads; ++head) {
        for (int j = 0; j < lengths[static_cast<size_t>(s)]; ++j) {
          for (int d = 0; d < layout.head_dim; ++d) visit(s, head, j, d, k_at(s, head, j, d), v_at(s, head, j, d));
        }
      }
    }
  }

  // The first pages of every sequence become sequence 0's.
  void share(int keys) {
    for (auto& table : tables) std::copy_n(tables[0].begin(), keys / kPageTokens, table.begin());
  }

  // The slots of each last page past the sequence's end: finite, of any size.
  void fill_beyond(float value) {
    for (int s = 0; s < static_cast<int>(lengths.size()); ++s) {
      const int length = lengths[static_cast<size_t>(s)];
      for (int head = 0; head < layout.num_kv_heads; ++head) {
        for (int j = length; j < (length + kPageTokens - 1) / kPageTokens * kPageTokens; ++j) {
          for (int d = 0; d < layout.head_dim; ++d) {
            *k_at(s, head, j, d) = to_element((j + d) % 3 == 0 ? -value : value);
            *v_at(s, head, j, d) = to_element((j + d) % 2 == 0 ? -value : value);
          }
        }
      }
    }
  }

  // Rows of the spans in order, [num_heads * head_dim] each, without what lies between rows (which must stay poisoned).
  // Every operand ends, or starts, at inaccessible memory.
  // `shared_keys`: tiles that fit together are bundled, with so many keys in common.
  std::vector<Element> run(const KernelTable& kernels, const std::vector<AttentionSpan>& spans, int threads = 1,
                           Guard guard = Guard::kAtEnd, int shared_keys = 0) const {
    const size_t token = static_cast<size_t>(heads.num_heads) * heads.head_dim;
    std::vector<int32_t> positions;
    std::vector<RowSegment> segments;
    std::vector<RowTile> tiles;
    std::vector<TileBundle> bundles;
    std::vector<PageId> page_tables;
    std::vector<Element> q_rows;
    const int tile_rows = kernels.attention_tile_rows(heads.num_heads, heads.num_kv_heads);
    for (const AttentionSpan& span : spans) {
      const size_t s = static_cast<size_t>(span.sequence);
      const int32_t first_row = static_cast<int32_t>(positions.size());
      for (int i = 0; i < span.count; i += tile_rows) {
        const int32_t tile = static_cast<int32_t>(tiles.size());
        tiles.push_back({static_cast<int32_t>(segments.size()), first_row + i, std::min(tile_rows, span.count - i)});
        TileBundle* last = bundles.empty() ? nullptr : &bundles.back();
        if (shared_keys > 0 && last != nullptr &&
            tiles[static_cast<size_t>(tile)].first_row + tiles[static_cast<size_t>(tile)].num_rows -
                    tiles[static_cast<size_t>(last->first_tile)].first_row <=
                tile_rows) {
          ++last->num_tiles;
          last->shared_keys = shared_keys;
        } else {
          bundles.push_back({tile, 1, 0});
        }
      }
      segments.push_back({first_row, span.count, static_cast<int32_t>(page_tables.size())});
      const int used = (span.first + span.count + kPageTokens - 1) / kPageTokens;
      page_tables.insert(page_tables.end(), tables[s].begin(), tables[s].begin() + used);
      for (int i = 0; i < span.count; ++i) positions.push_back(span.first + i);
      q_rows.insert(q_rows.end(), q[s].begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(span.first) * token),
                    q[s].begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(span.first + span.count) * token));
    }
    const GuardedBuffer<Element> q_guarded(q_rows, guard), pages_guarded(pages, guard);
    const GuardedBuffer<int32_t> positions_guarded(positions, guard);
    const GuardedBuffer<PageId> tables_guarded(page_tables, guard);
    const size_t stride = (token + 31) / 32 * 32 + 32;
    GuardedBuffer<Element> out(untouched(positions.size() * stride), guard);
    RowBatch batch = {};
    batch.num_rows = static_cast<int32_t>(positions.size());
    batch.num_segments = static_cast<int32_t>(segments.size());
    batch.num_tiles = static_cast<int32_t>(tiles.size());
    batch.positions = positions_guarded.data();
    batch.segments = segments.data();
    batch.num_bundles = static_cast<int32_t>(bundles.size());
    batch.tiles = tiles.data();
    batch.bundles = bundles.data();
    batch.page_tables = tables_guarded.data();
    ThreadPool pool(threads);
    kernels.attention({&batch, kLayer, heads.num_heads, layout, scale, q_guarded.data(), pages_guarded.data(), out.data(),
                       static_cast<int64_t>(stride)},
                      pool);
    std::vector<Element> rows;
    for (size_t r = 0; r < positions.size(); ++r) {
      rows.insert(rows.end(), out.data() + r * stride, out.data() + r * stride + token);
      for (size_t i = token; i < stride; ++i) {
        EXPECT_EQ(bits_of(out.data()[r * stride + i]), bits_of(untouched(1)[0])) << "between rows";
      }
    }
    return rows;
  }

  // Float64 row of one position, and its tolerance: P is rounded to bf16 (2^-8 of every term at most), the output too; scores
  // are float32 sums of head_dim products, and their error is relative in exp.
  void reference(int sequence, int position, std::vector<double>* value, std::vector<double>* tolerance) {
    const int hd = heads.head_dim, group = heads.num_heads / heads.num_kv_heads;
    for (int head = 0; head < heads.num_heads; ++head) {
      const Element* query = q[static_cast<size_t>(sequence)].data() + (int64_t{position} * heads.num_heads + head) * hd;
      std::vector<double> s(static_cast<size_t>(position) + 1);
      double m = -1e300, l = 0.0, absolute = 0.0;
      for (int j = 0; j <= position; ++j) {
        double dot = 0.0, sizes = 0.0;
        for (int d = 0; d < hd; ++d) {
          const double term =
              static_cast<double>(to_float(query[d])) * static_cast<double>(to_float(*k_at(sequence, head / group, j, d)));
          dot += term;
          sizes += std::fabs(term);
        }
        s[static_cast<size_t>(j)] = dot * scale;
        m = std::max(m, dot * scale);
        absolute = std::max(absolute, sizes * scale);
      }
      for (double& x : s) l += x = std::exp(x - m);
      const double score_error = (std::sqrt(static_cast<double>(hd)) + 4) * 0x1p-23 * absolute;
      for (int d = 0; d < hd; ++d) {
        double sum = 0.0, sizes = 0.0;
        for (int j = 0; j <= position; ++j) {
          const double v = to_float(*v_at(sequence, head / group, j, d));
          sum += s[static_cast<size_t>(j)] * v;
          sizes += s[static_cast<size_t>(j)] * std::fabs(v);
        }
        value->push_back(sum / l);
        const double weights = (kBf16Rounding + 2 * score_error + 1e-6) * sizes / l;
        tolerance->push_back(weights + 1.01 * kBf16Rounding * std::fabs(sum / l) + 1e-30);
      }
    }
  }

 private:
  Element* head_of(int sequence, int position) {
    const PageId id = tables[static_cast<size_t>(sequence)][static_cast<size_t>(position / kPageTokens)];
    return pages.data() + static_cast<size_t>(id) * page_size();
  }
};

}  // namespace otr::testing_util
