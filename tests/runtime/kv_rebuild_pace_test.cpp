// What it costs to go on at another worker, by modelled time: whatever the link's rate, both ends together cost no more than
// the better one of them alone.
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

struct RebuildCase {
  double least_ms;  // that a pass takes
  int32_t num_tokens;
};

class PacedRebuild : public testing::TestWithParam<RebuildCase> {
 protected:
  struct Run {
    double ms = 0;
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;
    int64_t copied = 0;
  };

  // A request that moves before tick `at_tick`; < 0: it stays. A link of rate 0: there is none.
  Run run(int64_t at_tick, const RebuildOptions& rebuild, double link_over_compute) const {
    EngineOptions o;
    o.device.num_threads = 2;
    o.device.target.path = model_.path();
    o.device.target.kv_bytes = model_.kv_bytes(400);
    o.num_workers = 2;
    o.max_batch = 4;
    o.prefill_chunk = kChunk;
    o.policy = "off";
    o.proofs = {.migrate_at_tick = at_tick, .rebuild = rebuild};
    o.pace.emplace();
    o.pace->target.roles[static_cast<size_t>(CostRole::kTarget)] = {.weights_ms = GetParam().least_ms, .row_ms = kRowMs};
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
    return {.ms = s.value()->finished_ms,
            .tokens = s.value()->tokens,
            .logprobs = s.value()->raw_logprobs,
            .copied = stats["kv_copied_tokens"].get<int64_t>()};
  }

  // What the move costs; the sample is as without it.
  double cost_ms(const RebuildOptions& rebuild, double share, int64_t* copied = nullptr) {
    if (plain_.tokens.empty()) plain_ = run(-1, {}, 1);
    const Run moved = run((num_tokens_ + kChunk - 1) / kChunk + 2, rebuild, share);
    EXPECT_EQ(moved.tokens, plain_.tokens);
    EXPECT_EQ(bits_of(moved.logprobs.data(), moved.logprobs.size()), bits_of(plain_.logprobs.data(), plain_.logprobs.size()));
    if (copied != nullptr) *copied = moved.copied;
    return moved.ms - plain_.ms;
  }

  static constexpr int32_t kLayers = 2;
  const int32_t num_tokens_ = GetParam().num_tokens;
  const TinyModel model_{{.num_layers = kLayers, .max_position_embeddings = 8192}};
  Run plain_;
};

TEST_P(PacedRebuild, BothEndsCostNoMoreThanTheBetterOne) {
  const double recompute = cost_ms({}, 0);
  for (const double share : {0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 10.0, 30.0, 100.0, 1000.0}) {
    int64_t transferred = 0, copied = 0;
    const double transfer = cost_ms({.mode = RebuildMode::kTransfer}, share, &transferred), both = cost_ms({}, share, &copied);
    const double better = std::min(recompute, transfer);
    const bool alike = share >= 0.5 && share <= 2;
    EXPECT_LE(both, alike ? 0.8 * better : better + 0.1)
        << share;  // a worker that has nothing to run looks again after 0.05 ms
    const double met = (num_tokens_ + kPageTokens) * kRowMs / (1 + share), page = kPageTokens * kRowMs * (1 + 1 / share);
    EXPECT_LE(both, std::max(GetParam().least_ms, met + page)) << share;
    EXPECT_GT(transferred, 0);
    if (share <= 0.01 || share >= 0.5) {
      EXPECT_EQ(copied > 0, share >= 0.5) << share;
    }
  }
}

// The tick behind the gap begins while the last pages come: so much sooner, less the wait for the first of its layers.
TEST_P(PacedRebuild, TheLastPagesComeWithinATick) {
  for (const double share : {1.0, 4.0}) {
    const double whole = cost_ms({.mode = RebuildMode::kTransfer, .whole_pages = true}, share),
                 layers = cost_ms({.mode = RebuildMode::kTransfer}, share);
    const double page_ms = kPageTokens * kRowMs / share;
    const double hidden = std::min(GetParam().least_ms, num_tokens_ * kRowMs / share) * (1 - 1.0 / kLayers);
    EXPECT_NEAR(whole - layers, hidden, 0.1 + 0.5 * page_ms) << share;
    EXPECT_LE(layers, whole + 0.1);
  }
}

// 1,500 tokens take as long from both ends, where a tick takes 5 ms and the link is a tenth as fast, as computing them all.
INSTANTIATE_TEST_SUITE_P(, PacedRebuild,
                         testing::Values(RebuildCase{0.2, 4000}, RebuildCase{5.0, 4000}, RebuildCase{5.0, 1500}));

}  // namespace
}  // namespace otr
