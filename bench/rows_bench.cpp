// The ops between the products: embed, rmsnorm, rope_table, rope_append, and the pages' copy and zero. Bound by
// memory or, for few rows, by the launch. Inputs and outputs are rotated.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "bench/comparison.h"
#include "bench/suite.h"
#include "graph/row_batch_builder.h"
#include "kernels/base/elementary64.h"
#include "loader/xxh64.h"

namespace otr::bench {
namespace {

constexpr int kPicks = 64;

double real(Element x) { return to_float(x); }

Work make_embed(Suite& suite, const ModelShape& m, int rows) {
  const int64_t h = m.hidden_size, out_size = rows * h;
  const int64_t copies = copies_in_rotation(out_size * static_cast<int64_t>(sizeof(float) + sizeof(Element)));
  const int64_t vocab = std::max<int64_t>(m.vocab_size, kRotationBytes / (h * 2));  // a table larger than caches
  const Element* table = suite.arena().elements(vocab * h);
  float* out = static_cast<float*>(suite.arena().scratch(copies * out_size * 4));
  auto ids = std::make_shared<std::vector<int32_t>>();
  Places places;
  for (int64_t i = 0; i < copies * rows; ++i) ids->push_back(static_cast<int32_t>(places.below(vocab)));

  Work work;
  work.memory = Bound::kCopy;
  work.bytes = static_cast<double>(out_size) * (sizeof(float) + sizeof(Element));
  work.run = [=, &suite](int64_t call) {
    const int64_t i = call % copies;
    suite.kernels().embed({.num_rows = rows,
                           .hidden_size = m.hidden_size,
                           .token_ids = ids->data() + i * rows,
                           .table = table,
                           .packed = nullptr,
                           .out = out + i * out_size},
                          suite.pool());
  };
  work.verify = [=] {
    Comparison comparison;
    for (int64_t i = 0; i < out_size; ++i) {
      const Element expected = table[(*ids)[static_cast<size_t>(i / h)] * h + i % h];
      comparison.expect_equal(i, bits_from_float(out[i]), bits_from_float(to_float(expected)));
    }
    return comparison.verdict();
  };
  work.hash = [=] { return xxh64(out, static_cast<size_t>(out_size) * 4); };
  return work;
}

Work make_rmsnorm(Suite& suite, const ModelShape& m, int rows) {
  const int64_t h = m.hidden_size, size = rows * h;
  const int64_t copies = copies_in_rotation(size * static_cast<int64_t>(sizeof(float) + sizeof(Element)));
  const float* x = suite.arena().floats(copies * size);
  auto weight = std::make_shared<std::vector<float>>(x + 333, x + 333 + h);
  Element* out = static_cast<Element*>(suite.arena().scratch(copies * size * 2));

  Work work;
  work.memory = Bound::kCopy;
  work.bytes = static_cast<double>(size) * (sizeof(float) + sizeof(Element)) + static_cast<double>(h) * sizeof(float);
  work.run = [=, &suite](int64_t call) {
    const int64_t i = call % copies;
    suite.kernels().rmsnorm({rows, m.hidden_size, 1e-6f, x + i * size, nullptr, weight->data(), out + i * size, h},
                            suite.pool());
  };
  work.verify = [=] {
    Places places;
    Comparison comparison;
    for (int pick = 0; pick < 8; ++pick) {
      const int64_t r = pick == 0 ? rows - 1 : places.below(rows);
      double sum = 0;
      for (int64_t i = 0; i < h; ++i) sum += static_cast<double>(x[r * h + i]) * static_cast<double>(x[r * h + i]);
      const double inv = 1.0 / std::sqrt(sum / static_cast<double>(h) + 1e-6);
      const double relative = kBf16Rounding + static_cast<double>(h / 16 + 12) * 0x1p-24;
      for (int64_t i = 0; i < h; ++i) {
        const double expected =
            static_cast<double>(x[r * h + i]) * inv * static_cast<double>((*weight)[static_cast<size_t>(i)]);
        comparison.expect(r * h + i, real(out[r * h + i]), expected, relative * std::fabs(expected) + 1e-30);
      }
    }
    return comparison.verdict();
  };
  work.hash = [=] { return xxh64(out, static_cast<size_t>(size) * 2); };
  return work;
}

std::vector<float> inverse_frequencies(int head_dim) {
  std::vector<float> frequencies;
  for (int i = 0; i < head_dim / 2; ++i) frequencies.push_back(static_cast<float>(pow64(1e6, -2.0 * i / head_dim)));
  return frequencies;
}

Work make_rope_table(Suite& suite, const ModelShape& m, int rows) {
  const int half = m.head_dim / 2;
  const int64_t size = int64_t{rows} * half;
  struct Operands {
    std::vector<float> inv_freq, cos, sin;
    std::vector<int32_t> positions;
  };
  auto o = std::make_shared<Operands>();
  o->inv_freq = inverse_frequencies(m.head_dim);
  for (int r = 0; r < rows; ++r) o->positions.push_back(977 + r * 29);
  o->cos.resize(static_cast<size_t>(size));
  o->sin.resize(static_cast<size_t>(size));

  Work work;
  work.memory = Bound::kWrite;
  work.bytes = static_cast<double>(size) * 2 * sizeof(float);
  work.run = [=, &suite](int64_t) {
    suite.kernels().rope_table({rows, half, o->positions.data(), o->inv_freq.data(), 1.0f, o->cos.data(), o->sin.data()},
                               suite.pool());
  };
  work.verify = [=] {
    Comparison comparison;
    for (size_t i = 0; i < o->cos.size(); ++i) {
      const float angle =
          o->inv_freq[i % static_cast<size_t>(half)] * static_cast<float>(o->positions[i / static_cast<size_t>(half)]);
      comparison.expect(static_cast<int64_t>(i), o->cos[i], std::cos(static_cast<double>(angle)), 1.3e-7);
      comparison.expect(static_cast<int64_t>(i), o->sin[i], std::sin(static_cast<double>(angle)), 1.3e-7);
    }
    return comparison.verdict();
  };
  work.hash = [=] { return xxh64(o->cos.data(), o->cos.size() * 4) ^ xxh64(o->sin.data(), o->sin.size() * 4) << 1; };
  return work;
}

// Consecutive rows of one sequence from position 37 on; its pages hold all layers, which are rotated with qkv.
class RopeAppendOperands {
 public:
  RopeAppendOperands(Suite& suite, const ModelShape& m, int rows)
      : model_(m),
        rows_(rows),
        layout_{m.num_layers, m.num_kv_heads, m.head_dim, suite.kernels().kv_packing},
        row_features_(m.qkv_features()),
        q_features_(int64_t{m.num_heads} * m.head_dim),
        copies_(copies_in_rotation(rows * (row_features_ * 4 + row_features_ * 2))),
        builder_({rows, 1, 1, (kFirst + rows + kPageTokens - 1) / kPageTokens},
                 attention_tile_rows(m.num_heads, m.num_kv_heads)),
        inv_freq_(inverse_frequencies(m.head_dim)),
        fault_(static_cast<size_t>(rows)) {
    const int num_pages = (kFirst + rows + kPageTokens - 1) / kPageTokens;
    std::vector<PageId> ids;
    for (int i = 0; i < num_pages; ++i) ids.push_back(num_pages - 1 - i);
    builder_.add(std::vector<int32_t>(static_cast<size_t>(rows), 0), kFirst, ids, kFirst + rows);
    qkv_ = suite.arena().floats(copies_ * rows * row_features_);
    if (m.qk_norm) norm_.assign(qkv_ + 55, qkv_ + 55 + m.head_dim);
    const int64_t page_elements = num_pages * layout_.page_elements();
    pages_ = static_cast<Element*>(suite.arena().scratch((page_elements + copies_ * rows * q_features_) * 2));
    std::memset(static_cast<void*>(pages_), 0, static_cast<size_t>(page_elements) * 2);
    page_bytes_ = static_cast<size_t>(page_elements) * 2;
    q_ = pages_ + page_elements;
    cos_.resize(static_cast<size_t>(rows) * static_cast<size_t>(m.head_dim / 2));
    sin_.resize(cos_.size());
    rope_table({rows, m.head_dim / 2, builder_.batch().positions, inv_freq_.data(), 1.0f, cos_.data(), sin_.data()},
               suite.pool());
  }

  void run(Suite& suite, int64_t call) {
    const RowBatch batch = builder_.batch();
    const int64_t i = call % copies_;
    const float* norm = norm_.empty() ? nullptr : norm_.data();
    suite.kernels().rope_append({.rows = &batch,
                                 .layer = static_cast<int32_t>(call % layout_.num_layers),
                                 .num_heads = model_.num_heads,
                                 .layout = layout_,
                                 .qkv = qkv_ + i * rows_ * row_features_,
                                 .q_norm = norm,
                                 .k_norm = norm,
                                 .norm_eps = 1e-6f,
                                 .cos = cos_.data(),
                                 .sin = sin_.data(),
                                 .q = q_ + i * rows_ * q_features_,
                                 .pages = pages_,
                                 .fault = fault_.data()},
                                suite.pool());
  }
  double bytes() const { return static_cast<double>(rows_ * row_features_) * (sizeof(float) + sizeof(Element)); }
  uint64_t hash() const { return xxh64(q_, static_cast<size_t>(rows_ * q_features_) * 2) ^ xxh64(pages_, page_bytes_) << 1; }

  // Heads of rows of call 0, in layer 0. Half a bf16 ulp; where a rotation cancels, float32 roundings of its terms.
  std::string verify() const {
    Places places;
    Comparison comparison;
    const int d = model_.head_dim, heads = model_.num_heads, kv_heads = model_.num_kv_heads;
    for (int pick = 0; pick < kPicks; ++pick) {
      const int64_t r = pick == 0 ? rows_ - 1 : places.below(rows_), head = places.below(heads + 2 * kv_heads);
      const float* x = qkv_ + r * row_features_ + head * d;
      const int64_t position = kFirst + r;
      const RowBatch batch = builder_.batch();
      const Element* page = pages_ + batch.page_tables[position / kPageTokens] * layout_.page_elements();
      double squares = 0;
      for (int i = 0; i < d; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      const double inv = 1.0 / std::sqrt(squares / d + 1e-6);
      const auto normed = [&](int i) {
        return norm_.empty() ? double{x[i]}
                             : static_cast<double>(x[i]) * inv * static_cast<double>(norm_[static_cast<size_t>(i)]);
      };
      for (int i = 0; i < d; ++i) {
        const int half = d / 2, pair = i % half;
        const size_t at = static_cast<size_t>(r * half + pair);
        const double c = cos_[at], s = sin_[at], a = normed(pair), b = normed(pair + half);
        double expected = i < half ? a * c - b * s : b * c + a * s, actual;
        if (head < heads) {
          actual = real(q_[r * q_features_ + head * d + i]);
        } else if (head < heads + kv_heads) {
          actual = real(page[layout_.k_offset(0, static_cast<int>(head) - heads) + layout_.k_index(position % kPageTokens, i)]);
        } else {
          actual = real(page[layout_.v_offset(0, static_cast<int>(head) - heads - kv_heads) +
                             layout_.v_index(position % kPageTokens, i)]);
          expected = x[i];
        }
        comparison.expect(r * row_features_ + head * d + i, actual, expected, kBf16Rounding * std::fabs(expected) + 1e-5);
      }
    }
    return comparison.verdict();
  }

 private:
  static constexpr int kFirst = 37;
  const ModelShape model_;
  const int rows_;
  const KvLayout layout_;
  const int64_t row_features_, q_features_, copies_;
  RowBatchBuilder builder_;
  std::vector<float> inv_freq_, cos_, sin_, norm_;
  std::vector<uint8_t> fault_;
  const float* qkv_ = nullptr;
  Element *pages_ = nullptr, *q_ = nullptr;
  size_t page_bytes_ = 0;
};

Work make_rope_append(Suite& suite, const ModelShape& m, int rows) {
  auto operands = std::make_shared<RopeAppendOperands>(suite, m, rows);
  Work work;
  work.memory = Bound::kCopy;
  work.bytes = operands->bytes();
  work.run = [&suite, operands](int64_t call) { operands->run(suite, call); };
  work.verify = [operands] { return operands->verify(); };
  work.hash = [operands] { return operands->hash(); };
  return work;
}

// `count` pages at a time: from the lower half of the pool to the upper one, or the upper half to zero.
Work make_page(Suite& suite, const ModelShape& m, int count, bool copy) {
  const KvLayout layout = {m.num_layers, m.num_kv_heads, m.head_dim};
  const int64_t copies = copies_in_rotation(2 * count * layout.page_bytes());
  const int64_t half = copies * count, half_elements = half * layout.page_elements();
  Element* pages = static_cast<Element*>(suite.arena().scratch(2 * half * layout.page_bytes()));
  std::memcpy(static_cast<void*>(pages), suite.arena().elements(2 * half_elements), static_cast<size_t>(half_elements) * 4);
  auto ids = std::make_shared<std::vector<PageId>>();
  for (int64_t i = 0; i < 2 * half; ++i) ids->push_back(static_cast<PageId>(i));

  Work work;
  work.memory = copy ? Bound::kCopy : Bound::kWrite;
  work.bytes = static_cast<double>(count * layout.page_bytes()) * (copy ? 2 : 1);
  work.run = [=, &suite](int64_t call) {
    const PageId *from = ids->data() + call % copies * count, *to = from + half;
    if (copy) {
      suite.kernels().page_copy({layout, pages, from, to, count}, suite.pool());
    } else {
      suite.kernels().page_zero({layout, pages, to, count}, suite.pool());
    }
  };
  work.verify = [=] {
    Comparison comparison;
    for (int64_t i = 0; i < count * layout.page_elements(); ++i) {
      comparison.expect_equal(i, pages[half_elements + i].bits, copy ? pages[i].bits : 0);
    }
    return comparison.verdict();
  };
  work.hash = [=] { return xxh64(pages + half_elements, static_cast<size_t>(count * layout.page_bytes())); };
  return work;
}

}  // namespace

void add_row_cases(Suite& suite) {
  struct Op {
    const char* name;
    Work (*make)(Suite&, const ModelShape&, int rows);
  };
  constexpr Op kOps[] = {
      {"embed", make_embed}, {"rmsnorm", make_rmsnorm}, {"rope_table", make_rope_table}, {"rope_append", make_rope_append}};
  for (const Op& op : kOps) {
    for (const ModelShape& m : kModels) {
      for (const int rows : kElementwiseRows) {
        suite.add(std::string(op.name) + "/" + m.name + "/rows:" + std::to_string(rows),
                  [&suite, op, m, rows] { return op.make(suite, m, rows); });
      }
    }
  }
  for (const ModelShape& m : kModels) {
    for (const int count : {1, 16}) {
      const std::string name = std::string(m.name) + "/pages:" + std::to_string(count);
      suite.add("page_copy/" + name, [&suite, m, count] { return make_page(suite, m, count, true); });
      suite.add("page_zero/" + name, [&suite, m, count] { return make_page(suite, m, count, false); });
    }
  }
}

}  // namespace otr::bench
