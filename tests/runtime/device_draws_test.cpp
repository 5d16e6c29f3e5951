// Draws that go to a device and back: any number of them, with any penalties, gives what the sampler gives on the host. The
// device is one in host memory whose kernels are the scalar path's, run when the queue comes to them.
#include "runtime/device_draws.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "runtime/device_chain.h"
#include "tests/memory/fake_accelerator.h"
#include "tests/runtime/rollouts.h"

namespace otr {
namespace {

constexpr int32_t kDrawnVocab = 600, kRows = 5;

FakeAccelerator& fake(const LaunchContext& on) { return static_cast<FakeAccelerator&>(*on.accelerator); }

int64_t launches;

void sample_later(const SampleParams& p, const LaunchContext& on) {
  ++launches;
  EXPECT_LE(p.num_draws, DeviceDraws::kLaunchDraws);
  fake(on).ask([p, &pool = on.pool] { sample_scalar(p, pool); });
}
void candidates_later(const CandidateParams& p, const LaunchContext& on) {
  ++launches;
  fake(on).ask([p, &pool = on.pool] { candidates_scalar(p, pool); });
}

void take_tokens_later(const TakeTokensParams& p, const LaunchContext& on) {
  fake(on).ask([p] {
    for (int32_t row = 0; row < p.num_rows; ++row)
      p.token_ids[row] = p.drawn[p.from[row]].count > 0 ? p.drawn[p.from[row]].tokens[0] : 0;
  });
}

class DeviceDrawsTest : public testing::Test {
 protected:
  DeviceDrawsTest() {
    std::mt19937 random(1);
    for (float& x : logits_) x = static_cast<float>(random() % 1000) * 0.01f;
    kernels_.sample = sample_later;
    kernels_.candidates = candidates_later;
    kernels_.device = &layouts_;
    draws_ = std::make_unique<DeviceDraws>(std::move(DeviceDraws::create(kernels_, {pool_, &device_}, kDrawnVocab).value()));
  }

  // Draw i, with `num_penalties` of the vocabulary.
  SampleDraw draw(int32_t i, int32_t num_penalties) {
    SampleDraw d = {};
    d.logits_row = i % kRows;
    d.position = i;
    d.noise = noise_stream({.seed = 3, .stream = 4, .sample = static_cast<uint32_t>(i)});
    d.forced_token = -1;
    d.temperature = i % 3 == 0 ? 0.7f : 1.0f;
    d.top_k = i % 4 == 0 ? 20 : 0;
    d.top_p = 1.0f;
    d.repetition_penalty = num_penalties > 0 ? 1.5f : 1.0f;
    d.num_penalties = num_penalties;
    if (num_penalties > 0) {
      lists_.emplace_back();
      for (int32_t token = 0; token < num_penalties; ++token)
        lists_.back().push_back({(token * 7 + i) % kDrawnVocab, token % 3});
      d.penalties = lists_.back().data();
    }
    return d;
  }
  std::vector<SampleResult> on_the_host(const std::vector<SampleDraw>& draws) {
    std::vector<SampleResult> results(draws.size());
    const size_t stride = static_cast<size_t>(sample_workspace_stride(kDrawnVocab));
    std::vector<float> scaled(stride);
    std::vector<int32_t> order(stride);
    sample_scalar({.num_draws = static_cast<int32_t>(draws.size()),
                   .vocab_size = kDrawnVocab,
                   .logits = logits_.data(),
                   .logits_stride = kDrawnVocab,
                   .draws = draws.data(),
                   .results = results.data(),
                   .scaled = scaled.data(),
                   .order = order.data()},
                  pool_);
    return results;
  }
  void expect_host_results(const std::vector<SampleDraw>& draws) {
    const std::vector<SampleResult> expected = on_the_host(draws);
    std::vector<SampleResult> results(draws.size());
    ASSERT_TRUE(draws_->sample(logits_.data(), draws.data(), static_cast<int32_t>(draws.size()), results.data()).ok());
    for (size_t i = 0; i < draws.size(); ++i) {
      EXPECT_EQ(results[i].token, expected[i].token) << i;
      EXPECT_EQ(results[i].logprob, expected[i].logprob) << i;
      EXPECT_EQ(results[i].raw_logprob, expected[i].raw_logprob) << i;
    }
  }

  ThreadPool pool_{1};
  FakeAccelerator device_{size_t{64} << 20};
  DeviceLayouts layouts_{.rows_from_tiles = nullptr,
                         .max_pages = nullptr,
                         .attention_workspace = nullptr,
                         .sample_scratch_bytes = [](int32_t, int32_t) -> int64_t { return 16; },
                         .take_tokens = take_tokens_later};
  KernelTable kernels_ = {};
  std::vector<float> logits_ = std::vector<float>(kRows * kDrawnVocab);
  std::deque<std::vector<PenaltyEntry>> lists_;
  std::unique_ptr<DeviceDraws> draws_;
};

TEST_F(DeviceDrawsTest, AnyNumberOfDrawsIsDrawn) {
  for (const int32_t count : {1, 63, 64, 65, DeviceDraws::kMaxDraws, DeviceDraws::kMaxDraws + 1, 2500}) {
    std::vector<SampleDraw> draws;
    for (int32_t i = 0; i < count; ++i) draws.push_back(draw(i, i % 2 == 0 ? 0 : 1 + i % 150));
    const uint64_t waits = device_.num_waits();
    launches = 0;
    expect_host_results(draws);
    EXPECT_EQ(launches, (count / DeviceDraws::kMaxDraws) * (DeviceDraws::kMaxDraws / DeviceDraws::kLaunchDraws) +
                            (count % DeviceDraws::kMaxDraws + DeviceDraws::kLaunchDraws - 1) / DeviceDraws::kLaunchDraws);
    EXPECT_EQ(device_.num_waits() - waits,
              static_cast<uint64_t>((count + DeviceDraws::kMaxDraws - 1) / DeviceDraws::kMaxDraws));
  }
}

// More penalties than one copy holds, which is 262,144: 655 lists of 400.
TEST_F(DeviceDrawsTest, PenaltiesThatDoNotFitAtOnceGoDownInTurn) {
  std::vector<SampleDraw> draws;
  for (int32_t i = 0; i < 2 * 655 + 1; ++i) draws.push_back(draw(i, 400));
  const uint64_t waits = device_.num_waits();
  expect_host_results(draws);
  EXPECT_EQ(device_.num_waits() - waits, 3u);
}

TEST_F(DeviceDrawsTest, CandidatesComeBackForEveryPlace) {
  std::vector<CandidateDraw> places;
  for (int32_t i = 0; i < 200; ++i) places.push_back({draw(i, i % 3), 1.0f, false});
  std::vector<Candidates> found(places.size());
  ASSERT_TRUE(draws_->candidates(logits_.data(), places.data(), static_cast<int32_t>(places.size()), 4, found.data()).ok());
  std::vector<SampleDraw> draws;
  for (const CandidateDraw& place : places) draws.push_back(place.draw);
  const std::vector<SampleResult> drawn = on_the_host(draws);
  for (size_t i = 0; i < places.size(); ++i)
    EXPECT_EQ(found[i].tokens[0], drawn[i].token) << i;  // the first candidate is the draw
}

// Three levels of chains, of which every third one ends early: tokens go from draw to row on the device, and the host waits
// once.
TEST_F(DeviceDrawsTest, ChainsFeedThemselves) {
  constexpr int32_t kChains = 130, kLevels = 3;
  Result<DeviceChain> made = DeviceChain::create(kernels_, {pool_, &device_}, kChains * kLevels, draws_.get());
  ASSERT_TRUE(made.ok()) << made.status().message();
  DeviceChain& chain = made.value();
  for (int round = 0; round < 2; ++round) {
    std::vector<SampleDraw> asked;
    std::vector<int32_t> newest(kChains), fed, token_ids(kLevels * kChains, -1);
    const uint64_t waits = device_.num_waits();
    chain.begin();
    for (int32_t level = 0; level < kLevels; ++level) {
      std::vector<int32_t> from;
      std::vector<CandidateDraw> draws;
      for (int32_t i = 0; i < kChains; ++i) {
        if (level == kLevels - 1 && i % 3 == 0) continue;
        if (level > 0) from.push_back(newest[static_cast<size_t>(i)]);
        newest[static_cast<size_t>(i)] = chain.num_draws() + static_cast<int32_t>(draws.size());
        asked.push_back(draw(round * 1000 + level * kChains + i, 0));
        draws.push_back({asked.back(), 1.0f, false});
      }
      chain.set_tokens(from, token_ids.data() + level * kChains);
      fed.insert(fed.end(), from.begin(), from.end());
      chain.draw(logits_.data(), draws);
    }
    std::vector<Candidates> found(asked.size());
    chain.finish(found.data());
    EXPECT_EQ(device_.num_waits() - waits, 1u);
    const std::vector<SampleResult> expected = on_the_host(asked);
    for (size_t i = 0; i < asked.size(); ++i) EXPECT_EQ(found[i].tokens[0], expected[i].token) << i;
    size_t next = 0;
    for (const int32_t token : token_ids) {
      if (token >= 0) {
        EXPECT_EQ(token, expected[static_cast<size_t>(fed[next++])].token);
      }
    }
    EXPECT_EQ(next, fed.size());
  }
}

TEST_F(DeviceDrawsTest, AFailureOfTheDeviceIsSaid) {
  std::vector<SampleDraw> draws = {draw(0, 0)};
  SampleResult result;
  device_.keep({StatusCode::kInternal, "the device fell over"});
  EXPECT_EQ(draws_->sample(logits_.data(), draws.data(), 1, &result).message(), "the device fell over");
}

}  // namespace
}  // namespace otr
