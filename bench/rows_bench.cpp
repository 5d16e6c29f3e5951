// The ops between the products: embed, rmsnorm, rope_table, rope_append, and route of a mixture of experts. Bound by memory or,
// for few rows, by the launch. Inputs and outputs are rotated.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "bench/comparison.h"
#include "bench/suite.h"
#include "graph/row_batch_builder.h"
#include "kernels/base/elementary64.h"
#include "loader/xxh64.h"

namespace otr::bench {
namespace {

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
  work.spoil = [=] { std::memset(out, 0xff, static_cast<size_t>(out_size) * 4); };
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
  work.cached_bytes = static_cast<double>(h) * sizeof(float);  // the weight's
  work.run = [=, &suite](int64_t call) {
    const int64_t i = call % copies;
    suite.kernels().rmsnorm({rows, m.hidden_size, 1e-6f, x + i * size, nullptr, weight->data(), out + i * size, h},
                            suite.pool());
  };
  work.verify = [=] {
    Comparison comparison;
    for (int64_t r = 0; r < rows; ++r) {
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
  work.spoil = [=] { std::memset(static_cast<void*>(out), 0xff, static_cast<size_t>(size) * 2); };
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
  const int64_t size = int64_t{rows} * half, copies = copies_in_rotation(size * 2 * static_cast<int64_t>(sizeof(float)));
  struct Operands {
    std::vector<float> inv_freq;
    std::vector<int32_t> positions;
  };
  auto o = std::make_shared<Operands>();
  o->inv_freq = inverse_frequencies(m.head_dim);
  for (int r = 0; r < rows; ++r) o->positions.push_back(977 + r * 29);
  float* const cos = static_cast<float*>(suite.arena().scratch(copies * size * 2 * 4));  // [copies]{ cos, sin }
  float* const sin = cos + size;

  Work work;
  work.memory = Bound::kWrite;
  work.bytes = static_cast<double>(size) * 2 * sizeof(float);
  work.run = [=, &suite](int64_t call) {
    const int64_t at = call % copies * 2 * size;
    suite.kernels().rope_table({rows, half, o->positions.data(), o->inv_freq.data(), 1.0f, cos + at, sin + at}, suite.pool());
  };
  work.verify = [=] {
    Comparison comparison;
    for (int64_t i = 0; i < size; ++i) {
      const float angle =
          o->inv_freq[static_cast<size_t>(i % half)] * static_cast<float>(o->positions[static_cast<size_t>(i / half)]);
      comparison.expect(i, double{cos[i]}, std::cos(double{angle}), 1.3e-7);
      comparison.expect(i, double{sin[i]}, std::sin(double{angle}), 1.3e-7);
    }
    return comparison.verdict();
  };
  work.spoil = [=] { std::memset(cos, 0xff, static_cast<size_t>(size) * 2 * 4); };
  work.hash = [=] { return xxh64(cos, static_cast<size_t>(size) * 4) ^ xxh64(sin, static_cast<size_t>(size) * 4) << 1; };
  return work;
}

// Consecutive rows of one sequence from position 37 on; its pages hold all layers. Layers and sequences are rotated, and so are
// qkv and q.
class RopeAppendOperands {
 public:
  RopeAppendOperands(Suite& suite, const ModelShape& m, int rows)
      : model_(m),
        rows_(rows),
        layout_{m.num_layers, m.num_kv_heads, m.head_dim, suite.kernels().kv_packing},
        row_features_(m.qkv_features()),
        q_features_(int64_t{m.num_heads} * m.head_dim),
        copies_(copies_in_rotation(rows * (row_features_ * 4 + row_features_ * 2))),
        inv_freq_(inverse_frequencies(m.head_dim)),
        fault_(static_cast<size_t>(rows)) {
    const int num_pages = (kFirst + rows + kPageTokens - 1) / kPageTokens;
    const int64_t sets = copies_in_rotation(num_pages * layout_.page_bytes());
    for (int64_t set = 0; set < sets; ++set) {
      std::vector<PageId> ids;
      for (int i = 0; i < num_pages; ++i) ids.push_back(static_cast<PageId>((set + 1) * num_pages - 1 - i));
      builders_.emplace_back(RowLimits{rows, 1, 1, num_pages}, attention_tile_rows(m.num_heads, m.num_kv_heads));
      builders_.back().add(std::vector<int32_t>(static_cast<size_t>(rows), 0), kFirst, ids, kFirst + rows);
    }
    qkv_ = suite.arena().floats(copies_ * rows * row_features_);
    if (m.qk_norm) norm_.assign(qkv_ + 55, qkv_ + 55 + m.head_dim);
    const int64_t page_elements = num_pages * layout_.page_elements();
    pages_ = static_cast<Element*>(suite.arena().scratch((sets * page_elements + copies_ * rows * q_features_) * 2));
    page_bytes_ = static_cast<size_t>(page_elements) * 2;
    q_ = pages_ + sets * page_elements;
    cos_.resize(static_cast<size_t>(rows) * static_cast<size_t>(m.head_dim / 2));
    sin_.resize(cos_.size());
    rope_table({rows, m.head_dim / 2, builders_[0].batch().positions, inv_freq_.data(), 1.0f, cos_.data(), sin_.data()},
               suite.pool());
  }

  void run(Suite& suite, int64_t call) {
    const RowBatch batch = builders_[static_cast<size_t>(call / layout_.num_layers) % builders_.size()].batch();
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
  void spoil() {
    std::memset(static_cast<void*>(q_), 0xff, static_cast<size_t>(rows_ * q_features_) * 2);
    std::memset(static_cast<void*>(pages_), 0, page_bytes_);  // what is not to be written stays zero
    fault_.assign(fault_.size(), 0);
  }
  uint64_t hash() const {
    const bool faults = std::any_of(fault_.begin(), fault_.end(), [](uint8_t fault) { return fault != 0; });
    return xxh64(q_, static_cast<size_t>(rows_ * q_features_) * 2) ^ xxh64(pages_, page_bytes_) << 1 ^
           (faults ? xxh64(fault_.data(), fault_.size()) : 0);
  }

  // All heads of all rows of call 0, in layer 0, and every row's fault. Half a bf16 ulp; where a rotation
  // cancels, float32 roundings of its terms.
  std::string verify() const {
    Comparison comparison;
    const int d = model_.head_dim, heads = model_.num_heads, kv_heads = model_.num_kv_heads;
    for (int r = 0; r < rows_; ++r) comparison.expect_equal(r, fault_[static_cast<size_t>(r)], 0);
    for (int64_t at_head = 0; at_head < int64_t{rows_} * (heads + 2 * kv_heads); ++at_head) {
      const int64_t r = at_head / (heads + 2 * kv_heads), head = at_head % (heads + 2 * kv_heads);
      const float* x = qkv_ + r * row_features_ + head * d;
      const int64_t position = kFirst + r;
      const RowBatch batch = builders_[0].batch();
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
  std::vector<RowBatchBuilder> builders_;  // one a set of pages
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
  work.spoil = [operands] { operands->spoil(); };
  work.hash = [operands] { return operands->hash(); };
  return work;
}

// route of Qwen3-30B-A3B: 8 of 128 experts. It spoils its logits, so a call begins with a copy of them.
Work make_route(Suite& suite, int rows) {
  constexpr int kExperts = 128, kTaken = 8;
  const int64_t size = int64_t{rows} * kExperts, copies = copies_in_rotation(size * static_cast<int64_t>(sizeof(float)));
  const float* random = suite.arena().floats(copies * size);
  struct Operands {
    std::vector<float> logits, weights;
    std::vector<int32_t> experts;
  };
  auto o = std::make_shared<Operands>();
  o->logits.resize(static_cast<size_t>(size));
  o->weights.resize(static_cast<size_t>(rows * kTaken));
  o->experts.resize(o->weights.size());

  Work work;
  work.cached_bytes = static_cast<double>(o->logits.size() + o->weights.size() * 2) * 4;
  work.bytes = work.cached_bytes + static_cast<double>(size) * sizeof(float);
  work.run = [=, &suite](int64_t call) {
    std::copy_n(random + call % copies * size, size, o->logits.begin());
    route({rows, kExperts, kTaken, true, o->logits.data(), o->experts.data(), o->weights.data()}, suite.pool());
  };
  work.verify = [=] {
    Comparison comparison;
    for (int64_t r = 0; r < rows; ++r) {
      const float* x = random + r * kExperts;
      std::vector<int32_t> best(kExperts);
      std::iota(best.begin(), best.end(), 0);
      std::stable_sort(best.begin(), best.end(), [&](int32_t a, int32_t b) { return x[a] > x[b]; });
      std::sort(best.begin(), best.begin() + kTaken);
      double sum = 0;
      for (int i = 0; i < kTaken; ++i) sum += std::exp(double{x[best[static_cast<size_t>(i)]]});
      for (int i = 0; i < kTaken; ++i) {
        const size_t at = static_cast<size_t>(r * kTaken + i);
        const int32_t e = best[static_cast<size_t>(i)];
        comparison.expect_equal(static_cast<int64_t>(at), static_cast<uint64_t>(o->experts[at]), static_cast<uint64_t>(e));
        comparison.expect(static_cast<int64_t>(at), double{o->weights[at]}, std::exp(double{x[e]}) / sum, 1e-6);
      }
    }
    return comparison.verdict();
  };
  work.spoil = [=] {
    o->experts.assign(o->experts.size(), -1);
    o->weights.assign(o->weights.size(), -1);
  };
  work.hash = [=] {
    return xxh64(o->experts.data(), o->experts.size() * 4) ^ xxh64(o->weights.data(), o->weights.size() * 4) << 1;
  };
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
  for (const int rows : kElementwiseRows)
    suite.add("route/qwen3-30b-a3b/rows:" + std::to_string(rows), [&suite, rows] { return make_route(suite, rows); });
  add_page_cases(suite);
}

}  // namespace otr::bench
