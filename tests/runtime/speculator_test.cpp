// What a speculator tells the policy of the sequences it offers.
#include "runtime/speculator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/runtime/tiny_model.h"

namespace otr {
namespace {

constexpr int32_t kPrompt = 150, kShared = 128;  // tokens; of them on full pages

class SpeculatorBehind : public testing::Test {
 protected:
  void make(const char* policy_text, int32_t num_pages) {
    DeviceOptions d;
    d.num_threads = 1;
    d.target.path = model_.path();
    d.target.kv_bytes = model_.kv_bytes(num_pages);
    d.target.bucket = {.max_rows = 128, .max_logit_rows = 128, .max_copies = 64};
    Result<std::unique_ptr<Device>> device = Device::create(d);
    ASSERT_TRUE(device.ok()) << device.status().message();
    device_ = std::move(device.value());
    Result<Policy> policy = parse_policy(policy_text);
    ASSERT_TRUE(policy.ok());
    policy.value().drafters = {"small"};
    CostModel cost;
    for (RoleCost& role : cost.roles) role.weights_ms = 10;
    cost.roles[static_cast<size_t>(CostRole::kDraft)].weights_ms = 0.01;  // drafts pay at once
    Result<std::unique_ptr<Speculator>> s = Speculator::create({.policy = policy.value(),
                                                                .models = {{.name = "small", .path = model_.path()}},
                                                                .custom = {},
                                                                .history = {},
                                                                .profile = {},
                                                                .costs = {cost},
                                                                .max_batch = 4,
                                                                .prefill_chunk = 16,
                                                                .max_draft_rows = 64},
                                                               *device_, live_);
    ASSERT_TRUE(s.ok()) << s.status().message();
    speculator_ = std::move(s.value());
  }
  void add(uint64_t group, int32_t first_token) {
    auto s = std::make_unique<Sequence>();
    s->slot = static_cast<int32_t>(live_.size());
    s->age = live_.size();
    s->group = std::make_shared<Group>();
    s->group->id = group;
    s->group->num_prompt = kPrompt;
    for (int32_t i = 0; i < kPrompt + 2; ++i) s->tokens.push_back((first_token + i) % model_.shape().vocab_size);
    live_.push_back(std::move(s));
    speculator_->join(*live_.back());
  }
  // One tick; what the drafter is behind with, by sequence.
  std::vector<int32_t> tick(bool draft) {
    speculator_->begin_tick(live_.size());
    for (const auto& s : live_) speculator_->offer(static_cast<size_t>(s->slot), *s, 4);
    std::vector<int32_t> behind;
    for (const TickRow& row : speculator_->offered()) behind.push_back(row.behind[0]);
    if (!draft) return behind;
    speculator_->choose(static_cast<int32_t>(live_.size()), 0);
    for (const auto& s : live_) {
      if (speculator_->depth(static_cast<size_t>(s->slot)) > 0) speculator_->plan(static_cast<size_t>(s->slot), *s, 4);
    }
    speculator_->draft(64);
    return behind;
  }

  const TinyModel model_;
  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<Sequence>> live_;
  std::unique_ptr<Speculator> speculator_;
};

// The first sample of a group runs the prompt's pages for all; what was run counts no more, and what was given up counts again.
TEST_F(SpeculatorBehind, AGroupsPromptCountsOnce) {
  make("auto", 40);
  add(7, 0);
  add(7, 0);
  add(8, 5);
  add(9, 9);
  const int32_t all = kPrompt + 2 - 1, own = all - kShared;
  EXPECT_EQ(tick(true), (std::vector<int32_t>{all, own, all, all}));
  // A look drafts for the two rows with the least to run: of them only the one that may start has run, and with it the group's
  // prompt.
  const std::vector<int32_t> second = tick(true);
  EXPECT_EQ(second[1] == 0 || second[0] == 0, true);
  EXPECT_LE(second[0], own);
  EXPECT_LE(second[1], own);
  // Its pages are gone: all is to be run again.
  speculator_->leave(*live_[0]);
  speculator_->leave(*live_[1]);
  speculator_->join(*live_[0]);
  const std::vector<int32_t> again = tick(false);
  EXPECT_EQ(again[0], own) << "but for what the prefix cache holds";
}

// The next turn of a sample that has left finds what the drafter has computed of it, not of the prompt alone.
TEST_F(SpeculatorBehind, TheNextTurnFindsItsPages) {
  make("auto", 40);
  add(7, 0);
  Sequence& s = *live_[0];
  while (s.num_tokens() < 200) s.tokens.push_back(s.num_tokens() % model_.shape().vocab_size);
  EXPECT_EQ(tick(true), (std::vector<int32_t>{200 - 1}));
  EXPECT_LE(tick(false)[0], 0);
  speculator_->leave(s);
  s.group->id = 8;
  s.group->num_prompt = 200;
  speculator_->join(s);
  EXPECT_EQ(tick(false), (std::vector<int32_t>{200 - 1 - 3 * kPageTokens}));
}

TEST_F(SpeculatorBehind, OnlyAutoAsks) {
  make("fixed:small:3", 40);
  add(7, 0);
  EXPECT_EQ(tick(false), (std::vector<int32_t>{0}));
}

}  // namespace
}  // namespace otr
