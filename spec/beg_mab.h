// BegMab: the bucketed epsilon-greedy bandit of TLT (section 5.2, algorithm 1).
//
// Arms are grouped by the tokens they verify, the most first; group i serves the batches from threshold i to the next one. In a
// group arms that were never tried come first, in the order they are listed; then with probability epsilon any, else the one
// with the greatest median reward of its last kWindow: (mean accepted tokens + 1) * batch / time. The paper leaves open how an
// arm without rewards compares, and the window's size.
//
// Thread safety: single-threaded. Allocates at construction only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace otr {

class BegMab {
 public:
  static constexpr double kEpsilon = 0.1;
  static constexpr size_t kWindow = 32;

  struct Arm {
    int32_t depth, top_k, verify_tokens;
  };
  // REQUIRES: as many thresholds as different verify_tokens, ascending, the first one 1.
  BegMab(std::span<const Arm> arms, std::span<const int32_t> thresholds, uint64_t seed = 1);

  // The arm for this batch, >= 1; an index.
  size_t select(int32_t batch);
  // What arm `arm` brought: `accepted` draft tokens of all samples together.
  void record(size_t arm, double elapsed_ms, int64_t accepted, int32_t batch);

  const Arm& arm(size_t index) const { return arms_[index].arm; }
  size_t size() const { return arms_.size(); }
  double median_reward(size_t arm) const;  // 0: none yet

 private:
  struct Record {
    Arm arm;
    std::vector<double> rewards;  // a ring
    int64_t count = 0;            // ever recorded
  };
  double uniform();  // in [0, 1)

  std::vector<Record> arms_;               // by verify_tokens descending, else as listed
  std::vector<size_t> first_of_;           // by group; one more at the end
  const std::vector<int32_t> thresholds_;  // by group
  mutable std::vector<double> sorted_;
  uint64_t random_;
};

}  // namespace otr
