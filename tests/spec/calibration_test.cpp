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
        const std::vector<float> gaps(m, 0.0f);
        calibration.observe({.scores = {seen.s.data(), m}, .pi = {seen.pi.data(), m}, .gaps = gaps, .mean_score = seen.mean},
                            chosen < m ? static_cast<int32_t>(chosen) : -1, 0);
        if (i >= 10000) {
          average += calibration.beta();
          ++averaged;
        }
      }
      EXPECT_NEAR(average / averaged / true_beta, 1.0, 0.1) << "beta " << true_beta << ", " << m << " candidates";
    }
  }
}

// One candidate a place: what is said of it.
float calibrated(const Calibration& calibration, float pi, float gap) {
  const float score = 0.0f;
  float said;
  calibration.calibrate({.scores = {&score, 1}, .pi = {&pi, 1}, .gaps = {&gap, 1}, .mean_score = 0.0f}, {&said, 1});
  return said;
}

// Choices that follow no softmax: what is said is learnt to mean what it comes to, whatever else it depends on.
TEST(Calibration, LearnsWhatPiComesTo) {
  const auto truth = [](float pi, float gap) { return gap == 0.0f ? std::sqrt(pi) : pi * pi; };
  std::mt19937 random(2);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  Calibration calibration;
  EXPECT_EQ(calibrated(calibration, 0.3f, 0.0f), 0.3f);  // nothing is known yet
  const float score = 0.0f;
  for (int i = 0; i < 200000; ++i) {
    const float pi = uniform(random), gap = i % 2 == 0 ? 0.0f : -3.0f;
    const int32_t chosen = uniform(random) < truth(pi, gap) ? 0 : -1;
    calibration.observe({.scores = {&score, 1}, .pi = {&pi, 1}, .gaps = {&gap, 1}, .mean_score = 0.0f}, chosen, 1);
  }
  for (float pi = 0.02f; pi < 0.99f; pi += 0.01f) {
    for (const float gap : {0.0f, -3.0f})
      EXPECT_NEAR(calibrated(calibration, pi, gap), truth(pi, gap), 0.04f) << pi << ", " << gap;
  }
}

// A drafter is trained on: what it said long ago is forgotten.
TEST(Calibration, FollowsWhatHasChanged) {
  std::mt19937 random(2);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  Calibration calibration;
  const float score = 0.0f, pi = 0.5f, gap = 0.0f;
  const auto observe = [&](int places, float share) {
    for (int i = 0; i < places; ++i) {
      calibration.observe({.scores = {&score, 1}, .pi = {&pi, 1}, .gaps = {&gap, 1}, .mean_score = 0.0f},
                          uniform(random) < share ? 0 : -1, 1);
    }
  };
  observe(200'000, 0.25f);
  EXPECT_NEAR(calibrated(calibration, pi, gap), 0.25f, 0.03f);
  observe(60'000, 0.75f);
  EXPECT_NEAR(calibrated(calibration, pi, gap), 0.75f, 0.06f);
}

// Nodes that are verified because much was said of them: what is said of such becomes right.
TEST(Calibration, IsRightAboutWhatWasVerified) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  std::normal_distribution<float> normal(0.0f, 0.15f);
  Calibration calibration;
  const float score = 0.0f, gap = 0.0f;
  double said = 0, came = 0;
  for (int i = 0; i < 100000; ++i) {
    const float truth = uniform(random), pi = std::clamp(truth + normal(random), 0.001f, 0.999f);
    const float now = calibrated(calibration, pi, gap);
    const bool verified = now > 0.5f && now < 0.7f, chosen = uniform(random) < truth;
    if (verified && i > 20000) said += static_cast<double>(now), came += chosen;
    calibration.observe({.scores = {&score, 1}, .pi = {&pi, 1}, .gaps = {&gap, 1}, .mean_score = 0.0f}, chosen ? 0 : -1,
                        verified);
  }
  ASSERT_GT(said, 2000.0);
  EXPECT_NEAR(came / said, 1.0, 0.03);
}

// Probabilities of one place: at most 1 together, as long as nothing is known of what is verified.
TEST(Calibration, CandidatesOfAPlaceShareOne) {
  std::mt19937 random(4);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  Calibration calibration;
  const std::vector<float> scores = {0.0f, -0.1f}, gaps = {0.0f, -0.5f};
  for (int i = 0; i < 3000; ++i) {  // the best is chosen where pi is small, the second where it is large
    const std::vector<float> pi = {0.4f, 0.3f}, other = {0.6f, 0.35f};
    calibration.observe({.scores = scores, .pi = pi, .gaps = gaps, .mean_score = -0.1f}, uniform(random) < 0.95f ? 0 : 1, 0);
    calibration.observe({.scores = scores, .pi = other, .gaps = gaps, .mean_score = -0.1f}, uniform(random) < 0.05f ? 0 : 1, 0);
  }
  for (float first = 0.3f; first < 0.65f; first += 0.05f) {
    const std::vector<float> pi = {first, 0.35f};
    std::vector<float> said(2);
    calibration.calibrate({.scores = scores, .pi = pi, .gaps = gaps, .mean_score = -0.1f}, said);
    EXPECT_LE(said[0] + said[1], 1.0f + 1e-6f) << first;
  }
}

TEST(Calibration, SaysWhatItWasToldWhereNothingIsKnown) {
  Calibration calibration;
  for (const float pi : {0.0f, 1e-9f, 1e-5f, 0.3f, 1.0f}) EXPECT_EQ(calibrated(calibration, pi, 0.0f), pi);
  // What is learnt of one in a thousand says nothing of one in a hundred thousand.
  const float score = 0.0f, pi = 0.0015f, gap = 0.0f;
  for (int i = 0; i < 1000; ++i)
    calibration.observe({.scores = {&score, 1}, .pi = {&pi, 1}, .gaps = {&gap, 1}, .mean_score = 0.0f}, 0, 0);
  EXPECT_GT(calibrated(calibration, pi, gap), 0.5f);
  EXPECT_EQ(calibrated(calibration, 1e-5f, gap), 1e-5f);
}

// Two kinds of places that differ in one thing only, where the first candidate is chosen nine times of ten and three times of
// ten.
TEST(Calibration, ErrorsAreLearntByGapAndByTheRivalsGap) {
  struct Kinds {
    std::vector<float> often, seldom;  // gaps
  };
  for (const Kinds& kinds : {Kinds{{0.0f}, {-0.2f}}, Kinds{{-0.5f}, {-1.5f}}, Kinds{{-1.5f}, {-2.5f}}, Kinds{{-3.0f}, {-5.0f}},
                             Kinds{{0.0f, -5.0f}, {0.0f, -0.5f}}}) {
    Calibration calibration;
    const std::vector<float> pi = {0.6f, 0.2f}, scores = {0.0f, -1.0f};
    const size_t n = kinds.often.size();
    const auto place = [&](const std::vector<float>& gaps) {
      return CandidatePlace{.scores = {scores.data(), n}, .pi = {pi.data(), n}, .gaps = gaps, .mean_score = -0.5f};
    };
    for (int i = 0; i < 4000; ++i) {
      calibration.observe(place(kinds.often), i % 10 != 0 ? 0 : -1, 0);
      calibration.observe(place(kinds.seldom), i % 10 < 3 ? 0 : -1, 0);
    }
    std::vector<float> often(n), seldom(n);
    calibration.calibrate(place(kinds.often), often);
    calibration.calibrate(place(kinds.seldom), seldom);
    EXPECT_NEAR(often[0], 0.9f, 0.1f) << kinds.often[0] << " " << kinds.seldom[0];
    EXPECT_NEAR(seldom[0], 0.3f, 0.1f) << kinds.often[0] << " " << kinds.seldom[0];
  }
}

// The second and the third candidate are alike but for their rank.
TEST(Calibration, ErrorsAreLearntByRank) {
  Calibration calibration;
  const std::vector<float> pi = {0.3f, 0.2f, 0.2f}, scores = {0.0f, -0.5f, -0.5f}, gaps = {0.0f, 0.0f, 0.0f};
  const CandidatePlace place{.scores = scores, .pi = pi, .gaps = gaps, .mean_score = -0.3f};
  for (int i = 0; i < 4000; ++i) calibration.observe(place, i % 5 < 3 ? 1 : 0, 0);
  std::vector<float> said(3);
  calibration.calibrate(place, said);
  EXPECT_GT(said[1], 0.4f);
  EXPECT_LT(said[2], 0.05f);
}

// What is learnt of nodes that were verified is learnt of what was said of them in the end: candidates scaled to 1.
TEST(Calibration, WhatWasVerifiedIsJudgedAsItWasSaid) {
  Calibration calibration;
  const std::vector<float> pi = {0.9f, 0.9f}, scores = {0.0f, 0.0f}, gaps = {0.0f, 0.0f};
  const CandidatePlace place{.scores = scores, .pi = pi, .gaps = gaps, .mean_score = 0.0f};
  for (int i = 0; i < 20; ++i) calibration.observe(place, 0, 1);
  std::vector<float> said(2);
  calibration.calibrate(place, said);
  EXPECT_GT(said[0], 0.65f);  // 0.5 at first, and chosen each time
}

TEST(Calibration, BetaMovesByBoundedStepsThatShrink) {
  const auto step = [](Calibration* calibration, float mean, float pi, int32_t chosen) {
    const float score = 0.0f, gap = 0.0f, before = calibration->beta();
    calibration->observe({.scores = {&score, 1}, .pi = {&pi, 1}, .gaps = {&gap, 1}, .mean_score = mean}, chosen, 0);
    return std::log(calibration->beta() / before);
  };
  Calibration first;
  EXPECT_NEAR(step(&first, -1000.0f, 0.5f, 0), -4 * 0.052f, 1e-4f);  // a surprise of any size is one of 4
  for (int i = 0; i < 3000; ++i) step(&first, -1000.0f, 0.5f, 0);
  EXPECT_EQ(first.beta(), 0.02f);
  for (int i = 0; i < 3000; ++i) step(&first, 1000.0f, 0.5f, 0);
  EXPECT_EQ(first.beta(), 20.0f);
  EXPECT_NEAR(step(&first, -1000.0f, 0.5f, 0), -4 * (0.05f / (1 + 6001 / 400.0f) + 0.002f), 1e-4f);
  // Nothing is missing, and yet none of the candidates was chosen; nothing was said, and yet it was.
  for (const float pi : {1.0f, 0.0f}) {
    for (const int32_t chosen : {-1, 0}) {
      Calibration calibration;
      for (int i = 0; i < 100; ++i) step(&calibration, 0.0f, pi, chosen);
      EXPECT_EQ(calibration.beta(), 1.0f);
      const float said = calibrated(calibration, pi, 0.0f);
      EXPECT_TRUE(said >= 0.0f && said <= 1.0f) << pi << " " << chosen << " " << said;
    }
  }
}

}  // namespace
}  // namespace otr
