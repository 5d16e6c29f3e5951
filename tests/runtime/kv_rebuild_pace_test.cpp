// What it costs to go on at another worker, by modelled time: whatever the link's rate, both ends together cost no more than the better
// one of them alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/engine.h"
#include "tests/runtime/mixed_requests.h"

namespace otr {
namespace {

constexpr int32_t kChunk = 512;
constexpr double kRowMs = 0.05;  // 20,000 tokens a second

class PacedRebuild : public testing::TestWithParam<double> {  // milliseconds that a pass takes at least
 protected:
  struct Run {
    double ms = 0;
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;
    int64_t copied = 0;
  };

  // A request that moves before tick `at_tick`; < 0: it stays. A link of rate 0: there is none.
  Run run(int64_t at_tick, RebuildMode mode, double link_over_compute) const {
    EngineOptions o;
    o.device.num_threads = 2;
    o.device.target.path = model_.path();
    o.device.target.kv_bytes = model_.kv_bytes(400);
    o.num_workers = 2;
    o.max_batch = 4;
    o.prefill_chunk = kChunk;
    o.policy = "off";
    o.proofs = {.migrate_at_tick = at_tick, .rebuild = {.mode = mode}};
    o.pace.emplace();
    o.pace->target.roles[static_cast<size_t>(CostRole::kTarget)] = {.weights_ms = GetParam(), .row_ms = kRowMs};
    o.pace->target.roles[static_cast<size_t>(CostRole::kVerify)] = o.pace->target.role(CostRole::kTarget);
    o.pace->kv_transfer_ms = link_over_compute > 0 ? kRowMs / link_over_compute : 0;
    Result<std::unique_ptr<Engine>> e = Engine::create(o);
    EXPECT_TRUE(e.ok()) << e.status().message();
    const std::vector<int32_t> prompt = random_tokens(3, static_cast<size_t>(num_tokens_), model_.shape().vocab_size);
    otr_sampling_params sampling;
    otr_sampling_params_init(&sampling, sizeof sampling);
    sampling.max_new_tokens = 6;
    sampling.ignore_eos = 1;
    otr_group_request r;
    otr_group_request_init(&r, sizeof r);
    r.prompt_token_ids = prompt.data();
    r.num_prompt_tokens = prompt.size();
    r.sampling = &sampling;
    EXPECT_TRUE(e.value()->submit(r).ok());
    const Result<std::unique_ptr<Sequence>> s = e.value()->wait(60'000);
    EXPECT_TRUE(s.ok()) << s.status().message();
    const auto stats = nlohmann::json::parse(e.value()->stats_json());
    EXPECT_EQ(stats["migrations"], at_tick < 0 ? 0 : 1);
    return {.ms = s.value()->finished_ms, .tokens = s.value()->tokens, .logprobs = s.value()->raw_logprobs, .copied = stats["kv_copied_tokens"].get<int64_t>()};
  }

  const int32_t num_tokens_ = 4000;
  const TinyModel model_{{.max_position_embeddings = 8192}};
};

TEST_P(PacedRebuild, BothEndsCostNoMoreThanTheBetterOne) {
  const int64_t at_tick = (num_tokens_ + kChunk - 1) / kChunk + 2;
  const Run plain = run(-1, RebuildMode::kBothEnds, 1);
  const auto cost_ms = [&](RebuildMode mode, double share) {
    const Run moved = run(at_tick, mode, share);
    EXPECT_EQ(moved.tokens, plain.tokens);
    EXPECT_EQ(bits_of(moved.logprobs.data(), moved.logprobs.size()), bits_of(plain.logprobs.data(), plain.logprobs.size()));
    EXPECT_EQ(moved.copied > 0, mode == RebuildMode::kTransfer || share >= 0.1);
    return moved.ms - plain.ms;
  };
  const double recompute = cost_ms(RebuildMode::kBothEnds, 0);
  for (const double share : {0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 10.0, 30.0, 100.0, 1000.0}) {
    const double transfer = cost_ms(RebuildMode::kTransfer, share), both = cost_ms(RebuildMode::kBothEnds, share);
    const double better = std::min(recompute, transfer);
    const bool alike = share >= 0.5 && share <= 2;
    EXPECT_LE(both, alike ? 0.8 * better : better + 0.1) << share;  // a worker that has nothing to run looks again after 0.05 ms
    const double met = (num_tokens_ + kPageTokens) * kRowMs / (1 + share), page = kPageTokens * kRowMs * (1 + 1 / share);
    EXPECT_LE(both, std::max(GetParam(), met + page)) << share;
  }
}

INSTANTIATE_TEST_SUITE_P(, PacedRebuild, testing::Values(0.2, 5.0));

}  // namespace
}  // namespace otr
