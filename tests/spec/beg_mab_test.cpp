#include "spec/beg_mab.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>

namespace otr {
namespace {

const std::vector<BegMab::Arm> kArms = {{8, 4, 8}, {8, 4, 16}, {4, 4, 48}, {8, 4, 48}, {12, 4, 48}, {4, 4, 16}};
const std::vector<int32_t> kThresholds = {1, 5, 21};

// Lines 1 to 10 and 19 of the paper's algorithm, kept as it writes them: groups as sets, windows as deques, the median of a
// sorted copy.
class Transcription {
 public:
  Transcription(const std::vector<BegMab::Arm>& arms, std::vector<int32_t> thresholds, size_t window)
      : thresholds_(std::move(thresholds)), window_(window) {
    for (const BegMab::Arm& a : arms) groups_[-a.verify_tokens].push_back({a, {}});  // descending
  }
  struct Strategy {
    BegMab::Arm arm;
    std::deque<double> rewards;
  };
  std::vector<Strategy>& candidates(int32_t batch_size) {
    size_t i = 0;
    for (size_t t = 0; t < thresholds_.size(); ++t) {
      const bool last = t + 1 == thresholds_.size();
      if (batch_size >= thresholds_[t] && (last || batch_size <= thresholds_[t + 1] - 1)) i = t;
    }
    return std::next(groups_.begin(), static_cast<std::ptrdiff_t>(i))->second;
  }
  void record(Strategy* s, double elapsed_time, const std::vector<int32_t>& accept_lens) {
    double sum = 0;
    for (const int32_t a : accept_lens) sum += a;
    const double batch_size = static_cast<double>(accept_lens.size()), mean = sum / batch_size + 1;
    s->rewards.push_back(mean * batch_size / elapsed_time);
    if (s->rewards.size() > window_) s->rewards.pop_front();
  }
  static double median(const Strategy& s) {
    std::vector<double> r(s.rewards.begin(), s.rewards.end());
    std::sort(r.begin(), r.end());
    return r.size() % 2 == 1 ? r[r.size() / 2] : (r[r.size() / 2 - 1] + r[r.size() / 2]) / 2;
  }

 private:
  std::vector<int32_t> thresholds_;
  size_t window_;
  std::map<int32_t, std::vector<Strategy>> groups_;
};

bool same(const BegMab::Arm& a, const BegMab::Arm& b) {
  return a.depth == b.depth && a.top_k == b.top_k && a.verify_tokens == b.verify_tokens;
}

TEST(BegMab, GroupsServeTheirBatches) {
  BegMab mab(kArms, kThresholds);
  for (const auto& [batch, verify_tokens] :
       std::vector<std::pair<int32_t, int32_t>>{{1, 48}, {4, 48}, {5, 16}, {20, 16}, {21, 8}, {22, 8}, {5000, 8}}) {
    EXPECT_EQ(mab.arm(mab.select(batch)).verify_tokens, verify_tokens) << batch;
  }
}

TEST(BegMab, UntriedArmsComeFirstInTheirOrder) {
  BegMab mab(kArms, kThresholds);
  for (const int32_t depth : {4, 8, 12}) {
    for (int again = 0; again < 3; ++again) EXPECT_EQ(mab.arm(mab.select(1)).depth, depth);  // until it is recorded
    mab.record(mab.select(1), 1, 100 - depth, 1);
  }
  EXPECT_EQ(mab.arm(mab.select(7)).depth, 8);  // another group has its own
}

TEST(BegMab, ManyArmsKeepTheirOrder) {
  std::vector<BegMab::Arm> arms;
  for (int32_t i = 0; i < 60; ++i) arms.push_back({1 + i, 4, i % 2 == 0 ? 8 : 16});
  const BegMab mab(arms, std::vector<int32_t>{1, 5});
  for (int32_t i = 0; i < 60; ++i) {
    const BegMab::Arm& arm = mab.arm(static_cast<size_t>(i));
    EXPECT_EQ(arm.verify_tokens, i < 30 ? 16 : 8);
    EXPECT_EQ(arm.depth, i < 30 ? 2 + 2 * i : 1 + 2 * (i - 30));
  }
}

TEST(BegMab, OneArmIsNeverAQuestion) {
  BegMab mab(kArms, kThresholds), untouched(kArms, kThresholds);
  for (int i = 0; i < 100; ++i) mab.record(mab.select(30), 1, 5, 30);
  // It drew no random number: both go on alike.
  for (int i = 0; i < 200; ++i) {
    const size_t a = mab.select(1), b = untouched.select(1);
    ASSERT_EQ(a, b);
    mab.record(a, 1, static_cast<int64_t>(a), 1);
    untouched.record(b, 1, static_cast<int64_t>(b), 1);
  }
}

// Rewards by hand: 3 samples keep 2, 0 and 4 tokens in 6 ms: (6 / 3 + 1) * 3 / 6 = 1.5.
TEST(BegMab, TheRewardIsTokensOverTime) {
  BegMab mab(kArms, kThresholds);
  EXPECT_EQ(mab.median_reward(0), 0);
  mab.record(0, 6, 2 + 0 + 4, 3);
  EXPECT_DOUBLE_EQ(mab.median_reward(0), 1.5);
  mab.record(0, 1, 3, 1);
  EXPECT_DOUBLE_EQ(mab.median_reward(0), (1.5 + 4) / 2);
  mab.record(0, 2, 1, 1);  // 1: the middle one of 1, 1.5, 4
  EXPECT_DOUBLE_EQ(mab.median_reward(0), 1.5);
}

// Against the transcription on random rewards: except where it explores, every choice is the arm of the greatest median.
TEST(BegMab, ExploitsAsTheAlgorithmSays) {
  BegMab mab(kArms, kThresholds);
  Transcription paper(kArms, kThresholds, BegMab::kWindow);
  std::mt19937 random(3);
  int explored = 0, asked = 0;
  for (int tick = 0; tick < 6000; ++tick) {
    const int32_t batch = 1 + static_cast<int32_t>(random() % 20);
    auto& candidates = paper.candidates(batch);
    const size_t chosen = mab.select(batch);
    const auto at =
        std::find_if(candidates.begin(), candidates.end(), [&](const auto& s) { return same(s.arm, mab.arm(chosen)); });
    ASSERT_NE(at, candidates.end());
    const bool all_tried = std::all_of(candidates.begin(), candidates.end(), [](const auto& s) { return !s.rewards.empty(); });
    if (all_tried) {
      ++asked;
      const auto best = std::max_element(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
        return Transcription::median(a) < Transcription::median(b);
      });
      explored += best != at;
    }
    std::vector<int32_t> lens(static_cast<size_t>(batch));
    for (int32_t& a : lens) a = static_cast<int32_t>(random() % 9);
    const double elapsed = 1 + static_cast<double>(random() % 1000) / 100;
    int64_t accepted = 0;
    for (const int32_t a : lens) accepted += a;
    paper.record(&*at, elapsed, lens);
    mab.record(chosen, elapsed, accepted, batch);
    ASSERT_NEAR(mab.median_reward(chosen), Transcription::median(*at), 1e-9);
  }
  // An exploration is another arm than the best with probability 2/3 (three arms) or 1/2 (two): 0.1 * 0.53 of all.
  const double share = static_cast<double>(explored) / asked;
  EXPECT_NEAR(share, 0.1 * (4 / 20.0 * 2 / 3 + 16 / 20.0 / 2), 0.01);
}

TEST(BegMab, ForgetsWhatIsOlderThanItsWindow) {
  BegMab mab(kArms, kThresholds);
  for (size_t i = 0; i < BegMab::kWindow; ++i) mab.record(2, 1, 99, 1);
  for (size_t i = 0; i < BegMab::kWindow / 2 + 1; ++i) mab.record(2, 1, 0, 1);
  EXPECT_DOUBLE_EQ(mab.median_reward(2), 1);
}

}  // namespace
}  // namespace otr
