// What drafters propose: the best tokens by logit / T + G, and the probability that each is the target's choice.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/sample/sample_filter.h"
#include "tests/kernels/sample_test_util.h"

namespace otr::candidates_test {
namespace {

using namespace testing_util;

// The last vocabulary has two of the blocks that sums and a GPU's lists are made of. On the emulated device fewer cases.
#if defined(OUTRIDER_TEST_EMULATED)
constexpr int32_t kVocabularies[] = {1, 97, 5000};
constexpr int kCounts[] = {3};
constexpr uint32_t kPositions = 2;
#else
constexpr int32_t kVocabularies[] = {1, 15, 64, 65, 97, 1000, 5000, 20000};
constexpr int kCounts[] = {1, 3, kMaxCandidates};
constexpr uint32_t kPositions = 40;
#endif

class CandidatesTest : public PathTest {
 protected:
  std::vector<Candidates> run(const std::vector<float>& logits, int32_t vocab, const std::vector<CandidateDraw>& draws, int m,
                              int threads = 1) const {
    ThreadPool pool(threads);
    const size_t workspace = static_cast<size_t>(threads * sample_workspace_stride(vocab));
    std::vector<float> scaled(workspace);
    std::vector<int32_t> order(workspace);
    std::vector<Candidates> results(draws.size());
    kernels->candidates({static_cast<int32_t>(draws.size()), vocab, m, logits.data(), vocab, draws.data(), results.data(),
                         scaled.data(), order.data()},
                        pool);
    return results;
  }
  void expect_best_of(int32_t vocab, bool peaked) const;
};
OTR_TEST_ALL_PATHS(CandidatesTest);

// Every setting a draw may have, over one row each.
std::vector<SampleDraw> all_settings(const std::vector<PenaltyEntry>& penalties) {
  std::vector<SampleDraw> draws;
  for (int i = 0; i < 12; ++i) {
    SampleDraw d = plain_draw(i % 3 == 0 ? 1.0f : i % 3 == 1 ? 0.6f : 1.4f, static_cast<uint32_t>(100 + i));
    if (i % 4 == 1) d.top_k = 5 + i;
    if (i % 4 == 2) d.top_p = 0.9f;
    if (i % 4 == 3) d.min_p = 0.02f;
    if (i >= 6) {
      d.repetition_penalty = 1.2f;
      d.presence_penalty = 0.3f;
      d.num_penalties = static_cast<int32_t>(penalties.size());
      d.penalties = penalties.data();
    }
    if (i == 11) d.temperature = 0.0f;
    d.logits_row = i;
    draws.push_back(d);
  }
  return draws;
}

void CandidatesTest::expect_best_of(int32_t vocab, bool peaked) const {
  const std::vector<PenaltyEntry> penalties = {{0, 2}, {vocab / 2, 0}};
  std::vector<float> logits = random_normal(static_cast<size_t>(12 * vocab), 2.0f, static_cast<uint32_t>(vocab));
  for (int32_t row = 0; peaked && row < 12; ++row) logits[static_cast<size_t>(row * vocab + row * 7919 % vocab)] = 30.0f;
  const std::vector<SampleDraw> settings = all_settings(penalties);
  std::vector<CandidateDraw> draws;
  for (const SampleDraw& d : settings) {
    draws.push_back({d, 1.0f / (0.3f + 0.1f * static_cast<float>(d.logits_row)), d.logits_row % 5 == 4});
  }
  for (const int m : kCounts) {
    const std::vector<Candidates> found = run(logits, vocab, draws, m, 1 + m % 3);
    for (size_t i = 0; i < draws.size(); ++i) {
      const SampleDraw& d = settings[i];
      const std::vector<float> row(logits.begin() + static_cast<std::ptrdiff_t>(i) * vocab,
                                   logits.begin() + static_cast<std::ptrdiff_t>(i + 1) * vocab);
      std::vector<std::pair<double, int32_t>> scores;
      std::vector<double> log_q(static_cast<size_t>(vocab));  // to a constant
      if (d.temperature == 0.0f) {
        std::vector<float> penalised = row;
        sample_penalise(d, penalised.data());
        for (int32_t v = 0; v < vocab; ++v) {
          log_q[static_cast<size_t>(v)] = static_cast<double>(penalised[static_cast<size_t>(v)]);
          scores.emplace_back(-log_q[static_cast<size_t>(v)], v);
        }
      } else {
        const Distribution p(row, d);
        for (const int32_t v : p.order) {
          const double g =
              draws[i].without_noise ? 0.0 : gumbel(d.noise, static_cast<uint32_t>(v), static_cast<uint32_t>(d.position));
          log_q[static_cast<size_t>(v)] = std::log(p.p[static_cast<size_t>(v)]);
          scores.emplace_back(-(log_q[static_cast<size_t>(v)] + g), v);
        }
      }
      std::sort(scores.begin(), scores.end());
      double greatest = -std::numeric_limits<double>::infinity();
      for (const auto& [score, token] : scores) greatest = std::max(greatest, log_q[static_cast<size_t>(token)]);
      double total = 0.0, mean = 0.0;
      for (const auto& [score, token] : scores) {
        const double below = scores[0].first - score, w = std::exp(below * static_cast<double>(draws[i].inv_beta));
        total += w;
        mean += w * below;
      }
      ASSERT_EQ(found[i].count, std::min<int32_t>(m, static_cast<int32_t>(scores.size())))
          << "vocabulary " << vocab << ", draw " << i;
      for (int32_t c = 0; c < found[i].count; ++c) {
        ASSERT_EQ(found[i].tokens[c], scores[static_cast<size_t>(c)].second)
            << "vocabulary " << vocab << ", draw " << i << ", " << c;
        const double below = scores[0].first - scores[static_cast<size_t>(c)].first;
        EXPECT_NEAR(found[i].score[c], below, 1e-4);
        EXPECT_NEAR(found[i].gap[c], log_q[static_cast<size_t>(found[i].tokens[c])] - greatest, 1e-4);
        EXPECT_NEAR(found[i].pi[c], std::exp(below * static_cast<double>(draws[i].inv_beta)) / total, 1e-4);
      }
      EXPECT_NEAR(found[i].mean_score, mean / total, 1e-3 * (1.0 + std::fabs(mean / total)));
    }
  }
}

TEST_P(CandidatesTest, AreTheBestScoresInOrderWithTheirShares) {
  for (const int32_t vocab : kVocabularies) expect_best_of(vocab, false);
}

// Next to no token but one counts for its share, and the best of the others are candidates all the same.
TEST_P(CandidatesTest, AreTheBestWhereOneTokenIsNearlyCertain) {
  for (const int32_t vocab : kVocabularies) expect_best_of(vocab, true);
}

// With the target's own logits the first candidate is the target's choice: drafter and target draw alike.
TEST_P(CandidatesTest, TheFirstIsWhatIsDrawn) {
  constexpr int32_t kVocab = 777;
  const std::vector<PenaltyEntry> penalties = {{5, 1}, {700, 3}};
  const std::vector<float> logits = random_normal(12 * kVocab, 3.0f, 8);
  std::vector<SampleDraw> settings = all_settings(penalties);
  for (uint32_t position = 0; position < kPositions; ++position) {
    std::vector<CandidateDraw> draws;
    for (SampleDraw& d : settings) {
      d.position = static_cast<int32_t>(position);
      draws.push_back({d, 1.0f});
    }
    ThreadPool pool(1);
    const std::vector<SampleResult> drawn = run_draws(*kernels, logits, kVocab, settings, pool);
    const std::vector<Candidates> found = run(logits, kVocab, draws, 4);
    for (size_t i = 0; i < draws.size(); ++i) ASSERT_EQ(found[i].tokens[0], drawn[i].token) << i;
  }
}

TEST_P(CandidatesTest, EqualScoresGoByTokenId) {
  SampleDraw d = plain_draw(0.0f);
  const std::vector<Candidates> found = run({1, 3, 3, 0, 3, 3}, 6, {{d, 1.0f}}, 3);
  EXPECT_EQ(std::vector<int32_t>(found[0].tokens, found[0].tokens + 3), (std::vector<int32_t>{1, 2, 4}));
  EXPECT_NEAR(found[0].pi[2], 1.0 / (4.0 + std::exp(-2.0) + std::exp(-3.0)), 1e-6);
}

// Most of a large vocabulary has one of a few logits: wherever the bound of the best m stands, equal ones go by token id.
TEST_P(CandidatesTest, EqualScoresGoByTokenIdInALargeVocabulary) {
  constexpr int32_t kVocab = 20000, kM = kMaxCandidates;
  for (const int levels : {2, 40, 2000}) {
    std::vector<float> logits = random_normal(2 * kVocab, 1.0f, static_cast<uint32_t>(levels));
    for (float& l : logits) l = std::round(l * static_cast<float>(levels) / 8.0f);
    SampleDraw greedy = plain_draw(0.0f), drawn = plain_draw(0.7f);
    drawn.logits_row = 1;
    const std::vector<Candidates> found = run(logits, kVocab, {{greedy, 10.0f}, {drawn, 10.0f, true}}, kM);
    for (size_t row = 0; row < 2; ++row) {
      const float* const l = logits.data() + row * kVocab;
      std::vector<int32_t> best(kVocab);
      std::iota(best.begin(), best.end(), 0);
      std::stable_sort(best.begin(), best.end(), [&](int32_t a, int32_t b) { return l[a] > l[b]; });
      best.resize(kM);
      ASSERT_EQ(found[row].count, kM);
      EXPECT_EQ(std::vector<int32_t>(found[row].tokens, found[row].tokens + kM), best) << levels << " levels, row " << row;
    }
  }
}

TEST_P(CandidatesTest, LogitsThatAreNotFiniteGiveNone) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = random_normal(2 * 100, 1.0f, 3);
    logits[130] = bad;
    SampleDraw first = plain_draw(), second = plain_draw();
    second.logits_row = 1;
    const std::vector<Candidates> found = run(logits, 100, {{first, 1.0f}, {second, 1.0f}}, 2);
    EXPECT_EQ(found[0].count, 2);
    EXPECT_EQ(found[1].count, 0);
  }
}

}  // namespace
}  // namespace otr::candidates_test
