#include "bench/attention_operands.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "loader/xxh64.h"

namespace otr::bench {
namespace {

constexpr int64_t kMaxPageBytes = int64_t{1280} << 20;  // of a case: 32768 tokens of a model of 36 layers would be 4.8 GB

int64_t pages_of(int64_t keys) { return (keys + kPageTokens - 1) / kPageTokens; }

}  // namespace

AttentionOperands::AttentionOperands(Suite& suite, const ModelShape& m, const AttentionShape& s)
    : model_(m), shape_(s), group_(m.num_heads / m.num_kv_heads), num_rows_(s.num_rows()) {
  layout_ = {1, m.num_kv_heads, m.head_dim, suite.kernels().kv_packing};
  const int64_t layer_bytes = pages_of_set() * layout_.page_bytes();
  layout_.num_layers = static_cast<int32_t>(std::clamp<int64_t>(kMaxPageBytes / layer_bytes, 1, m.num_layers));
  const int64_t sets = copies_in_rotation(layer_bytes * layout_.num_layers);
  pages_ = suite.arena().elements(sets * pages_of_set() * layout_.page_elements());
  add_rows(suite, sets);
  const int64_t token = int64_t{m.num_heads} * m.head_dim;  // a multiple of 32 in every model
  const Element* random = suite.arena().elements(num_rows_ * token + 777) + 777;
  q_.assign(random, random + num_rows_ * token);
  out_.assign(q_.size(), Element{});
}

// Every one once: those that sequences share, theirs, and those of paths.
int64_t AttentionOperands::pages_of_set() const {
  const int64_t common = shape_.shared / kPageTokens, all = pages_of(shape_.context);
  const int64_t fork = (shape_.context - shape_.rows + 2) / kPageTokens;
  return common + shape_.sequences * (all - common + shape_.paths * (all - fork));
}

// Every set has pages of its own, in shuffled order.
void AttentionOperands::add_rows(Suite& suite, int64_t sets) {
  std::vector<PageId> ids(static_cast<size_t>(sets * pages_of_set()));
  std::iota(ids.begin(), ids.end(), 0);
  Places places;
  for (size_t i = ids.size(); i > 1; --i)
    std::swap(ids[i - 1], ids[static_cast<size_t>(places.below(static_cast<int64_t>(i)))]);
  const int32_t all = static_cast<int32_t>(pages_of(shape_.context)), common = shape_.shared / kPageTokens;
  const int32_t begin = shape_.context - shape_.rows, fork = begin + 2, fork_page = fork / kPageTokens;
  const std::vector<int32_t> tokens(static_cast<size_t>(shape_.rows), 0), path(AttentionShape::kPathRows, 0);
  const PageId* next = ids.data();
  for (int64_t set = 0; set < sets; ++set) {
    builders_.emplace_back(RowLimits{num_rows_, shape_.sequences * (1 + shape_.paths), num_rows_, all},
                           suite.kernels().attention_tile_rows(model_.num_heads, model_.num_kv_heads));
    std::vector<PageId> table(next, next + common);
    next += common;
    for (int s = 0; s < shape_.sequences; ++s) {
      table.resize(static_cast<size_t>(common));
      table.insert(table.end(), next, next + all - common);
      next += all - common;
      builders_.back().add(tokens, begin, table, shape_.context);
      for (int p = 0; p < shape_.paths; ++p, next += all - fork_page)
        builders_.back().add_path(path, fork, {table.data(), static_cast<size_t>(fork_page)},
                                  {next, static_cast<size_t>(all - fork_page)});
    }
  }
}

void AttentionOperands::run(Suite& suite, int64_t call) {
  const RowBatch batch = builders_[static_cast<size_t>(call / layout_.num_layers) % builders_.size()].batch();
  suite.kernels().attention({&batch, static_cast<int32_t>(call % layout_.num_layers), model_.num_heads, layout_, scale(),
                             q_.data(), pages_, out_.data(), int64_t{model_.num_heads} * model_.head_dim},
                            suite.pool());
}

void AttentionOperands::spoil() { std::memset(static_cast<void*>(out_.data()), 0xff, out_.size() * sizeof(Element)); }

uint64_t AttentionOperands::hash() const { return xxh64(out_.data(), out_.size() * sizeof(Element)); }

double AttentionOperands::flops() const {
  const RowBatch batch = builders_[0].batch();
  double keys = 0;
  for (int r = 0; r < num_rows_; ++r) keys += batch.positions[r] + 1;
  return 4.0 * model_.num_heads * model_.head_dim * keys;
}

double AttentionOperands::kv_bytes() const {
  const int fork = shape_.context - shape_.rows + 2, of_path = fork % kPageTokens + AttentionShape::kPathRows;
  const double keys =
      shape_.shared + shape_.sequences * static_cast<double>(shape_.context - shape_.shared + shape_.paths * of_path);
  return 2.0 * keys * model_.num_kv_heads * model_.head_dim * sizeof(Element);
}

double AttentionOperands::row_bytes() const { return static_cast<double>((q_.size() + out_.size()) * sizeof(Element)); }

float AttentionOperands::scale() const { return 1.0f / std::sqrt(static_cast<float>(model_.head_dim)); }

AttentionOperands::Row AttentionOperands::row_of(int row) const {
  const RowBatch batch = builders_[0].batch();
  int segment = 0;
  while (row >= batch.segments[segment].first_row + batch.segments[segment].num_rows) ++segment;
  return {batch.positions[row], segment, batch.page_tables + batch.segments[segment].first_page};
}

const Element* AttentionOperands::page_of(const Row& row, int key) const {
  return pages_ + row.table[key / kPageTokens] * layout_.page_elements();
}

double AttentionOperands::k_at(const Row& row, int head, int key, int i) const {
  return double{to_float(page_of(row, key)[layout_.k_offset(0, head / group_) + layout_.k_index(key % kPageTokens, i)])};
}

double AttentionOperands::v_at(const Row& row, int head, int key, int i) const {
  return double{to_float(page_of(row, key)[layout_.v_offset(0, head / group_) + layout_.v_index(key % kPageTokens, i)])};
}

std::string AttentionOperands::verify(Suite& suite) {
  Places places;
  Comparison comparison;
  for (int i = 0; i < 16; ++i) {  // the last head of the last row among them
    const int row = i == 0 ? num_rows_ - 1 : static_cast<int>(places.below(num_rows_));
    const int head = i == 0 ? model_.num_heads - 1 : static_cast<int>(places.below(model_.num_heads));
    verify_head(row, head, &comparison);
  }
  const std::vector<Element> q = q_;
  note_fingerprints();
  const int64_t turns = int64_t{shape_.rows} * (model_.num_heads - 1);  // of pages in a call
  const int64_t calls = std::clamp<int64_t>((pages_of(shape_.context) + turns - 1) / turns, 1, kMaxAimedCalls);
  for (int64_t call = 0; call < calls; ++call) verify_aimed_call(suite, call * turns, &comparison);
  q_ = q;
  return comparison.verdict();
}

// The float64 softmax. P is rounded to bf16 (independently: six deviations of the sum, or 2^-8 of every term where those are
// few), the output too; scores are float32 sums of head_dim products, and their error is relative in exp.
void AttentionOperands::verify_head(int row, int head, Comparison* comparison) const {
  const int d = model_.head_dim;
  const Row r = row_of(row);
  const size_t channels = static_cast<size_t>(d);
  std::vector<double> p(static_cast<size_t>(r.position) + 1), q(channels), sums(channels), sizes(channels), squares(channels);
  for (int i = 0; i < d; ++i) q[static_cast<size_t>(i)] = double{to_float(q_[static_cast<size_t>(q_index(row, head) + i)])};
  double largest = -1e300, largest_terms = 0, total = 0;
  for (int j = 0; j <= r.position; ++j) {
    double dot = 0, terms = 0;
    for (int i = 0; i < d; ++i) {
      const double term = q[static_cast<size_t>(i)] * k_at(r, head, j, i);
      dot += term;
      terms += std::fabs(term);
    }
    p[static_cast<size_t>(j)] = dot * double{scale()};
    largest = std::max(largest, p[static_cast<size_t>(j)]);
    largest_terms = std::max(largest_terms, terms * double{scale()});
  }
  for (double& x : p) total += x = std::exp(x - largest);
  for (int j = 0; j <= r.position; ++j) {
    for (int i = 0; i < d; ++i) {
      const double term = p[static_cast<size_t>(j)] / total * v_at(r, head, j, i);
      sums[static_cast<size_t>(i)] += term;
      sizes[static_cast<size_t>(i)] += std::fabs(term);
      squares[static_cast<size_t>(i)] += term * term;
    }
  }
  const double score_error = (std::sqrt(static_cast<double>(d)) + 4) * 0x1p-23 * largest_terms;
  for (int i = 0; i < d; ++i) {
    const size_t at = static_cast<size_t>(i);
    const double rounding = kBf16Rounding * std::min(6 / std::sqrt(3.0) * std::sqrt(squares[at]), sizes[at]);
    const int64_t index = q_index(row, head) + i;
    comparison->expect(index, double{to_float(out_[static_cast<size_t>(index)])}, sums[at],
                       rounding + (2 * score_error + 1e-6) * sizes[at] + 1.01 * kBf16Rounding * std::fabs(sums[at]) + 1e-30);
  }
}

// Random keys repeat: of 32,768 some hundred have a double, which would take half of the weight. Four channels tell keys apart.
uint64_t AttentionOperands::fingerprint(const Row& row, int kv_head, int key) const {
  uint64_t bits = 0;
  for (int i = 0; i < 4; ++i)
    bits = bits << 16 | page_of(row, key)[layout_.k_offset(0, kv_head) + layout_.k_index(key % kPageTokens, i)].bits;
  return bits;
}

void AttentionOperands::note_fingerprints() {
  const RowBatch batch = builders_[0].batch();
  fingerprints_.clear();
  for (int segment = 0; segment < batch.num_segments; ++segment) {
    const Row row = row_of(batch.segments[segment].first_row + batch.segments[segment].num_rows - 1);
    for (int kv_head = 0; kv_head < model_.num_kv_heads; ++kv_head) {
      std::vector<uint64_t>& all = fingerprints_.emplace_back();
      for (int key = 0; key <= row.position; ++key) all.push_back(fingerprint(row, kv_head, key));
      std::sort(all.begin(), all.end());
    }
  }
}

// A power of two times the key, so exact. Where the key is as long as it is on average, its score is 45 and the others' have
// deviations of 4 (head_dim 128), or 64 and 8 (64): its weight is 1. False if it is shorter, or has a double.
bool AttentionOperands::aim(const Row& row, const Aim& at) {
  const double factor = model_.head_dim >= 128 ? 4 : 8;
  double squares = 0;
  for (int i = 0; i < model_.head_dim; ++i) {
    const double k = k_at(row, at.head, at.key, i);
    q_[static_cast<size_t>(q_index(at.row, at.head) + i)] = to_element(static_cast<float>(factor * k));
    squares += k * k;
  }
  const int kv_head = at.head / group_;
  const auto& all = fingerprints_[static_cast<size_t>(row.segment * model_.num_kv_heads + kv_head)];
  const auto [first, last] = std::equal_range(all.begin(), all.end(), fingerprint(row, kv_head, at.key));
  return squares >= model_.head_dim && last - first == 1;
}

// At the turn's page: its first key, its last or another, or the next one that will do.
void AttentionOperands::aim_somewhere(const Row& row, int index, int head, int64_t turn, Places* places) {
  const int seen = row.position + 1, first = static_cast<int>(turn % pages_of(seen)) * kPageTokens;
  const int keys = std::min(kPageTokens, seen - first);
  const int start = turn % 3 == 0 ? 0 : turn % 3 == 1 ? keys - 1 : static_cast<int>(places->below(keys));
  for (int i = 0; i < keys; ++i) {
    const Aim at = {index, head, first + (start + i) % keys};
    if (aim(row, at)) {
      aims_.push_back(at);
      return;
    }
  }
}

// One head of a row is aimed at the last key that it sees, the others take the pages in turns. In the first call, a head of
// some rows, from the last to the first, is aimed at the key behind it.
void AttentionOperands::verify_aimed_call(Suite& suite, int64_t first_turn, Comparison* comparison) {
  constexpr int kMaxSearched = 8;
  const int heads = model_.num_heads;
  Places places;
  std::vector<std::pair<int, int>> searched;  // rows and heads whose outputs are no single value
  aims_.clear();
  for (int index = num_rows_ - 1; index >= 0; --index) {
    const Row row = row_of(index);
    int of_last = index % heads, tries = 0;
    const bool searches = num_rows_ - 1 - index >= static_cast<int>(searched.size()) * num_rows_ / kMaxSearched;
    while (!aim(row, {index, of_last, row.position}) && ++tries < model_.num_kv_heads) of_last = (of_last + group_) % heads;
    if (tries < model_.num_kv_heads) {
      aims_.push_back({index, of_last, row.position});
    } else if (searches) {
      searched.emplace_back(index, of_last);
    }
    for (int i = 1; i < heads; ++i) {
      const int head = (of_last + i) % heads;
      if (i == 1 && first_turn == 0 && (row.position + 1) % kPageTokens != 0 && searches) {
        aim(row, {index, head, row.position + 1});
        searched.emplace_back(index, head);
      } else {
        aim_somewhere(row, index, head, first_turn + int64_t{index} * (heads - 1) + i - 1, &places);
      }
    }
  }
  run(suite, 0);
  for (const auto& [row, head] : searched) verify_head(row, head, comparison);
  for (const Aim& at : aims_) {
    const Row row = row_of(at.row);
    for (int i = 0; i < model_.head_dim; ++i) {
      const int64_t index = q_index(at.row, at.head) + i;
      const double v = v_at(row, at.head, at.key, i);
      comparison->expect(index, double{to_float(out_[static_cast<size_t>(index)])}, v,
                         1.01 * kBf16Rounding * std::fabs(v) + 1e-4);
    }
  }
}

}  // namespace otr::bench
