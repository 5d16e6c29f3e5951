// The closed forms of drafting_law.h against simulation and against each other.

#include "tests/spec/drafting_law.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace otr {
namespace {

struct Pair {
  std::vector<double> p, q;
};

// Logits of a target, and of a drafter that is off by normal errors.
Pair random_pair(std::mt19937* random, size_t vocab, double error) {
  std::normal_distribution<double> normal;
  Pair pair;
  for (size_t v = 0; v < vocab; ++v) {
    const double logit = 2.0 * normal(*random);
    pair.p.push_back(std::exp(logit));
    pair.q.push_back(std::exp(logit + error * normal(*random)));
  }
  for (std::vector<double>* d : {&pair.p, &pair.q}) {
    const double sum = std::accumulate(d->begin(), d->end(), 0.0);
    for (double& x : *d) x /= sum;
  }
  return pair;
}

TEST(DraftingLaw, AgreesWithSimulation) {
  constexpr int kDraws = 100000;
  std::mt19937 random(6);
  std::exponential_distribution<double> exponential;
  for (const double error : {0.2, 0.7, 2.0}) {
    const Pair d = random_pair(&random, 12, error);
    const std::array<double, law::kMostRanks> expected = law::by_rank(d.p, d.q);
    std::array<int, law::kMostRanks> found = {};
    std::vector<double> e(d.p.size());
    for (int i = 0; i < kDraws; ++i) {
      size_t target = 0;
      for (size_t v = 0; v < e.size(); ++v) {
        e[v] = exponential(random);
        if (e[v] * d.p[target] < e[target] * d.p[v]) target = v;
      }
      size_t before = 0;
      for (size_t v = 0; v < e.size(); ++v) before += e[v] * d.q[target] < e[target] * d.q[v];
      if (before < found.size()) ++found[before];
    }
    for (size_t m = 0; m < found.size(); ++m) {
      const double sigma = std::sqrt(expected[m] * (1.0 - expected[m]) / kDraws);
      EXPECT_NEAR(static_cast<double>(found[m]) / kDraws, expected[m], 4.5 * sigma)
          << "error " << error << ", candidate " << m + 1;
    }
  }
}

TEST(DraftingLaw, FormsAgree) {
  std::mt19937 random(7);
  for (const size_t vocab : {size_t{2}, size_t{4}, size_t{50}, size_t{400}}) {
    for (const double error : {0.0, 0.3, 3.0}) {
      const Pair d = random_pair(&random, vocab, error);
      const double match = law::match(d.p, d.q), tv = law::total_variation(d.p, d.q);
      const std::array<double, law::kMostRanks> ranks = law::by_rank(d.p, d.q, 0.0);
      EXPECT_NEAR(ranks[0], match, 1e-6) << vocab << ", " << error;
      EXPECT_GE(match, (1.0 - tv) / (1.0 + tv) - 1e-12);
      EXPECT_LE(match, 1.0 - tv + 1e-12);  // no coupling does better
      const double all = std::accumulate(ranks.begin(), ranks.end(), 0.0);
      if (vocab <= law::kMostRanks) EXPECT_NEAR(all, 1.0, 1e-6);
      else EXPECT_LE(all, 1.0 + 1e-6);
    }
  }
}

}  // namespace
}  // namespace otr
