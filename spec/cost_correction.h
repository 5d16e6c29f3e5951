// CostCorrection: by how much passes take longer, or shorter, than a CostModel says, learnt while they run.
//
// One factor per role and bucket of rows (1, 2–3, 4–7, …), beside one of the whole role, which speaks for buckets that have
// seen too little. Of the last five passes the median of log(observed / predicted) is what is learnt from: two of five may be
// disturbed, by a busy neighbour say, and change nothing. The factor follows it with a step of 1 / passes, later 1 / 16: what
// was learnt 16 passes ago counts e times less. Factors stay within 1/4 and 4; a model that is further off needs another
// profile.
//
// Nothing allocates. Thread safety: used by the engine thread.
#pragma once

#include <array>
#include <cstdint>

#include "spec/cost_model.h"

namespace otr {

class CostCorrection {
 public:
  static constexpr double kMost = 4;  // factors: 1 / kMost … kMost

  // A pass of so many rows took `observed_ms`, and the model had said `predicted_ms`. Times that are not positive and finite
  // say nothing.
  void observe(CostRole role, double rows, double predicted_ms, double observed_ms);
  // What to multiply the model's time by; 1 before there is anything to go by.
  double factor(CostRole role, double rows) const;

 private:
  static constexpr int kWindow = 5, kFewest = 3;  // passes that are looked at; before which nothing is said
  static constexpr int kMemory = 16;
  static constexpr size_t kBuckets = 24;

  struct Residual {
    std::array<float, kWindow> last = {};  // of log(observed / predicted), oldest overwritten first
    int64_t count = 0;
    double mean = 0;

    void add(double log_ratio);
    bool known() const { return count >= kFewest; }
  };
  static size_t bucket(double rows);

  struct Role {
    Residual all;
    std::array<Residual, kBuckets> by_rows;
  };
  std::array<Role, kNumCostRoles> roles_;
};

}  // namespace otr
