#include "spec/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace otr {
namespace {

TEST(CostModel, TimeByHand) {
  RoleCost cost{8, 0.001, 0.05, 1e-5, 0.02, 0.0005, 1};  // weights, kv, row, attention, sample, context, overlap
  // Memory 8 + 0.001 * 4 * 1000 = 12, a row 0.05 + 0.01; beside the roof 4 * 0.02 + 1000 * 0.0005 = 0.58.
  EXPECT_NEAR(cost.time_ms({4, 4, 1000}), 12 + 0.58, 1e-12);
  EXPECT_NEAR(cost.time_ms({4, 256, 1000}), 256 * 0.06 + 0.58, 1e-12);
  cost.overlap = 0;
  EXPECT_NEAR(cost.time_ms({4, 256, 1000}), 12 + 15.36 + 0.58, 1e-12);
  cost.overlap = 0.5;  // p = 2: sqrt(12^2 + 9^2) = 15
  EXPECT_NEAR(cost.time_ms({4, 150, 1000}), 15 + 0.58, 1e-12);
  EXPECT_NEAR(cost.time_ms({0, 0, 0}), 8, 1e-12);
}

// Rows without logits take what is left of a row; what a level catches up with is such rows, of a little less context: 4 tokens
// a sample at 96 … 99 of 100 see 97.5 of them in the mean, and 100 tokens a sample half.
TEST(CostModel, SilentRowsByHand) {
  RoleCost cost;
  cost.row_ms = 2;
  cost.attention_ms = 0.01;
  cost.shares.logits = 0.75;
  EXPECT_NEAR(cost.time_ms({2, 10, 100}), 10 * (2 + 1), 1e-12);
  EXPECT_NEAR(cost.time_ms({2, 10, 100, 8}), 2 * (2 + 1) + 8 * (0.5 + 1), 1e-12);
  CostModel model;
  model.roles[static_cast<size_t>(CostRole::kDraft)] = model.roles[static_cast<size_t>(CostRole::kVerify)] = cost;
  EXPECT_NEAR(model.draft_ms(2, 100), 2 * (2 + 1), 1e-12);
  EXPECT_NEAR(model.draft_ms(2, 100, 8), 2 * (2 + 1) + 8 * (0.5 + 0.975), 1e-12);
  EXPECT_NEAR(model.draft_ms(2, 100, 200), 2 * (2 + 1) + 200 * (0.5 + 0.5), 1e-12);
  EXPECT_NEAR(model.draft_ms(2, 100, 400), 2 * (2 + 1) + 400 * (0.5 + 0.5), 1e-12);
  EXPECT_EQ(model.draft_ms(0, 100), 0);
  EXPECT_NEAR(model.verify_ms(2, 10, 100, 8), cost.time_ms({2, 10, 100, 8}), 1e-12);
}

// 4 of 16 experts a row: one row reads a quarter of them, two 1 - 0.75^2, very many all.
TEST(CostModel, MixturesReadWhatTheirRowsTake) {
  RoleCost cost;
  cost.weights_ms = 10;
  cost.kv_ms = 1e-3;
  EXPECT_EQ(cost.weights_read(1), 1);
  cost.shares = {.experts = 0.8, .passed_by = 0.75};
  EXPECT_NEAR(cost.time_ms({1, 1, 0}), 2 + 8 * 0.25, 1e-12);
  EXPECT_NEAR(cost.time_ms({1, 2, 0}), 2 + 8 * 0.4375, 1e-12);
  EXPECT_NEAR(cost.time_ms({2, 2, 100}), 2 + 8 * 0.4375 + 0.2, 1e-12);
  EXPECT_NEAR(cost.time_ms({1, 1000, 0}), 10, 1e-12);
  EXPECT_EQ(cost.weights_read(0), 1 - 0.8);
  cost.shares.passed_by = 0;  // every row takes all
  EXPECT_EQ(cost.weights_read(1), 1);
}

// The drafter `small` of bench/results/profile-0.5b-cpu-avx512-7135c63.json, whose rows are lm_head for nine tenths.
CostModel small_drafter() {
  CostModel model;
  model.roles[static_cast<size_t>(CostRole::kDraft)] = {.weights_ms = 2.18,
                                                        .kv_ms = 1.54e-4,
                                                        .row_ms = 0.584,
                                                        .attention_ms = 4.55e-5,
                                                        .sample_ms = 0.109,
                                                        .context_ms = 0,
                                                        .overlap = 0.45,
                                                        .shares = {.logits = 0.9}};
  return model;
}

// Only attention is spared what earlier tokens do not see: the cache is read and the context paid for as by the level alone.
TEST(CostModel, CatchingUpTakesTheSumOfItsTokens) {
  CostModel model = small_drafter();
  RoleCost& cost = model.roles[static_cast<size_t>(CostRole::kDraft)];
  cost.context_ms = 1e-3;
  for (const int batch : {1, 3, 64}) {
    for (const int context : {64, 500, 16000}) {
      for (const int each : {1, 2, context / 2, context - 1}) {
        const double caught_up = batch * each;
        double seen = batch * static_cast<double>(context);
        for (int i = 1; i <= each; ++i) seen += batch * static_cast<double>(context - i);
        const double memory = cost.weights_ms + cost.kv_ms * batch * context;
        const double arithmetic = (batch + 0.1 * caught_up) * cost.row_ms + seen * cost.attention_ms;
        const double p = 1 / (1 - cost.overlap), roof = std::pow(std::pow(memory, p) + std::pow(arithmetic, p), 1 / p);
        const double expected = roof + cost.sample_ms * batch + cost.context_ms * context;
        EXPECT_NEAR(model.draft_ms(batch, context, caught_up), expected, 1e-9 * expected) << batch << " " << context;
      }
    }
  }
}

TEST(CostModel, CatchingUpNeverTakesLess) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int i = 0; i < 200; ++i) {
    CostModel model = small_drafter();
    RoleCost& cost = model.roles[static_cast<size_t>(CostRole::kDraft)];
    if (i > 0) {
      cost = {20 * uniform(random),  1e-4 * uniform(random), uniform(random), 1e-5 * uniform(random),
              0.3 * uniform(random), 1e-3 * uniform(random), uniform(random)};
      cost.shares = {uniform(random), uniform(random), uniform(random)};
    }
    for (double batch = 1; batch <= 64; batch *= 2) {
      for (double context = 64; context <= 16000; context *= 1.9) {
        double before = model.draft_ms(batch, context);
        for (double each = 1 / batch; each <= 2 * context; each *= 1.4) {  // from one sample's one token on
          const double time = model.draft_ms(batch, context, each * batch);
          ASSERT_GE(time, before * (1 - 1e-12)) << batch << " samples of " << context << ", " << each << " tokens each";
          EXPECT_GE(model.draft_ms(batch, context * 1.1, each * batch), time * (1 - 1e-12));
          EXPECT_GE(model.draft_ms(batch * 1.1, context, each * batch), time * (1 - 1e-12));
          before = time;
        }
      }
    }
  }
}

// The roof by its slopes is the roof: (m^p + a^p)^(1/p); and they are its slopes.
TEST(CostModel, SharesOfTheRoof) {
  const auto roof = [](double m, double a, double p) { return std::pow(std::pow(m, p) + std::pow(a, p), 1 / p); };
  for (const double overlap : {0.0, 0.3, 0.5, 0.8}) {
    for (const double arithmetic : {0.5, 3.0, 4.0, 20.0}) {
      const double p = 1 / (1 - overlap), step = 1e-6;
      const RoofShares share = roof_shares(4, arithmetic, overlap);
      EXPECT_NEAR(share.memory * 4 + share.arithmetic * arithmetic, roof(4, arithmetic, p), 1e-12);
      EXPECT_NEAR(share.memory, (roof(4 + step, arithmetic, p) - roof(4 - step, arithmetic, p)) / (2 * step), 1e-8);
      EXPECT_NEAR(share.arithmetic, (roof(4, arithmetic + step, p) - roof(4, arithmetic - step, p)) / (2 * step), 1e-8);
    }
  }
  EXPECT_EQ(roof_shares(4, 5, 1).arithmetic, 1);
  EXPECT_EQ(roof_shares(4, 5, 1).memory, 0);
  EXPECT_EQ(roof_shares(5, 4, 1).memory, 1);
  EXPECT_NEAR(roof_shares(5, 4, 0.999).memory, 1, 1e-9);  // no overflow on the way to the sharp roof
}

RooflineConstants round_constants() {
  RooflineConstants c;
  c.target_bytes = 16e9;
  c.draft_bytes = 6e9;
  c.draft_factor = 1.5;
  c.kv_bytes = 20e3;
  c.dense_flops = 15e9;
  c.attention_flops = 0.5e6;
  c.bandwidth = 1.6e12;
  c.compute = 200e12;
  c.target_s = 50e-6;
  c.draft_s = 80e-6;
  c.verify_s = 150e-6;
  return c;
}

// EfficientRollout's equations with round numbers: at B = 8, S = 1000, M_T = (16e9 + 1.6e8) / 1.6e12 = 10.1 ms,
// M_D = (9e9 + 1.6e8) / 1.6e12 = 5.725 ms, C = 8 * (15e9 + 5e8) / 2e14 = 0.62 ms.
TEST(CostModel, ThePapersEquationsByHand) {
  RooflineConstants constants = round_constants();
  const CostModel model = cost_model_from(constants).value();
  EXPECT_NEAR(model.target_ms(8, 1000), 10.1 + 0.4, 1e-9);
  EXPECT_NEAR(model.draft_ms(8, 1000), 5.725 + 0.64, 1e-9);
  EXPECT_NEAR(model.verify_ms(8, 8 * 8, 1000), 10.1 + 1.2, 1e-9);
  EXPECT_NEAR(model.verify_ms(8, 8 * 32, 1000), 32 * 0.62 + 1.2, 1e-9);
  EXPECT_NEAR(model.speedup(8, 1000, 7, 7), 7 * 10.5 / (7 * 6.365 + 11.3), 1e-9);
  constants.comm_s = 1e-3;
  const CostModel wide = cost_model_from(constants).value();
  for (const CostRole role : {CostRole::kTarget, CostRole::kDraft, CostRole::kVerify}) {
    EXPECT_NEAR(wide.time_ms(role, {8, 8, 1000}), model.time_ms(role, {8, 8, 1000}) + 1, 1e-9);
  }
}

// V(b) = 11 + 0.3 b and D(b) = 2 + 0.1 b, whatever the context and, at a given window, the rows.
TEST(CostModel, SpecActorsAffineTimesAreASpecialCase) {
  CostModel model;
  model.roles[static_cast<size_t>(CostRole::kVerify)] = {11, 0, 0, 0, 0.3, 0, 1};
  model.roles[static_cast<size_t>(CostRole::kDraft)] = {2, 0, 0, 0, 0.1, 0, 1};
  for (const double b : {1.0, 7.0, 100.0}) {
    for (const double context : {0.0, 5000.0}) {
      EXPECT_NEAR(model.verify_ms(b, 5 * b, context), 11 + 0.3 * b, 1e-12);
      EXPECT_NEAR(model.draft_ms(b, context), 2 + 0.1 * b, 1e-12);
    }
  }
}

TEST(CostModel, NeverFallsInBatchRowsOrContext) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int i = 0; i < 2000; ++i) {
    const RoleCost cost{20 * uniform(random),  1e-4 * uniform(random), uniform(random), 1e-5 * uniform(random),
                        0.3 * uniform(random), 1e-3 * uniform(random), uniform(random)};
    const PassShape pass{1 + 100 * uniform(random), 100 + 900 * uniform(random), 8000 * uniform(random)};
    const double time = cost.time_ms(pass), grow = 1 + uniform(random), slack = 1e-12 * time;
    EXPECT_GE(cost.time_ms({pass.batch * grow, pass.rows, pass.context}), time - slack);
    EXPECT_GE(cost.time_ms({pass.batch, pass.rows * grow, pass.context}), time - slack);
    EXPECT_GE(cost.time_ms({pass.batch, pass.rows, pass.context * grow}), time - slack);
  }
}

TEST(CostModel, RefusesConstantsThatAreNone) {
  const auto refused = [](auto change) {
    RooflineConstants c = round_constants();
    change(&c);
    const auto model = cost_model_from(c);
    return !model.ok() && model.status().code() == StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](RooflineConstants*) {}));
  EXPECT_TRUE(refused([](RooflineConstants* c) { c->target_bytes = -1; }));
  EXPECT_TRUE(refused([](RooflineConstants* c) { c->verify_s = std::numeric_limits<double>::quiet_NaN(); }));
  EXPECT_TRUE(refused([](RooflineConstants* c) { c->comm_s = std::numeric_limits<double>::infinity(); }));
  EXPECT_TRUE(refused([](RooflineConstants* c) { c->bandwidth = 0; }));
  EXPECT_TRUE(refused([](RooflineConstants* c) { c->compute = -1; }));
}

}  // namespace
}  // namespace otr
