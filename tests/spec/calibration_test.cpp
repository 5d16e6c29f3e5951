#include "spec/calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace otr {
namespace {

struct Scores {
  std::vector<float> s, pi;  // of all tokens, best first
  float mean = 0.0f;

  Scores(std::mt19937* random, size_t vocab, float beta) {
    std::normal_distribution<float> normal(0.0f, 2.0f);
    std::extreme_value_distribution<float> gumbel;
    for (size_t v = 0; v < vocab; ++v) s.push_back(normal(*random) + gumbel(*random));
    std::sort(s.rbegin(), s.rend());
    const float top = s[0];
    float total = 0.0f;
    for (float& x : s) {
      x -= top;
      total += std::exp(x / beta);
    }
    for (const float x : s) {
      pi.push_back(std::exp(x / beta) / total);
      mean += pi.back() * x;
    }
  }
};

// Choices drawn from softmax(s / true_beta), of which the fitter sees the first m candidates only.
TEST(Calibration, FindsTheBetaThatTheChoicesHave) {
  for (const float true_beta : {0.1f, 0.4f, 1.0f, 3.0f}) {
    for (const size_t m : {size_t{1}, size_t{4}}) {
      std::mt19937 random(9);
      std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
      Calibration calibration;
      double average = 0.0;
      int averaged = 0;
      for (int i = 0; i < 20000; ++i) {
        Scores truth(&random, 30, true_beta);
        float left = uniform(random);
        size_t chosen = 0;
        while (chosen + 1 < truth.s.size() && (left -= truth.pi[chosen]) > 0.0f) ++chosen;
        Scores seen = truth;
        float total = 0.0f;
        seen.mean = 0.0f;
        for (size_t v = 0; v < seen.s.size(); ++v) total += seen.pi[v] = std::exp(seen.s[v] / calibration.beta());
        for (size_t v = 0; v < seen.s.size(); ++v) seen.mean += (seen.pi[v] /= total) * seen.s[v];
        calibration.observe({seen.s.data(), m}, {seen.pi.data(), m}, seen.mean, chosen < m ? static_cast<int32_t>(chosen) : -1);
        if (i >= 10000) {
          average += calibration.beta();
          ++averaged;
        }
      }
      EXPECT_NEAR(average / averaged / true_beta, 1.0, 0.1) << "beta " << true_beta << ", " << m << " candidates";
    }
  }
}

}  // namespace
}  // namespace otr
