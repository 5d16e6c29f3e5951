// The law of the draws: chi-squared against exact probabilities, and independence of the noise of different keys. Seeds are
// fixed, so a verdict never changes from run to run; the significance of 1e-6 says how surprised one must be to call a fault.
// OUTRIDER_LONG_TESTS=1 draws ten million times in every case.
#include <cmath>
#include <cstdlib>
#include <ostream>

#include "tests/kernels/sample_test_util.h"

namespace otr::sample_law_test {
namespace {

using namespace testing_util;

constexpr double kZ = 4.7534;  // standard normal quantile of 1 - 1e-6

bool is_long_run() {
  const char* is_long = std::getenv("OUTRIDER_LONG_TESTS");
  return is_long != nullptr && std::string(is_long) == "1";
}

int num_draws() { return kSanitized ? 20'000 : is_long_run() ? 10'000'000 : 1'000'000; }

const KernelTable& best_path() { return *select_kernels("auto").value(); }

// Tokens of the positions first_position, first_position + 1, … under `d`.
std::vector<int32_t> draw_tokens(const std::vector<float>& logits, SampleDraw d, int count, int32_t first_position) {
  constexpr int kBatch = 5000;
  ThreadPool pool(0);
  std::vector<SampleDraw> draws(kBatch, d);
  std::vector<int32_t> tokens;
  for (int begin = 0; begin < count; begin += kBatch) {
    for (int i = 0; i < kBatch; ++i) draws[static_cast<size_t>(i)].position = first_position + begin + i;
    for (const SampleResult& r : run_draws(best_path(), logits, static_cast<int32_t>(logits.size()), draws, pool)) {
      tokens.push_back(r.token);
    }
  }
  return tokens;
}

// The chi-squared statistic of `tokens` as a standard normal (Wilson-Hilferty). Tokens expected fewer than 20 times form one
// cell together. A token of probability 0 makes it infinite.
double chi_squared_z(const std::vector<int32_t>& tokens, const std::vector<double>& p) {
  std::vector<double> counts(p.size(), 0.0);
  for (const int32_t t : tokens) counts[static_cast<size_t>(t)] += 1.0;
  const double n = static_cast<double>(tokens.size());
  double statistic = 0.0, rest_expected = 0.0, rest_count = 0.0;
  int cells = 0;
  const auto add_cell = [&](double count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (size_t v = 0; v < p.size(); ++v) {
    if (p[v] == 0.0 && counts[v] > 0) return INFINITY;
    if (n * p[v] >= 20.0) {
      add_cell(counts[v], n * p[v]);
    } else {
      rest_expected += n * p[v];
      rest_count += counts[v];
    }
  }
  if (rest_expected >= 5.0) add_cell(rest_count, rest_expected);
  const double df = cells - 1;
  return (std::cbrt(statistic / df) - (1.0 - 2.0 / (9.0 * df))) / std::sqrt(2.0 / (9.0 * df));
}

// 1,000 tokens whose probabilities at T = 1 fall evenly in the logarithm from 2e-2 to 1e-7, in shuffled order.
std::vector<float> long_tail() {
  std::vector<float> logits(1000);
  for (int i = 0; i < 1000; ++i) logits[static_cast<size_t>(i * 377 % 1000)] = -0.0122f * static_cast<float>(i);
  return logits;
}

struct LawCase {
  const char* name;
  uint64_t stream;
  float temperature;
  int32_t top_k = 0;
  float top_p = 1.0f, min_p = 0.0f;
  bool penalised = false;

  friend void PrintTo(const LawCase& c, std::ostream* out) { *out << c.name; }
};

// Filters away from T = 1 get a quarter of the draws in a short run, as each of theirs costs five times as much.
int num_draws(const LawCase& c) {
  const bool filtered = c.top_k > 0 || c.top_p < 1.0f || c.min_p > 0.0f;
  return filtered && c.temperature != 1.0f && !is_long_run() ? num_draws() / 4 : num_draws();
}

class SampleLaw : public ::testing::TestWithParam<LawCase> {};

TEST_P(SampleLaw, DrawsFollowTheExactProbabilities) {
  const LawCase& c = GetParam();
  const std::vector<float> logits = long_tail();
  std::vector<PenaltyEntry> seen;
  for (int32_t v = 0; v < 1000; v += 9) seen.push_back({v, v % 4});
  SampleDraw d = plain_draw(c.temperature);
  d.noise = noise_stream({1, c.stream, 0});  // cases are independent of each other
  d.top_k = c.top_k;
  d.top_p = c.top_p;
  d.min_p = c.min_p;
  if (c.penalised) {
    d.num_penalties = static_cast<int32_t>(seen.size());
    d.penalties = seen.data();
    d.repetition_penalty = 1.3f;
    d.presence_penalty = 0.4f;
    d.frequency_penalty = 0.2f;
  }
  const Distribution exact(logits, d);
  const double z = chi_squared_z(draw_tokens(logits, d, num_draws(c), 0), exact.p);
  RecordProperty("z", std::to_string(z));
  EXPECT_LT(std::abs(z), kZ);  // too good a fit would be as suspect as a bad one
}

INSTANTIATE_TEST_SUITE_P(
    , SampleLaw,
    ::testing::Values(LawCase{"plain", 1, 1.0f}, LawCase{"plain_cool", 2, 0.5f}, LawCase{"plain_warm", 3, 1.5f},
                      LawCase{"top_k", 4, 1.0f, 30}, LawCase{"top_k_cool", 5, 0.5f, 30}, LawCase{"top_k_warm", 6, 1.5f, 30},
                      LawCase{"top_p", 7, 1.0f, 0, 0.4f}, LawCase{"top_p_cool", 8, 0.5f, 0, 0.6f},
                      LawCase{"top_p_warm", 9, 1.5f, 0, 0.3f}, LawCase{"min_p", 10, 1.0f, 0, 1.0f, 0.6f},
                      LawCase{"min_p_cool", 11, 0.5f, 0, 1.0f, 0.4f}, LawCase{"min_p_warm", 12, 1.5f, 0, 1.0f, 0.7f},
                      LawCase{"penalties", 13, 1.0f, 0, 1.0f, 0.0f, true},
                      LawCase{"penalties_cool", 14, 0.5f, 0, 1.0f, 0.0f, true},
                      LawCase{"penalties_warm", 15, 1.5f, 0, 1.0f, 0.0f, true}, LawCase{"all", 16, 1.5f, 60, 0.6f, 0.7f, true}),
    [](const auto& test) { return test.param.name; });

// The statistic sees a law that is slightly off: draws at T = 1 against the law of T = 1.02.
TEST(SampleLawInverse, AWrongTemperatureIsDetected) {
  const std::vector<float> logits = long_tail();
  const Distribution other(logits, plain_draw(kSanitized ? 1.2f : 1.02f));
  EXPECT_GT(chi_squared_z(draw_tokens(logits, plain_draw(), num_draws(), 0), other.p), kZ);
}

// ---- Independence --------------------------------------------------------------------------------------------------------

// How many standard deviations the agreement of two series of draws lies from that of independent ones, sum p^2.
double agreement_z(const std::vector<int32_t>& a, const std::vector<int32_t>& b, const std::vector<double>& p) {
  double chance = 0.0, agreements = 0.0;
  for (const double x : p) chance += x * x;
  for (size_t i = 0; i < a.size(); ++i) agreements += a[i] == b[i] ? 1.0 : 0.0;
  const double n = static_cast<double>(a.size());
  return (agreements - n * chance) / std::sqrt(n * chance * (1.0 - chance));
}

class NoiseIndependence : public ::testing::Test {
 protected:
  std::vector<int32_t> tokens(const NoiseKey& key, int32_t first_position = 0, float temperature = 1.0f) {
    SampleDraw d = plain_draw(temperature);
    d.noise = noise_stream(key);
    return draw_tokens(logits_, d, num_draws(), first_position);
  }

  const std::vector<float> logits_ = random_normal(40, 1.0f, 13);
  const std::vector<double> p_ = Distribution(logits_, plain_draw()).p;
  const NoiseKey key_{1, 2, 3};
  const std::vector<int32_t> draws_ = tokens(key_);
};

TEST_F(NoiseIndependence, OfDifferentKeys) {
  constexpr uint64_t kHigh = 1ULL << 32;
  const NoiseKey others[] = {{0, 2, 3}, {1 + kHigh, 2, 3},   {1, 3, 3}, {1, 2 + kHigh, 3},
                             {1, 2, 2}, {1, 2, 0x80000003u}, {2, 1, 3}};
  for (const NoiseKey& other : others) {
    EXPECT_LE(std::abs(agreement_z(draws_, tokens(other), p_)), 4.0)
        << other.seed << " " << other.stream << " " << other.sample;
  }
}

TEST_F(NoiseIndependence, OfDifferentPositions) {
  for (const int32_t distance : {1, 4, 1 << 20, 1 << 30}) {
    EXPECT_LE(std::abs(agreement_z(draws_, tokens(key_, distance), p_)), 4.0) << distance;
  }
}

TEST_F(NoiseIndependence, SharedNoiseIsDetected) {
  EXPECT_GT(agreement_z(draws_, tokens(key_), p_), 1000.0 * std::sqrt(num_draws() / 1e6));
  // Even under another law: coupled draws agree far more often than by chance.
  EXPECT_GT(agreement_z(draws_, tokens(key_, 0, 1.4f), p_), 100.0 * std::sqrt(num_draws() / 1e6));
}

}  // namespace
}  // namespace otr::sample_law_test
