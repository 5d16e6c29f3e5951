// The operands of attention's cases, and how a case is verified. Softmax over thousands of keys with scores of variance 1 is
// nearly flat: a key counts for one part in thousands, and an output is small. So two things are asked:
//
//   call 0     16 heads of rows against float64, within what rounding P to bf16 may cost: its errors are independent, so they add
//              up like sqrt(sum p^2 v^2) and not like sum p |v|, which does not shrink with the number of keys. The kernels'
//              errors are 0.3 to 0.7 of it; that of 64 keys left out of 32,768 is 5 times it.
//   aimed      calls of their own in which every head of every row has a multiple of one key for its query: that key has all the
//              weight, and the output is its value. The last key that a row sees is one of them, and so are, in turns, the first,
//              the last and some other key of all pages, as far as kMaxAimedCalls go. A query for the key behind the last one
//              must not find it.
//
// Single-threaded, but for the pool.
#pragma once

#include <string>
#include <vector>

#include "bench/comparison.h"
#include "bench/suite.h"
#include "graph/row_batch_builder.h"

namespace otr::bench {

struct AttentionShape {
  const char* kind;
  int sequences, rows, context;  // `rows` of each sequence, the last of them at position context - 1
  int shared = 0;                // keys that the sequences have in common; whole pages
  int paths = 0;                 // further paths of each draft, kPathRows rows behind its second row on pages of their own

  static constexpr int kPathRows = 4;
  constexpr int num_rows() const { return sequences * (rows + paths * kPathRows); }
};

class AttentionOperands {
 public:
  AttentionOperands(Suite& suite, const ModelShape& m, const AttentionShape& s);

  void run(Suite& suite, int64_t call);
  void spoil();
  uint64_t hash() const;
  std::string verify(Suite& suite);  // after run(0); leaves q as it was

  double flops() const;      // of the keys that rows see
  double kv_bytes() const;   // of a call, each key once
  double row_bytes() const;  // of q and the outputs

 private:
  static constexpr int kMaxAimedCalls = 20;
  struct Row {
    int position, segment;
    const PageId* table;
  };
  struct Aim {
    int row, head, key;
  };

  float scale() const;
  int64_t q_index(int row, int head) const { return (int64_t{row} * model_.num_heads + head) * model_.head_dim; }
  int64_t pages_of_set() const;
  void add_rows(Suite& suite, int64_t sets);
  Row row_of(int row) const;  // of call 0
  const Element* page_of(const Row& row, int key) const;
  double k_at(const Row& row, int head, int key, int i) const;
  double v_at(const Row& row, int head, int key, int i) const;
  void verify_head(int row, int head, Comparison* comparison) const;
  uint64_t fingerprint(const Row& row, int kv_head, int key) const;
  void note_fingerprints();
  bool aim(const Row& row, const Aim& at);  // sets q
  void aim_somewhere(const Row& row, int index, int head, int64_t turn, Places* places);
  void verify_aimed_call(Suite& suite, int64_t first_turn, Comparison* comparison);

  const ModelShape model_;
  const AttentionShape shape_;
  const int group_, num_rows_;
  KvLayout layout_;
  const Element* pages_ = nullptr;
  std::vector<RowBatchBuilder> builders_;  // one a set
  std::vector<Element> q_, out_;
  std::vector<std::vector<uint64_t>> fingerprints_;  // of a segment's keys, by KV head, sorted
  std::vector<Aim> aims_;                            // of the last call
};

}  // namespace otr::bench
