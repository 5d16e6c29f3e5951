#include "spec/acceptance_dial.h"

#include <gtest/gtest.h>

#include <cmath>

namespace otr {
namespace {

NoiseStream request(uint64_t stream) { return noise_stream({.seed = 7, .stream = stream, .sample = 0}); }

double kept(const AcceptanceDial& dial, const NoiseStream& r, int32_t positions) {
  int32_t count = 0;
  for (int32_t at = 0; at < positions; ++at) count += !dial.spoils(r, at);
  return static_cast<double>(count) / positions;
}

// Four standard errors of 20,000 draws.
TEST(AcceptanceDial, KeepsItsShare) {
  const AcceptanceDial dial{.keep = 0.7};
  EXPECT_NEAR(kept(dial, request(1), 20000), 0.7, 4 * std::sqrt(0.7 * 0.3 / 20000));
  EXPECT_EQ(dial.share(request(1)), 0.7);
  EXPECT_FALSE(AcceptanceDial().on());
  EXPECT_EQ(kept(AcceptanceDial(), request(1), 100), 1);
}

TEST(AcceptanceDial, RequestsDiffer) {
  const AcceptanceDial dial{.keep = 0.6, .deviation = 0.1};
  double sum = 0, squares = 0;
  constexpr int kRequests = 4000;
  for (int i = 0; i < kRequests; ++i) {
    const double share = dial.share(request(static_cast<uint64_t>(i)));
    sum += share;
    squares += share * share;
  }
  const double mean = sum / kRequests, deviation = std::sqrt(squares / kRequests - mean * mean);
  EXPECT_NEAR(mean, 0.6, 4 * 0.1 / std::sqrt(kRequests));
  EXPECT_NEAR(deviation, 0.1, 4 * 0.1 / std::sqrt(2.0 * kRequests));
  EXPECT_NEAR(kept(dial, request(3), 20000), dial.share(request(3)), 4 * std::sqrt(0.25 / 20000));
}

// Drafters with different salts err at different places: both at once as often as chance has it.
TEST(AcceptanceDial, DraftersErrOnTheirOwn) {
  const AcceptanceDial a{.keep = 0.5, .deviation = 0, .salt = 0}, b{.keep = 0.5, .deviation = 0, .salt = 1};
  int both = 0;
  for (int32_t at = 0; at < 20000; ++at) both += a.spoils(request(1), at) && b.spoils(request(1), at);
  EXPECT_NEAR(both / 20000.0, 0.25, 4 * std::sqrt(0.25 * 0.75 / 20000));
}

// Siblings that follow each other by number, upwards and downwards, so that the next token is often taken, or was.
TEST(AcceptanceDial, SpoilsEveryNodeOfAPlace) {
  const auto tree = [] {
    Forest f;
    for (const int32_t token : {3, 4, 5, 12, 11, 10}) f.add(Forest::kRoot, token, 0.5f, 0, 0);
    f.add(0, 4, 0.5f, 0, 0);
    f.add(6, 5, 0.5f, 0, 0);
    return f;
  };
  constexpr int32_t kVocab = 17;
  Forest left_alone = tree(), spoilt = tree(), some = tree();
  AcceptanceDial().spoil(request(1), 10, kVocab, &left_alone);
  AcceptanceDial{.keep = 0}.spoil(request(1), 10, kVocab, &spoilt);
  for (int32_t node = 0; node < spoilt.size(); ++node) {
    EXPECT_EQ(left_alone[node].token, tree()[node].token);
    EXPECT_EQ(tree().child(spoilt[node].parent, spoilt[node].token), Forest::kNone) << node;
    EXPECT_EQ(spoilt.child(spoilt[node].parent, spoilt[node].token), node) << "siblings have one token";
  }
  const AcceptanceDial half{.keep = 0.5};
  int32_t at = 10;
  while (half.spoils(request(1), at) || !half.spoils(request(1), at + 1)) ++at;
  half.spoil(request(1), at, kVocab, &some);
  for (int32_t node = 0; node < some.size(); ++node)
    EXPECT_EQ(some[node].token != tree()[node].token, some[node].depth == 2) << node;
}

}  // namespace
}  // namespace otr
