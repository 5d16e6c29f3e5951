// Replays recorded ticks for bandits that choose among strategies, and says what each loses against knowing the best ones.
//
//   replay_ticks FILE [--orders N] [--rollouts N]
//
// FILE is of bench/record_ticks.py: the same rollouts under several fixed strategies (arms), tick by tick. All arms produce the
// same tokens, so where so many of a rollout are produced, an arm's recorded ticks there are what it would have done: the
// replay holds how far a rollout is, the chosen arm gives one of its ticks around that place (within kAround of the one that
// covers it, at random), with its tokens and its time. An order is N rollouts drawn from the recorded ones, one after another;
// what was learnt is kept. All players play the same orders.
//
//   tuner        spec/tuner.h on forecasts of spec/cost_model.h; acceptance, per drafter, begins at the prior and follows what
//   is kept forecasts    the same forecasts without the tuner BEG-MAB      spec/beg_mab.h, all arms in one group: a bandit a
//   power of two of the batch UCB1         a power of two of the batch; rewards in proportion to the greatest seen e-greedy a
//   power of two of the batch; epsilon 0.1, mean rewards, each arm once first
//
// Regret: time beyond that of taking, by power of two of the batch, the arm that is best in the recording, in percent of it:
// mean over the orders, with the half width of its 95 % confidence interval. `- tuner`: the difference to the tuner's, order by
// order. Deterministic. Exit code 1: some bandit's regret is not above the tuner's, by the interval of the difference.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "spec/acceptance.h"
#include "spec/beg_mab.h"
#include "spec/cost_model.h"
#include "spec/tuner.h"

namespace otr {
namespace {

constexpr int64_t kAround = 3;    // ticks
constexpr int64_t kBuckets = 17;  // powers of two of the batch
constexpr double kEpsilon = 0.1;
constexpr double kHoped = 0.97;    // acceptance of a draft that goes as well as drafts do
constexpr double kPriorRows = 64;  // of the prior acceptance
constexpr double kDecay = 0.98;    // of what was kept, a tick

struct Tick {
  int64_t batch, context, tokens, accepted;
  double ms;
  int64_t before;  // tokens of the rollout before it
};

struct Arm {
  std::string policy, drafter;
  int depth = 0;
  bool has_model = false;
  CostModel costs;

  double ms(double batch, double context) const {
    if (depth == 0) return costs.target_ms(batch, context);
    return (has_model ? depth * costs.draft_ms(batch, context) : 0) + costs.verify_ms(batch, batch * (depth + 1), context);
  }
  // Of a sample.
  double tokens(double p) const {
    double sum = 1, kept = 1;
    for (int d = 0; d < depth; ++d) sum += kept *= p;
    return sum;
  }
};

// By arm.
using Rollout = std::vector<std::vector<Tick>>;

struct Recording {
  std::vector<Arm> arms;
  std::vector<Rollout> rollouts;
};

Result<Recording> read_recording(const std::string& path) {
  std::ifstream file(path);
  Recording recording;
  std::vector<Tick>* ticks = nullptr;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const auto bad = [&](const char* why) { return bad_input(path + ":" + std::to_string(number) + ": " + why); };
    std::stringstream words(line);
    std::string word, role;
    size_t arm = 0;
    if (line.starts_with("#")) continue;
    if (line.starts_with("arm ")) {
      Arm a;
      words >> word >> arm >> a.policy >> a.depth;
      if (!words || arm != recording.arms.size()) return bad("not an arm");
      const size_t colon = a.policy.find(':');
      if (colon != std::string::npos) a.drafter = a.policy.substr(colon + 1, a.policy.rfind(':') - colon - 1);
      recording.arms.push_back(a);
    } else if (line.starts_with("costs ")) {
      RoleCost c;
      words >> word >> arm >> role >> c.weights_ms >> c.kv_ms >> c.row_ms >> c.attention_ms >> c.sample_ms >> c.context_ms >>
          c.overlap;
      if (!words || arm >= recording.arms.size()) return bad("not costs");
      Arm& a = recording.arms[arm];
      a.has_model |= role == "draft";
      a.costs.roles[static_cast<size_t>(role == "target"   ? CostRole::kTarget
                                        : role == "verify" ? CostRole::kVerify
                                                           : CostRole::kDraft)] = c;
    } else if (line.starts_with("rollout ")) {
      recording.rollouts.emplace_back(recording.arms.size());
    } else if (line.starts_with("ticks ")) {
      words >> word >> arm;
      if (!words || recording.rollouts.empty() || arm >= recording.arms.size()) return bad("not an arm's ticks");
      ticks = &recording.rollouts.back()[arm];
    } else {
      Tick t{};
      words >> t.batch >> t.context >> t.tokens >> t.accepted >> t.ms;
      if (!words || ticks == nullptr || t.batch < 1 || t.tokens < 1 || t.accepted < 0 || t.ms <= 0) return bad("not a tick");
      t.ms /= 1000;
      t.before = ticks->empty() ? 0 : ticks->back().before + ticks->back().tokens;
      ticks->push_back(t);
    }
  }
  for (const Rollout& rollout : recording.rollouts) {
    for (const std::vector<Tick>& recorded : rollout) {
      if (recorded.empty()) return bad_input(path + ": a rollout lacks ticks of an arm");
    }
  }
  if (recording.arms.size() < 2 || recording.rollouts.empty()) return bad_input(path + " cannot be read or holds no rollout");
  return recording;
}

// SplitMix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  double uniform() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }
  int64_t below(int64_t n) { return std::min(n - 1, static_cast<int64_t>(uniform() * static_cast<double>(n))); }

 private:
  uint64_t state_;
};

size_t bucket_of(int64_t batch) { return std::min<size_t>(std::bit_width(static_cast<uint64_t>(batch)), kBuckets - 1); }

// The arm's tick that covers this place.
size_t tick_at(const std::vector<Tick>& ticks, int64_t tokens) {
  const auto after =
      std::upper_bound(ticks.begin(), ticks.end(), tokens, [](int64_t place, const Tick& t) { return place < t.before; });
  return static_cast<size_t>(after - ticks.begin()) - 1;
}

int64_t length_of(const Rollout& rollout) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const std::vector<Tick>& ticks : rollout) least = std::min(least, ticks.back().before + ticks.back().tokens);
  return least;
}

class Player {
 public:
  virtual ~Player() = default;
  virtual size_t choose(int64_t batch, int64_t context) = 0;
  virtual void observe(size_t /*arm*/, const Tick& /*tick*/) {}
};

class Known final : public Player {
 public:
  explicit Known(const std::array<size_t, kBuckets>& best) : best_(best) {}
  size_t choose(int64_t batch, int64_t) override { return best_[bucket_of(batch)]; }

 private:
  const std::array<size_t, kBuckets> best_;
};

class Forecasting final : public Player {
 public:
  Forecasting(const std::vector<Arm>& arms, bool tunes) : arms_(arms), tunes_(tunes) {}

  size_t choose(int64_t batch, int64_t context) override {
    const double n = static_cast<double>(batch), c = static_cast<double>(context), plain = arms_[0].ms(n, c);
    std::vector<Tuner::Arm> seen;
    size_t best = 0;
    for (size_t a = 0; a < arms_.size(); ++a) {
      const double ms = arms_[a].ms(n, c);
      seen.push_back({.value = n * arms_[a].tokens(p(arms_[a].drafter)) / ms,
                      .hoped = n * arms_[a].tokens(kHoped) / ms,
                      .extra_ms = std::max(0.0, ms - plain)});
      if (seen[a].value > seen[best].value) best = a;
    }
    if (tunes_) best = static_cast<size_t>(tuner_.choose(n, seen, plain));
    expected_ms_ = arms_[best].ms(n, c);
    expected_tokens_ = seen[best].value * expected_ms_;
    return best;
  }
  void observe(size_t arm, const Tick& tick) override {
    const Arm& a = arms_[arm];
    const double n = static_cast<double>(tick.batch);
    tuner_.observe(n, static_cast<int>(arm), expected_tokens_, expected_ms_, static_cast<double>(tick.tokens), tick.ms);
    if (a.depth == 0) return;
    // The p at which chains keep as many tokens.
    const double kept = 1 + static_cast<double>(tick.accepted) / n;
    double low = 0, high = 1;
    for (int i = 0; i < 30; ++i) (a.tokens((low + high) / 2) < kept ? low : high) = (low + high) / 2;
    Share& share = shares_[a.drafter];
    share.kept = kDecay * share.kept + n * low, share.rows = kDecay * share.rows + n;
  }

 private:
  struct Share {
    double kept = kPriorRows * Acceptance::kPrior, rows = kPriorRows;
  };
  double p(const std::string& drafter) {
    const Share& share = shares_[drafter];
    return share.kept / share.rows;
  }

  const std::vector<Arm>& arms_;
  const bool tunes_;
  Tuner tuner_;
  std::map<std::string, Share> shares_;
  double expected_ms_ = 0, expected_tokens_ = 0;
};

class BegMabPlayer final : public Player {
 public:
  BegMabPlayer(size_t num_arms, uint64_t seed) {
    for (size_t b = 0; b < kBuckets; ++b) {
      std::vector<BegMab::Arm> arms;
      for (size_t a = 0; a < num_arms; ++a) arms.push_back({.depth = static_cast<int32_t>(a), .top_k = 1, .verify_tokens = 1});
      const std::array<int32_t, 1> thresholds = {1};
      bandits_.push_back(std::make_unique<BegMab>(arms, thresholds, seed + b));
    }
  }
  size_t choose(int64_t batch, int64_t) override { return bandits_[bucket_of(batch)]->select(static_cast<int32_t>(batch)); }
  void observe(size_t arm, const Tick& tick) override {
    bandits_[bucket_of(tick.batch)]->record(arm, tick.ms, tick.accepted, static_cast<int32_t>(tick.batch));
  }

 private:
  std::vector<std::unique_ptr<BegMab>> bandits_;
};

// Mean rewards, tokens a millisecond; epsilon-greedy or, without an epsilon, UCB1.
class Bandit final : public Player {
 public:
  Bandit(size_t num_arms, double epsilon, uint64_t seed) : epsilon_(epsilon), random_(seed) {
    for (auto& bucket : buckets_) bucket.resize(num_arms);
  }
  size_t choose(int64_t batch, int64_t) override {
    const std::vector<Record>& records = buckets_[bucket_of(batch)];
    double count = 0, most = 0;
    for (const Record& r : records) count += r.count, most = std::max(most, r.most);
    size_t best = 0;
    double best_value = -1;
    for (size_t a = 0; a < records.size(); ++a) {
      if (records[a].count == 0) return a;
      const double mean = records[a].sum / records[a].count;
      const double value = epsilon_ > 0 ? mean : mean / most + std::sqrt(2 * std::log(count) / records[a].count);
      if (value > best_value) best = a, best_value = value;
    }
    if (epsilon_ > 0 && random_.uniform() < epsilon_)
      return static_cast<size_t>(random_.below(static_cast<int64_t>(records.size())));
    return best;
  }
  void observe(size_t arm, const Tick& tick) override {
    Record& r = buckets_[bucket_of(tick.batch)][arm];
    const double reward = static_cast<double>(tick.tokens) / tick.ms;
    ++r.count, r.sum += reward, r.most = std::max(r.most, reward);
  }

 private:
  struct Record {
    double count = 0, sum = 0, most = 0;
  };
  const double epsilon_;
  Random random_;
  std::array<std::vector<Record>, kBuckets> buckets_;
};

// The arm with the most tokens a millisecond, by bucket.
std::array<size_t, kBuckets> best_arms(const Recording& recording) {
  std::array<size_t, kBuckets> best = {};
  for (size_t b = 0; b < kBuckets; ++b) {
    double most = 0;
    for (size_t a = 0; a < recording.arms.size(); ++a) {
      double tokens = 0, ms = 0;
      for (const Rollout& rollout : recording.rollouts) {
        for (const Tick& t : rollout[a]) {
          if (bucket_of(t.batch) == b) tokens += static_cast<double>(t.tokens), ms += t.ms;
        }
      }
      if (ms > 0 && tokens / ms > most) most = tokens / ms, best[b] = a;
    }
  }
  return best;
}

// Milliseconds of each rollout.
std::vector<double> play(const Recording& recording, uint64_t seed, int rollouts, Player* player) {
  Random order(seed), luck(seed ^ 0x5bd1e995);
  std::vector<double> times;
  for (int i = 0; i < rollouts; ++i) {
    const Rollout& rollout =
        recording.rollouts[static_cast<size_t>(order.below(static_cast<int64_t>(recording.rollouts.size())))];
    const int64_t length = length_of(rollout);
    double ms = 0;
    for (int64_t tokens = 0; tokens < length;) {
      const Tick& now = rollout[0][tick_at(rollout[0], tokens)];
      const size_t arm = player->choose(now.batch, now.context);
      const std::vector<Tick>& ticks = rollout[arm];
      const int64_t at = static_cast<int64_t>(tick_at(ticks, tokens)) + luck.below(2 * kAround + 1) - kAround;
      Tick tick = ticks[static_cast<size_t>(std::clamp<int64_t>(at, 0, static_cast<int64_t>(ticks.size()) - 1))];
      player->observe(arm, tick);
      // A tick that is wider than what is left takes its time for what is left.
      ms += tick.ms * std::min(1.0, static_cast<double>(length - tokens) / static_cast<double>(tick.tokens));
      tokens += tick.tokens;
    }
    times.push_back(ms);
  }
  return times;
}

struct Estimate {
  double mean = 0, half = 0;
};

Estimate estimate(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double v : values) sum += v, squares += v * v;
  const double n = static_cast<double>(values.size()), mean = sum / n;
  return {mean, 1.96 * std::sqrt(std::max(0.0, squares / n - mean * mean) / (n - 1))};
}

int report(const Recording& recording, int orders, int rollouts) {
  const std::array<const char*, 5> names = {"tuner", "forecasts", "BEG-MAB", "UCB1", "e-greedy"};
  const std::array<int, 3> horizons = {1, std::max(1, rollouts / 4), rollouts};
  const std::array<size_t, kBuckets> best = best_arms(recording);
  // By player, horizon, order.
  std::array<std::array<std::vector<double>, 3>, names.size()> regret;
  for (int o = 0; o < orders; ++o) {
    const uint64_t seed = static_cast<uint64_t>(o) + 1;
    Known known(best);
    const std::vector<double> least = play(recording, seed, rollouts, &known);
    for (size_t p = 0; p < names.size(); ++p) {
      std::unique_ptr<Player> player;
      const size_t arms = recording.arms.size();
      if (p < 2) player = std::make_unique<Forecasting>(recording.arms, p == 0);
      else if (p == 2) player = std::make_unique<BegMabPlayer>(arms, seed);
      else player = std::make_unique<Bandit>(arms, p == 3 ? 0 : kEpsilon, seed);
      const std::vector<double> times = play(recording, seed, rollouts, player.get());
      for (size_t h = 0; h < horizons.size(); ++h) {
        double mine = 0, reference = 0;
        for (int i = 0; i < horizons[h]; ++i) mine += times[static_cast<size_t>(i)], reference += least[static_cast<size_t>(i)];
        regret[p][h].push_back(100 * (mine / reference - 1));
      }
    }
  }
  std::printf("best by batch:");
  std::set<size_t> seen;
  for (const Tick& t : recording.rollouts[0][0]) seen.insert(bucket_of(t.batch));
  for (const size_t b : seen) std::printf(" %d-%d %s", 1 << (b - 1), (1 << b) - 1, recording.arms[best[b]].policy.c_str());
  std::printf(
      "\n\n| regret, %% of %d orders | after 1 rollout | after %d | after %d | - tuner, after 1 | after %d | after %d |\n",
      orders, horizons[1], horizons[2], horizons[1], horizons[2]);
  std::printf("|---|---|---|---|---|---|---|\n");
  bool least = true;
  for (size_t p = 0; p < names.size(); ++p) {
    std::printf("| %s |", names[p]);
    for (const std::vector<double>& values : regret[p]) {
      const Estimate e = estimate(values);
      std::printf(" %.2f ± %.2f |", e.mean, e.half);
    }
    for (size_t h = 0; h < horizons.size(); ++h) {
      std::vector<double> difference = regret[p][h];
      for (size_t o = 0; o < difference.size(); ++o) difference[o] -= regret[0][h][o];
      const Estimate e = estimate(difference);
      if (p == 0) std::printf(" |");
      else std::printf(" %+.2f ± %.2f |", e.mean, e.half);
      if (p >= 2 && e.mean <= e.half) least = false;
    }
    std::printf("\n");
  }
  std::printf("\n%s\n",
              least ? "Every bandit's regret is above the tuner's." : "Some bandit's regret is not above the tuner's.");
  return least ? 0 : 1;
}

int run(int argc, char** argv) {
  int orders = 100, rollouts = 16;
  bool usage = argc < 2 || argc % 2 != 0;
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const int value = std::atoi(argv[i + 1]);
    usage |= value < 2 || value > 10000;
    if (flag == "--orders") orders = value;
    else if (flag == "--rollouts") rollouts = value;
    else usage = true;
  }
  if (usage) {
    std::fputs("usage: replay_ticks FILE [--orders N] [--rollouts N]\n", stderr);
    return 2;
  }
  const Result<Recording> recording = read_recording(argv[1]);
  if (recording.ok()) return report(recording.value(), orders, rollouts);
  std::fprintf(stderr, "%s\n", recording.status().message().c_str());
  return 3;
}

}  // namespace
}  // namespace otr

int main(int argc, char** argv) { return otr::run(argc, argv); }
