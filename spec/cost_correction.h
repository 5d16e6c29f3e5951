// CostCorrection: what the cost model gets wrong of one kind of pass, learnt from the passes of a rollout.
//
// A factor on the modelled time, by powers of two of the rows and interpolated between them; beyond the rows that were seen it
// is that of the nearest. A pass of another kind that takes about as long may stand in, as a hint, where no pass of this kind
// was seen, or none for long. It follows the median of observed / modelled: passes that the machine interrupted take several
// times as long, and say nothing of the others. While few passes of some rows were seen, those of more and of fewer rows count
// too.
//
// Thread safety: single-threaded. Never allocates.
#pragma once

#include <array>
#include <cstddef>

namespace otr {

class CostCorrection {
 public:
  static constexpr double kMost = 10;  // a factor beyond this, or below its inverse, is held for this

  // 1 before anything is learnt.
  double factor(double rows) const;
  void learn(double rows, double modelled_ms, double ms);
  // `for_long`: it counts also where passes of this kind were seen.
  void hint(double rows, double modelled_ms, double ms, bool for_long = false);

 private:
  static size_t bucket_of(double rows);
  void follow(size_t bucket, double modelled_ms, double ms);
  double beside(size_t bucket) const;
  void fill_gaps();

  static constexpr size_t kBuckets = 17;
  struct Bucket {
    double log_ratio = 0, weight = 0;
    bool own = false;  // of passes of this kind, not hints
  };
  std::array<Bucket, kBuckets> buckets_;          // by log2 of the rows
  std::array<double, kBuckets> log_factor_ = {};  // likewise, with what was not seen between what was
};

}  // namespace otr
