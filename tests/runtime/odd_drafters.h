// Drafters that no sane engine has: forests at random, and forests of one who knows the answer and hides it among traps.
#pragma once

#include <map>
#include <random>
#include <utility>
#include <vector>

#include "spec/drafter.h"

namespace otr {

// Proposes forests of any form, of tokens that are sometimes right because there are few.
class RandomDrafter final : public Drafter {
 public:
  RandomDrafter(int number, int32_t vocab_size) : number_(number), vocab_size_(vocab_size) {}
  void join(const DraftSequence&) override {}
  DraftWork propose(std::span<const DraftRow> rows, const DraftLimits& limits) override {
    for (const DraftRow& row : rows) {
      for (int32_t n = static_cast<int32_t>(random_() % static_cast<uint32_t>(limits.max_nodes + 1)); n > 0; --n) {
        const int32_t parent = static_cast<int32_t>(random_() % static_cast<uint32_t>(row.forest->size() + 1)) - 1;
        if (parent != Forest::kRoot && (*row.forest)[parent].depth == row.max_depth) continue;
        row.forest->add(parent, static_cast<int32_t>(random_() % static_cast<uint32_t>(vocab_size_)), 0.1f, number_, 0);
      }
    }
    return {};
  }
  void observe(const DraftVerdict&) override {}
  void leave(int32_t) override {}

 private:
  const int number_;
  const int32_t vocab_size_;
  std::mt19937 random_{11};
};

using SampleKey = std::pair<uint32_t, uint32_t>;  // of a sample: words of its noise

// Knows what will be drawn, and surrounds it with what will not: right chains that end wrong, wrong siblings first, the right
// token below a wrong one, stop tokens.
class AdversarialDrafter final : public Drafter {
 public:
  // `answers`: what is drawn, by sample. `stop_token`: one that ends a sample.
  AdversarialDrafter(int number, std::map<SampleKey, std::vector<int32_t>> answers, int32_t stop_token)
      : number_(number), answers_(std::move(answers)), stop_token_(stop_token) {}
  void join(const DraftSequence&) override {}
  DraftWork propose(std::span<const DraftRow> rows, const DraftLimits& limits) override {
    for (const DraftRow& row : rows) {
      const std::vector<int32_t>& answer = answers_.at({row.sequence.noise.r[0], row.sequence.noise.r[1]});
      size_t at = row.sequence.tokens.size() - static_cast<size_t>(row.sequence.num_prompt);
      Forest& forest = *row.forest;
      const size_t wrong_at = random_() % 8;
      int32_t parent = Forest::kRoot;
      const int32_t others = forest.size();
      for (int32_t depth = 1; depth <= row.max_depth && forest.size() - others + 3 <= limits.max_nodes; ++depth, ++at) {
        const int32_t right = at < answer.size() ? answer[at] : 0;
        const int32_t wrong = (right + 1) % 7;
        if (random_() % 3 == 0) {
          const int32_t trap = forest.add(parent, random_() % 2 == 0 ? stop_token_ : wrong, 0.9f, number_, 1);
          if (depth < row.max_depth) forest.add(trap, right, 0.9f, number_, 0);
        }
        parent = forest.add(parent, static_cast<size_t>(depth) == wrong_at ? wrong : right, 0.9f, number_, 0);
      }
    }
    return {};
  }
  void observe(const DraftVerdict&) override {}
  void leave(int32_t) override {}

 private:
  const int number_;
  const std::map<SampleKey, std::vector<int32_t>> answers_;
  const int32_t stop_token_;
  std::mt19937 random_{5};
};

}  // namespace otr
