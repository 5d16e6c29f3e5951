// A drafting worker against a verifying one that the test plays: when it is silent.
#include "runtime/draft_server.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "runtime/device.h"
#include "tests/runtime/tiny_model.h"

namespace otr {
namespace {

class DraftServers : public testing::Test {
 protected:
  static constexpr int32_t kLong = kPageTokens + 6, kShort = 3, kMaxTokens = 600;

  void SetUp() override {
    DeviceOptions d;
    d.num_threads = 1;
    d.target = {
        .path = target_.path(), .num_pages = 1, .bucket = {.max_rows = 256, .max_logit_rows = 8}};  // the drafter has as many
    Result<std::unique_ptr<Device>> device = Device::create(d);
    ASSERT_TRUE(device.ok()) << device.status().message();
    device_ = std::move(device.value());
    DraftServerOptions o;
    o.tree = {.number = 0, .top_k = 1, .max_nodes = 1, .max_batch = 4, .max_draft_rows = 1, .chunk = 128};
    o.model.name = "small";
    o.model.path = drafter_.path();
    o.reconfigure_every = 0;
    Result<std::unique_ptr<DraftServer>> server = DraftServer::create(o, *device_, nullptr);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server.value());
    link_.server = link_.verifier = &bell_;
    server_->add_link(&link_);
    server_->set({.window = 4, .mode = DraftMode::kDecoupled});
  }

  void open(uint64_t name, int32_t num_prompt) {
    auto s = std::make_unique<Sequence>();
    s->group = std::make_shared<Group>();
    s->group->num_prompt = num_prompt;
    s->tokens.reserve(kMaxTokens + 1);
    s->tokens.assign(static_cast<size_t>(num_prompt), 5);
    s->max_tokens = kMaxTokens;
    s->age = name;
    link_.opened.push(std::move(s));
  }
  // One token more, found without a draft.
  static VerdictMessage verdict(uint64_t name, int32_t position, uint32_t epoch) {
    VerdictMessage v;
    v.request = name;
    v.epoch = epoch;
    v.begin = position;
    v.num_tokens = 1;
    v.tokens[0] = 7;
    return v;
  }
  // Rounds until there is nothing to do.
  int rounds() {
    int count = 0;
    while (count < 100 && server_->tick()) ++count;
    EXPECT_FALSE(server_->busy());
    return count;
  }
  // Drafts of this request; they have no tokens.
  int empty_drafts(uint64_t name) {
    int count = 0;
    for (const DraftMessage* m; (m = link_.drafts.front()) != nullptr; link_.drafts.pop()) {
      if (m->request != name) continue;
      EXPECT_EQ(m->num_tokens, 0);
      ++count;
    }
    return count;
  }

  struct SilentBell final : LinkBell {
    void ring() override {}
  };
  SilentBell bell_;
  DraftLink link_{64, 0};
  const TinyModel target_;
  const TinyModel drafter_{{.hidden_size = 16, .intermediate_size = 24, .seed = 9}};
  std::unique_ptr<Device> device_;
  std::unique_ptr<DraftServer> server_;
};

TEST_F(DraftServers, WhoFindsNoRoomIsAskedForAgainInAWhile) {
  constexpr uint64_t kName = 1, kOther = 2;
  open(kName, kLong);
  EXPECT_GT(rounds(), 1);
  EXPECT_EQ(empty_drafts(kName), 1);
  int32_t position = kLong;
  uint32_t epoch = 0;
  const auto find = [&] { link_.verdicts.push(verdict(kName, position++, ++epoch)); };
  for (int round = 0; round < 3; ++round) {
    for (int32_t token = 1; token < DraftServer::kRestTokens; ++token) {
      find();
      EXPECT_EQ(rounds(), 1);  // it is told the token
      EXPECT_EQ(empty_drafts(kName), 0);
    }
    find();
    EXPECT_GT(rounds(), 1);
    EXPECT_EQ(empty_drafts(kName), 1);
  }

  // Another's end may have made room.
  find();
  open(kOther, kShort);
  rounds();
  EXPECT_GT(server_->stats().drafted_tokens, 0);
  EXPECT_EQ(empty_drafts(kName), 0);
  VerdictMessage end = verdict(kOther, kShort, 1);
  end.ended = true;
  link_.verdicts.push(end);
  rounds();
  EXPECT_EQ(empty_drafts(kName), 1);
  EXPECT_EQ(server_->stats().closed_windows, 5);
}

// The memory of its pages may go while a request is open: it drafts on.
TEST_F(DraftServers, WhatItForgetsItComputesAnew) {
  constexpr uint64_t kName = 1;
  open(kName, kShort);
  rounds();
  const int64_t drafted = server_->stats().drafted_tokens;
  EXPECT_GT(drafted, 0);
  EXPECT_GT(server_->stats().kv_pages_in_use, 0);
  server_->forget();
  EXPECT_EQ(server_->stats().kv_pages_in_use, 0);
  link_.verdicts.push(verdict(kName, kShort, 1));
  rounds();
  EXPECT_GT(server_->stats().drafted_tokens, drafted);
  EXPECT_GT(server_->stats().kv_pages_in_use, 0);
}

}  // namespace
}  // namespace otr
