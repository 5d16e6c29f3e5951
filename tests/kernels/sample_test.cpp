#include "kernels/sample/sample.h"

#include <cmath>
#include <limits>

#include "kernels/sample/sample_vec.h"
#include "tests/kernels/sample_test_util.h"

namespace otr::sample_test {
namespace {

using namespace testing_util;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kVocabs[] = {1, 3, 17, 512, 4097, 151936};

class Sample : public PathTest {
 protected:
  // The tokens that some of 400 positions draw.
  std::vector<int32_t> drawn(const std::vector<float>& logits, SampleDraw d) {
    std::vector<SampleDraw> draws;
    for (d.position = 0; d.position < 400; ++d.position) draws.push_back(d);
    ThreadPool pool(1);
    std::vector<int32_t> tokens;
    for (const SampleResult& r : run_draws(*kernels, logits, static_cast<int32_t>(logits.size()), draws, pool))
      tokens.push_back(r.token);
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    return tokens;
  }
};
OTR_TEST_ALL_PATHS(Sample);

class SampleVector : public PathTest {};
OTR_TEST_VECTOR_PATHS(SampleVector);

using Tokens = std::vector<int32_t>;

// Probabilities 0.4, 0.3, 0.2, 0.1 of tokens 2, 0, 3, 1.
const std::vector<float> kFour = {std::log(0.3f), std::log(0.1f), std::log(0.4f), std::log(0.2f)};

TEST_P(Sample, FiltersKeepWhatTheTablesSay) {
  struct Case {
    int32_t top_k;
    float top_p, min_p;
    Tokens kept;
  };
  const Case cases[] = {
      {0, 1.0f, 0.0f, {0, 1, 2, 3}},  {1, 1.0f, 0.0f, {2}},
      {2, 1.0f, 0.0f, {0, 2}},        {4, 1.0f, 0.0f, {0, 1, 2, 3}},
      {99, 1.0f, 0.0f, {0, 1, 2, 3}},  // more than there are: off
      {0, 0.39f, 0.0f, {2}},           // the token that crosses is kept
      {0, 0.41f, 0.0f, {0, 2}},       {0, 0.69f, 0.0f, {0, 2}},
      {0, 0.71f, 0.0f, {0, 2, 3}},    {0, 0.91f, 0.0f, {0, 1, 2, 3}},
      {0, 0.001f, 0.0f, {2}},         {3, 0.8f, 0.0f, {0, 2, 3}},  // renormalised after top-k: 0.444 + 0.333 < 0.8
      {3, 0.76f, 0.0f, {0, 2}},       {0, 1.0f, 0.24f, {0, 1, 2, 3}},
      {0, 1.0f, 0.26f, {0, 2, 3}},    {0, 1.0f, 0.76f, {2}},
      {0, 1.0f, 1.0f, {2}},           {0, 0.91f, 0.26f, {0, 2, 3}},
      {3, 0.99f, 0.6f, {0, 2}},
  };
  for (const Case& c : cases) {
    SampleDraw d = plain_draw();
    d.top_k = c.top_k;
    d.top_p = c.top_p;
    d.min_p = c.min_p;
    EXPECT_EQ(drawn(kFour, d), c.kept) << "top_k " << c.top_k << " top_p " << c.top_p << " min_p " << c.min_p;
  }
}

TEST_P(Sample, TiesGoToTheLowestId) {
  const std::vector<float> tied = {1.0f, 2.0f, 0.0f, 2.0f, 2.0f, 1.0f};
  EXPECT_EQ(run_draw(*kernels, tied, plain_draw(0.0f)).token, 1);
  SampleDraw d = plain_draw();
  d.top_k = 2;
  EXPECT_EQ(drawn(tied, d), (Tokens{1, 3}));
  d.top_k = 4;
  EXPECT_EQ(drawn(tied, d), (Tokens{0, 1, 3, 4}));
  d.top_k = 0;
  d.top_p = 0.3f;  // each 2.0 has 0.294: the nucleus needs two
  EXPECT_EQ(drawn(tied, d), (Tokens{1, 3}));
  d.top_p = 1.0f;
  d.min_p = 1.0f;  // not below the maximum: all three
  EXPECT_EQ(drawn(tied, d), (Tokens{1, 3, 4}));
}

TEST_P(Sample, ScoresThatTieGoToTheLowestId) {
  // At 3e9 a unit in the last place is 256: the noise vanishes, and scores tie wherever logits do.
  for (const int vocab : {3, 64, 200, 4097}) {
    std::vector<float> logits(static_cast<size_t>(vocab), 3e9f);
    EXPECT_EQ(run_draw(*kernels, logits, plain_draw()).token, 0) << vocab;
    logits[0] = 1.0f;
    EXPECT_EQ(run_draw(*kernels, logits, plain_draw()).token, 1) << vocab;
    std::fill(logits.begin(), logits.end() - 2, -5.0f);
    EXPECT_EQ(run_draw(*kernels, logits, plain_draw()).token, vocab - 2) << vocab;
  }
}

TEST_P(Sample, PenaltiesFollowTheirFormulas) {
  // Token 0: in the prompt only. 1: twice in the output. 2: once in the output, negative. 3: not seen.
  const std::vector<float> logits = {2.0f, 3.0f, -1.0f, 0.5f};
  const PenaltyEntry seen[] = {{0, 0}, {1, 2}, {2, 1}};
  SampleDraw d = plain_draw();
  d.num_penalties = 3;
  d.penalties = seen;
  d.repetition_penalty = 2.0f;
  d.frequency_penalty = 0.25f;
  d.presence_penalty = 0.5f;
  const float penalised[] = {1.0f, 3.0f / 2 - 2 * 0.25f - 0.5f, -2.0f - 0.25f - 0.5f, 0.5f};
  double sum = 0.0, raw_sum = 0.0;
  for (const float x : penalised) sum += std::exp(static_cast<double>(x));
  for (const float x : logits) raw_sum += std::exp(static_cast<double>(x));
  for (int32_t v = 0; v < 4; ++v) {
    d.forced_token = v;
    const SampleResult r = run_draw(*kernels, logits, d);
    EXPECT_NEAR(r.logprob, static_cast<double>(penalised[v]) - std::log(sum), 1e-6) << v;
    EXPECT_NEAR(r.raw_logprob, static_cast<double>(logits[static_cast<size_t>(v)]) - std::log(raw_sum), 1e-6) << v;
  }
  d.forced_token = -1;
  d.temperature = 0.0f;
  EXPECT_EQ(run_draw(*kernels, logits, d).token, 0);  // the greedy choice of the penalised logits
  d.repetition_penalty = 1.0f;                        // 2, 2, -1.75, 0.5: a tie
  EXPECT_EQ(run_draw(*kernels, logits, d).token, 0);
  d.presence_penalty = 0.25f;
  EXPECT_EQ(run_draw(*kernels, logits, d).token, 1);
}

TEST_P(Sample, TemperatureZeroIsCertain) {
  const SampleResult r = run_draw(*kernels, kFour, plain_draw(0.0f));
  EXPECT_EQ(r.token, 2);
  EXPECT_EQ(r.logprob, 0.0f);
  EXPECT_NEAR(r.raw_logprob, std::log(0.4), 1e-6);
  SampleDraw d = plain_draw(0.0f);
  d.forced_token = 0;
  EXPECT_EQ(run_draw(*kernels, kFour, d).logprob, -kInf);
  d.forced_token = 2;
  EXPECT_EQ(run_draw(*kernels, kFour, d).logprob, 0.0f);
}

TEST_P(Sample, ForcedTokensReportTheirLogProbs) {
  SampleDraw d = plain_draw(0.5f);
  d.top_k = 3;  // 0.16, 0.09, 0.04 of 0.29
  const double expected[] = {std::log(0.09 / 0.29), -INFINITY, std::log(0.16 / 0.29), std::log(0.04 / 0.29)};
  const double raw[] = {std::log(0.3), std::log(0.1), std::log(0.4), std::log(0.2)};
  for (int32_t v = 0; v < 4; ++v) {
    d.forced_token = v;
    const SampleResult r = run_draw(*kernels, kFour, d);
    EXPECT_EQ(r.token, v);
    if (v == 1) EXPECT_EQ(r.logprob, -kInf);
    else EXPECT_NEAR(r.logprob, expected[v], 1e-6);
    EXPECT_NEAR(r.raw_logprob, raw[v], 1e-6);
  }
}

TEST_P(Sample, ADrawnTokenReportsWhatScoringItReports) {
  for (const int vocab : kVocabs) {
    const std::vector<float> logits = random_normal(static_cast<size_t>(vocab), 3.0f, 9);
    for (SampleDraw d : {plain_draw(), plain_draw(0.7f), plain_draw(0.0f)}) {
      for (const float top_p : {1.0f, 0.8f}) {
        d.top_p = top_p;
        d.forced_token = -1;
        const SampleResult r = run_draw(*kernels, logits, d);
        d.forced_token = r.token;
        EXPECT_TRUE(same_result(run_draw(*kernels, logits, d), r)) << vocab << " " << d.temperature << " " << top_p;
      }
    }
    const SampleResult r = run_draw(*kernels, logits, plain_draw());
    EXPECT_EQ(bits_of(r.logprob), bits_of(r.raw_logprob)) << vocab;
  }
}

TEST_P(Sample, NaNAndInfFaultTheirRowOnly) {
  ThreadPool pool(1);
  for (const int vocab : kVocabs) {
    const size_t n = static_cast<size_t>(vocab);
    const std::vector<float> clean = random_normal(3 * n, 2.0f, 5);
    std::vector<SampleDraw> draws(3, plain_draw());
    draws[1].temperature = 0.5f;
    draws[1].top_p = 0.9f;
    for (int r = 0; r < 3; ++r) draws[static_cast<size_t>(r)].logits_row = r;
    const std::vector<SampleResult> expected = run_draws(*kernels, clean, vocab, draws, pool);
    for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
      for (const size_t where : {size_t{0}, n / 2, n - 1}) {
        std::vector<float> logits = clean;
        logits[n + where] = bad;
        const std::vector<SampleResult> r = run_draws(*kernels, logits, vocab, draws, pool);
        EXPECT_EQ(r[1].fault, 1) << vocab << " " << where << " " << bad;
        EXPECT_TRUE(same_result(r[0], expected[0]) && same_result(r[2], expected[2])) << vocab << " " << where << " " << bad;
      }
    }
  }
}

TEST_P(Sample, OverflowByTemperatureOrPenaltyFaults) {
  const std::vector<float> logits = {1.0f, 3e38f, 2.0f};
  EXPECT_EQ(run_draw(*kernels, logits, plain_draw(0.5f)).fault, 1);
  const std::vector<float> negative = {-1.0f, -3e38f, -2.0f};
  const PenaltyEntry seen = {1, 1};
  SampleDraw d = plain_draw(0.0f);
  d.num_penalties = 1;
  d.penalties = &seen;
  d.repetition_penalty = 4.0f;
  EXPECT_EQ(run_draw(*kernels, negative, d).fault, 1);
}

// Everything a row can ask for, at every size, on logits of several shapes.
std::vector<SampleDraw> all_kinds_of_draws(int vocab, const std::vector<PenaltyEntry>& seen) {
  std::vector<SampleDraw> draws;
  for (const float temperature : {1.0f, 0.0f, 0.01f, 0.6f, 1.7f}) {
    for (int filter = 0; filter < 6; ++filter) {
      for (const bool penalised : {false, true}) {
        SampleDraw d = plain_draw(temperature, static_cast<uint32_t>(draws.size()) * 977);
        if (filter == 1 || filter == 4) d.top_k = 20;
        if (filter == 2 || filter == 4) d.top_p = 0.9f;
        if (filter == 3 || filter == 4) d.min_p = 0.02f;
        if (filter == 5) d.forced_token = vocab - 1;
        if (penalised) {
          d.num_penalties = static_cast<int32_t>(seen.size());
          d.penalties = seen.data();
          d.repetition_penalty = 1.2f;
          d.presence_penalty = 0.3f;
          d.frequency_penalty = 0.1f;
        }
        draws.push_back(d);
      }
    }
  }
  return draws;
}

TEST_P(SampleVector, HasTheBitsOfTheDefinition) {
  ThreadPool pool(2);
  for (const int vocab : kVocabs) {
    std::vector<PenaltyEntry> seen;
    for (int32_t v = 0; v < vocab; v += 1 + vocab / 40) seen.push_back({v, v % 3});
    const std::vector<SampleDraw> draws = all_kinds_of_draws(vocab, seen);
    for (const float scale : {0.0f, 0.5f, 3.0f, 12.0f}) {  // flat, where no token is passed over, to sharp, where most are
      if (vocab > 5000 && (kSanitized || scale < 1.0f)) continue;
      std::vector<float> logits = random_normal(static_cast<size_t>(vocab), scale, 6);
      for (size_t i = 0; i < logits.size(); i += 3) logits[i] = std::round(logits[i]);  // ties, and both zeros
      const std::vector<SampleResult> actual = run_draws(*kernels, logits, vocab, draws, pool);
      const std::vector<SampleResult> expected = run_draws(*find_path("cpu-scalar"), logits, vocab, draws, pool);
      for (size_t i = 0; i < draws.size(); ++i) {
        EXPECT_TRUE(same_result(actual[i], expected[i])) << "vocab " << vocab << " scale " << scale << " draw " << i;
      }
    }
  }
}

// The exact shortcuts of the noise matter most where a token far below the maximum wins: many positions, logits within reach.
TEST_P(SampleVector, HasTheBitsOfTheDefinitionOverManyPositions) {
  ThreadPool pool(2);
  constexpr int kVocab = 4097;
  for (const float peak : {6.0f, 10.0f, 16.0f, 40.0f}) {
    std::vector<float> logits = random_normal(kVocab, 1.5f, 8);
    logits[1234] = peak;
    std::vector<SampleDraw> draws;
    for (uint32_t t = 0; t < (kSanitized ? 50 : 1000); ++t) draws.push_back(plain_draw(1.0f, t));
    const std::vector<SampleResult> actual = run_draws(*kernels, logits, kVocab, draws, pool);
    const std::vector<SampleResult> expected = run_draws(*find_path("cpu-scalar"), logits, kVocab, draws, pool);
    for (size_t i = 0; i < draws.size(); ++i)
      ASSERT_TRUE(same_result(actual[i], expected[i])) << "peak " << peak << " draw " << i;
  }
}

// The survivors by brute force of the first step: all ids that are not below the bound.
int32_t survivors(const SampleDraw& d, const std::vector<float>& logits, float max, double sum, std::vector<int32_t>* order) {
  const int32_t vocab = static_cast<int32_t>(logits.size());
  std::vector<float> maxima, scratch;
  for (size_t begin = 0; begin < logits.size(); begin += kSampleMaxBlock) {
    const size_t end = std::min(begin + kSampleMaxBlock, logits.size());
    maxima.push_back(*std::max_element(&logits[begin], logits.data() + end));
  }
  scratch.resize(maxima.size());
  for (float bound = sample_survivor_bound(d, max, sum, vocab, maxima.data(), scratch.data());; bound = -kInf) {
    std::vector<int32_t> ids;
    for (int32_t v = 0; v < vocab; ++v) {
      if (logits[static_cast<size_t>(v)] >= bound) ids.push_back(v);
    }
    const auto weigh = [](const float* x, float most, const int32_t* of, int32_t count, float* weights) {
      for (int32_t i = 0; i < count; ++i) weights[i] = exp32(x[of[i]] - most);
    };
    const int32_t n =
        sample_survivors(d, weigh, logits.data(), max, sum, vocab, ids.data(), static_cast<int32_t>(ids.size()), order->data());
    if (n > 0) return n;
    EXPECT_LT(ids.size(), logits.size());
  }
}

// The argmax by brute force, every token's noise drawn.
int32_t unpruned_choice(const std::vector<float>& scaled, const SampleDraw& d, const std::vector<int32_t>& ids) {
  int32_t best = -1;
  float best_score = -kInf;
  for (const int32_t v : ids) {
    const float score =
        scaled[static_cast<size_t>(v)] + gumbel(d.noise, static_cast<uint32_t>(v), static_cast<uint32_t>(d.position));
    if (best < 0 || score > best_score || (score == best_score && v < best)) best = v, best_score = score;
  }
  return best;
}

// Rows on which a shortcut that left out one token too many would show: all scores within a rounding of each other, so that
// only the last bits and the ids decide; maxima that rise or fall from block to block; and equal logits.
std::vector<float> adversarial_row(int kind, int32_t vocab, const SampleDraw& d) {
  std::vector<float> x = random_normal(static_cast<size_t>(vocab), 1.0f, static_cast<uint32_t>(kind));
  const float level[] = {0.0f, 25.0f, 1000.0f, 3e6f};
  for (int32_t v = 0; v < vocab; ++v) {
    float& logit = x[static_cast<size_t>(v)];
    const float noise = gumbel(d.noise, static_cast<uint32_t>(v), static_cast<uint32_t>(d.position));
    if (kind < 4) logit = (level[kind] - noise) * d.temperature;
    if (kind == 4) logit = (static_cast<float>(v) * 0.01f - noise) * d.temperature;  // every token beats the last
    if (kind == 5) logit = static_cast<float>(-v) * 0.01f;
    if (kind == 6) logit = 0.25f;
    if (kind == 7) logit = (v == vocab / 2 ? 22.0f : 0.0f) + 0.001f * std::round(4 * logit);  // only the rarest words reach it
    if (kind == 9) logit = (v % 3 == 0 ? 3e38f : -3e38f) * d.temperature;                     // their distance is infinite
    if (kind == 8) logit = (v % 256 == 255 ? 3.0f : -20.0f) * d.temperature;
  }
  return x;
}

TEST_P(Sample, LeavesNoTokenOutThatCouldWin) {
  for (const int32_t vocab : {5, 300, 2051}) {
    std::vector<int32_t> all(static_cast<size_t>(vocab));
    std::iota(all.begin(), all.end(), 0);
    for (int kind = 0; kind < 10; ++kind) {
      for (const float temperature : {1.0f, 0.01f, 0.7f}) {
        for (uint32_t position = 0; position < (kSanitized ? 3 : 20); ++position) {
          SampleDraw d = plain_draw(temperature, position);
          const std::vector<float> logits = adversarial_row(kind, vocab, d);
          std::vector<float> scaled = logits;
          for (float& x : scaled) x = temperature == 1.0f ? x : x / temperature;
          ASSERT_EQ(run_draw(*kernels, logits, d).token, unpruned_choice(scaled, d, all))
              << "kind " << kind << " vocab " << vocab << " T " << temperature << " position " << position;
          d.top_k = vocab / 2;
          std::vector<int32_t> order(static_cast<size_t>(vocab));
          order.resize(static_cast<size_t>(survivors(d, scaled, *std::max_element(scaled.begin(), scaled.end()), 0.0, &order)));
          ASSERT_EQ(run_draw(*kernels, logits, d).token, unpruned_choice(scaled, d, order))
              << "half: kind " << kind << " vocab " << vocab << " T " << temperature << " position " << position;
        }
      }
    }
  }
}

// A maximum of -0 or +0, whichever comes first, must not show in the sign of a zero log-prob.
TEST_P(SampleVector, ZerosOfBothSignsHaveTheBitsOfTheDefinition) {
  for (const size_t where : {size_t{0}, size_t{5}, size_t{17}, size_t{39}}) {
    for (const float zero : {0.0f, -0.0f}) {
      std::vector<float> logits(40, zero);
      logits[where] = -zero;
      SampleDraw d = plain_draw();
      d.top_k = 1;
      for (d.forced_token = -1; d.forced_token < 2; ++d.forced_token) {
        EXPECT_TRUE(same_result(run_draw(*kernels, logits, d), run_draw(*find_path("cpu-scalar"), logits, d)))
            << where << " " << zero;
      }
    }
  }
}

TEST_P(Sample, DependsOnNeitherThreadsNorNeighbours) {
  constexpr int kVocab = 1000;
  const std::vector<float> logits = random_normal(5 * kVocab, 3.0f, 10);
  const std::vector<PenaltyEntry> seen = {{3, 1}, {999, 0}};
  std::vector<SampleDraw> draws = all_kinds_of_draws(kVocab, seen);
  for (size_t i = 0; i < draws.size(); ++i) draws[i].logits_row = static_cast<int32_t>(i % 5);
  std::vector<SampleResult> alone;
  ThreadPool one(1);
  for (const SampleDraw& d : draws) alone.push_back(run_draws(*kernels, logits, kVocab, {d}, one)[0]);
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    const std::vector<SampleResult> together = run_draws(*kernels, logits, kVocab, draws, pool);
    for (size_t i = 0; i < draws.size(); ++i)
      EXPECT_TRUE(same_result(together[i], alone[i])) << threads << " threads, draw " << i;
  }
}

TEST(SampleBounds, NoWordExceedsTheBoundsOfTheShortcuts) {
  EXPECT_LT(gumbel_from_word(0xffffffffu), kGumbelBound - 0.1f);
  for (int k = 0; k < kNumWordBounds; ++k) {
    const uint32_t below = kWordsBelow[k], near = std::min(below, 100000u);
    for (uint32_t i = 1; i <= near; ++i)
      ASSERT_LT(gumbel_from_word(below - i), static_cast<float>(k) - 0.004f) << k << " " << i;
    for (uint32_t word = 0; word < below - near; word += 655211u)
      ASSERT_LT(gumbel_from_word(word), static_cast<float>(k) - 0.004f) << k << " " << word;
    EXPECT_GT(gumbel_from_word(below + (~below >> 2)) + (k == 22), static_cast<float>(k)) << k;  // and they are tight
  }
}

TEST(SampleBounds, NoWordBelowTheLeastReachesTheFloor) {
  const float logits[] = {0.0f, -3.25f, 17.5f, 1e7f, -1e7f, 3e9f, -3e38f, 3e38f, 1e-40f};
  for (const float highest : logits) {
    for (const float distance :
         {-50.0f, -0.5f, 0.0f, 1e-7f, 0.999f, 1.0f, 1.5f, 4.0f, 7.9f, 8.0f, 21.99f, 22.0f, 22.9f, 40.0f}) {
      for (const float floor : {highest + distance, std::nextafter(highest + distance, kInf), distance}) {
        const uint32_t least = least_word(highest, floor);
        EXPECT_TRUE(least == 0 || highest + gumbel_from_word(least - 1) < floor) << highest << " " << floor;
      }
    }
  }
  EXPECT_EQ(least_word(5.0f, 4.0f), 0u);
  EXPECT_EQ(least_word(0.0f, 8.5f), kWordsBelow[8]);
}

// sample_survivors leaves most tokens out of its sorting; the definition by brute force does not.
TEST(SampleSurvivors, AreThoseOfTheDefinition) {
  for (const int vocab : {1, 2, 17, 500, 5000}) {
    for (const float scale : {0.0f, 0.3f, 2.0f, 8.0f, 300.0f}) {
      std::vector<float> logits = random_normal(static_cast<size_t>(vocab), scale, 21);
      for (size_t i = 0; i < logits.size(); i += 2) logits[i] = std::round(4 * logits[i]) / 4;
      if (scale == 0.3f) logits.back() = -1e9f;  // far from all others
      const float max = *std::max_element(logits.begin(), logits.end());
      double sum = 0.0;
      for (const float x : logits) sum += std::exp(static_cast<double>(x - max));
      for (const int32_t top_k : {0, 1, 7, 64, 65, 1000}) {
        for (const float top_p : {1.0f, 1e-6f, 0.3f, 0.92f, 0.999f, 0.9999999f}) {
          for (const float min_p : {0.0f, 0.003f, 0.4f}) {
            SampleDraw d = plain_draw();
            d.top_k = top_k;
            d.top_p = top_p;
            d.min_p = min_p;
            if (!sample_has_filter(d, vocab)) continue;
            const Distribution expected(logits, d);
            std::vector<int32_t> order(static_cast<size_t>(vocab));
            const int32_t n = survivors(d, logits, max, sum, &order);
            // A threshold that falls within a rounding of a cumulative sum may go either way: one token more or fewer.
            ASSERT_LE(std::abs(n - static_cast<int32_t>(expected.order.size())),
                      top_p < 1.0f && top_p > 0.9999f ? vocab / 100 + 1 : 1)
                << vocab << " " << scale << " " << top_k << " " << top_p << " " << min_p;
            const size_t common = std::min(expected.order.size(), static_cast<size_t>(n));
            ASSERT_TRUE(std::equal(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(common), expected.order.begin()));
          }
        }
      }
    }
  }
}

// A weight near the least normal number, and a min_p below it.
TEST(SampleFilter, TheSmallestMinPKeepsWhatItsNumberSays) {
  const std::vector<float> logits = {-86.5f, 0.0f, -88.0f};
  for (const auto& [min_p, kept] : {std::pair{1e-38f, 2}, {5e-38f, 1}, {1e-37f, 1}}) {
    SampleDraw d = plain_draw();
    d.min_p = min_p;
    std::vector<int32_t> order(3);
    EXPECT_EQ(survivors(d, logits, 0.0f, 1.0, &order), kept) << min_p;
  }
}

}  // namespace
}  // namespace otr::sample_test
