// attention: decoding (a row of each sequence), the same for a group of samples that share their prompt, verification (8
// drafted rows of one) and prefill (512 rows of one, or all its 4096), at the end of contexts of 128 … 32768 keys. Flops are of
// the keys that a row sees. Layers and sequences are rotated: keys and values come from memory.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "bench/comparison.h"
#include "bench/suite.h"
#include "graph/row_batch_builder.h"
#include "loader/xxh64.h"

namespace otr::bench {
namespace {

constexpr int64_t kMaxPageBytes = int64_t{1280} << 20;  // of a case: 32768 tokens of a model of 36 layers would be 4.8 GB

struct AttentionShape {
  const char* kind;
  int sequences, rows, context;  // `rows` of each sequence, the last of them at position context - 1
  int shared = 0;                // keys that the sequences have in common; whole pages
};
constexpr AttentionShape kShapes[] = {
    {"decode", 1, 1, 128},       {"decode", 1, 1, 1024},    {"decode", 1, 1, 8192},     {"decode", 1, 1, 32768},
    {"decode", 16, 1, 128},      {"decode", 16, 1, 1024},   {"decode", 16, 1, 8192},    {"decode", 1, 1, 4160},
    {"group", 8, 1, 4160, 4096}, {"verify", 1, 8, 1024},    {"verify", 1, 8, 8192},     {"prefill", 1, 512, 512},
    {"prefill", 1, 512, 2048},   {"prefill", 1, 512, 8192}, {"prefill", 1, 512, 32768}, {"prefill", 1, 4096, 4096}};

// All query heads on one KV head: fewer heads than threads. The same layers with their heads dealt out to four.
constexpr ModelShape kOneKvHead = {"qwen2.5-7b-quarter", 3584, 18944, 28, 7, 1, 128, 152064, true, false};

class AttentionOperands {
 public:
  AttentionOperands(Suite& suite, const ModelShape& m, const AttentionShape& s)
      : model_(m), shape_(s), group_(m.num_heads / m.num_kv_heads), num_rows_(s.sequences * s.rows) {
    const int64_t pages = int64_t{s.sequences} * ((s.context + kPageTokens - 1) / kPageTokens);
    layout_ = {1, m.num_kv_heads, m.head_dim, suite.kernels().kv_packing};
    const int64_t layer_bytes = pages * layout_.page_bytes();
    layout_.num_layers = static_cast<int32_t>(std::clamp<int64_t>(kMaxPageBytes / layer_bytes, 1, m.num_layers));
    const int64_t sets = copies_in_rotation(layer_bytes * layout_.num_layers);
    pages_ = suite.arena().elements(sets * pages * layout_.page_elements());
    add_rows(suite, sets, pages);
    const int64_t token = int64_t{m.num_heads} * m.head_dim;  // a multiple of 32 in every model
    const Element* random = suite.arena().elements(num_rows_ * token + 777) + 777;
    q_.assign(random, random + num_rows_ * token);
    out_.assign(q_.size(), Element{});
  }

  void run(Suite& suite, int64_t call) {
    const RowBatch batch = builders_[static_cast<size_t>(call / layout_.num_layers) % builders_.size()].batch();
    suite.kernels().attention({&batch, static_cast<int32_t>(call % layout_.num_layers), model_.num_heads, layout_, scale(),
                               q_.data(), pages_, out_.data(), int64_t{model_.num_heads} * model_.head_dim},
                              suite.pool());
  }

  double keys() const {  // that a call's rows see, all in all
    const double last = shape_.context, first = last - shape_.rows + 1;
    return shape_.sequences * (first + last) / 2 * shape_.rows;
  }
  double flops() const { return 4.0 * model_.num_heads * model_.head_dim * keys(); }
  double bytes() const {
    const double keys = shape_.sequences * static_cast<double>(shape_.context - shape_.shared) + shape_.shared;
    const double kv = 2.0 * keys * model_.num_kv_heads * model_.head_dim * sizeof(Element);
    return kv + static_cast<double>((q_.size() + out_.size()) * sizeof(Element));
  }
  uint64_t hash() const { return xxh64(out_.data(), out_.size() * sizeof(Element)); }

  // 16 heads of rows of call 0, the last head of the last row among them.
  std::string verify() const {
    Places places;
    Comparison comparison;
    for (int i = 0; i < 16; ++i) {
      const int row = i == 0 ? num_rows_ - 1 : static_cast<int>(places.below(num_rows_));
      const int head = i == 0 ? model_.num_heads - 1 : static_cast<int>(places.below(model_.num_heads));
      verify_head(row, head, &comparison);
    }
    return comparison.verdict();
  }

 private:
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(model_.head_dim)); }

  // Every set has pages of its own, in shuffled order.
  void add_rows(Suite& suite, int64_t sets, int64_t pages) {
    std::vector<PageId> ids(static_cast<size_t>(sets * pages));
    std::iota(ids.begin(), ids.end(), 0);
    Places places;
    for (size_t i = ids.size(); i > 1; --i)
      std::swap(ids[i - 1], ids[static_cast<size_t>(places.below(static_cast<int64_t>(i)))]);
    const int32_t per_sequence = static_cast<int32_t>(pages / shape_.sequences);
    const std::vector<int32_t> tokens(static_cast<size_t>(shape_.rows), 0);
    auto next = ids.begin();
    for (int64_t set = 0; set < sets; ++set) {
      builders_.emplace_back(RowLimits{num_rows_, shape_.sequences, 1, per_sequence},
                             suite.kernels().attention_tile_rows(model_.num_heads, model_.num_kv_heads));
      const auto first = next;
      for (int s = 0; s < shape_.sequences; ++s, next += per_sequence) {
        std::copy_n(first, shape_.shared / kPageTokens, next);
        builders_.back().add(tokens, shape_.context - shape_.rows, {&*next, static_cast<size_t>(per_sequence)}, shape_.context);
      }
    }
  }

  // The float64 softmax. P is rounded to bf16 (2^-8 of every term at most), the output too; scores are float32 sums of head_dim
  // products, and their error is relative in exp.
  void verify_head(int row, int head, Comparison* comparison) const {
    const int d = model_.head_dim, kv_head = head / group_, position = shape_.context - shape_.rows + row % shape_.rows;
    const RowBatch batch = builders_[0].batch();
    const PageId* table = batch.page_tables + batch.segments[row / shape_.rows].first_page;
    const int64_t first_q = (int64_t{row} * model_.num_heads + head) * d;
    std::vector<double> p(static_cast<size_t>(position) + 1), sums(static_cast<size_t>(d)), sizes(static_cast<size_t>(d));
    double largest = -1e300, largest_terms = 0, total = 0;
    for (int j = 0; j <= position; ++j) {
      const Element* k = page_of(table, j) + layout_.k_offset(0, kv_head);
      double dot = 0, terms = 0;
      for (int i = 0; i < d; ++i) {
        const double term = static_cast<double>(to_float(q_[static_cast<size_t>(first_q + i)])) *
                            static_cast<double>(to_float(k[layout_.k_index(j % kPageTokens, i)]));
        dot += term;
        terms += std::fabs(term);
      }
      p[static_cast<size_t>(j)] = dot * static_cast<double>(scale());
      largest = std::max(largest, p[static_cast<size_t>(j)]);
      largest_terms = std::max(largest_terms, terms * static_cast<double>(scale()));
    }
    for (double& x : p) total += x = std::exp(x - largest);
    for (int j = 0; j <= position; ++j) {
      const Element* v = page_of(table, j) + layout_.v_offset(0, kv_head);
      for (int i = 0; i < d; ++i) {
        const double term = p[static_cast<size_t>(j)] * static_cast<double>(to_float(v[layout_.v_index(j % kPageTokens, i)]));
        sums[static_cast<size_t>(i)] += term;
        sizes[static_cast<size_t>(i)] += std::fabs(term);
      }
    }
    const double score_error = (std::sqrt(static_cast<double>(d)) + 4) * 0x1p-23 * largest_terms;
    for (int i = 0; i < d; ++i) {
      const double value = sums[static_cast<size_t>(i)] / total;
      const double weights = (kBf16Rounding + 2 * score_error + 1e-6) * sizes[static_cast<size_t>(i)] / total;
      comparison->expect(first_q + i, static_cast<double>(to_float(out_[static_cast<size_t>(first_q + i)])), value,
                         weights + 1.01 * kBf16Rounding * std::fabs(value) + 1e-30);
    }
  }
  const Element* page_of(const PageId* table, int position) const {
    return pages_ + table[position / kPageTokens] * layout_.page_elements();
  }

  const ModelShape model_;
  const AttentionShape shape_;
  const int group_, num_rows_;
  KvLayout layout_;
  const Element* pages_ = nullptr;
  std::vector<RowBatchBuilder> builders_;  // one a set
  std::vector<Element> q_, out_;
};

Work make_attention(Suite& suite, const ModelShape& m, const AttentionShape& s) {
  auto operands = std::make_shared<AttentionOperands>(suite, m, s);
  Work work;
  work.bytes = operands->bytes();
  work.flops = operands->flops();
  work.run = [&suite, operands](int64_t call) { operands->run(suite, call); };
  work.verify = [operands] { return operands->verify(); };
  work.hash = [operands] { return operands->hash(); };
  return work;
}

}  // namespace

void add_attention_cases(Suite& suite) {
  std::vector<ModelShape> models(std::begin(kModels), std::end(kModels));
  models.push_back(kOneKvHead);
  for (const ModelShape& m : models) {
    for (const AttentionShape& s : kShapes) {
      const std::string rows = std::string("/rows:") + std::to_string(s.sequences * s.rows);
      suite.add(std::string("attention/") + m.name + "/" + s.kind + rows + "/context:" + std::to_string(s.context),
                [&suite, m, s] { return make_attention(suite, m, s); });
    }
  }
}

}  // namespace otr::bench
