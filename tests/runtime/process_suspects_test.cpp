// A sample on which every process breaks: it fails, and nothing else does.

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "tests/runtime/process_runs.h"

namespace otr {
namespace {

class ProcessSuspects : public Processes {
 protected:
  // A rollout in which processes break at position `at` of request `poison`'s samples, or of one of them. What does not come
  // there is as ever.
  void expect_failures(ProcessVariant v, uint64_t poison, int32_t at, int32_t restarts) {
    v.breaks_of_group = poison + 1;
    v.max_restarts = 3;
    v.breaks_at = at;
    SCOPED_TRACE(std::to_string(v.num_workers) + " workers, " + v.policy + ", position " + std::to_string(at));
    const Outputs outputs = run(v);
    ASSERT_EQ(outputs.size(), plain_.size());
    int32_t failed = 0;
    for (const auto& [key, output] : outputs) {
      const Output& plain = plain_.at(key);
      const size_t come = static_cast<size_t>(std::max(0, at + 1 - static_cast<int32_t>(requests_[poison].prompt.size())));
      const bool is_broken = key.first == poison && (v.breaks_of_sample < 0 || key.second == v.breaks_of_sample);
      if (!is_broken || plain.tokens.size() <= come) {
        EXPECT_EQ(difference({{key, plain}}, {{key, output}}), "");
        continue;
      }
      ++failed;
      EXPECT_EQ(output.reason, OTR_FINISH_ERROR);
      EXPECT_EQ(output.error, kBreaksProcesses);
      ASSERT_LE(output.tokens.size(), come + (v.policy == "off" ? 0 : 3));  // drafts run past the position
      EXPECT_TRUE(std::equal(output.tokens.begin(), output.tokens.end(), plain.tokens.begin()));
    }
    EXPECT_GT(failed, 0);
    EXPECT_GE(count("worker_restarts"), 3);
    EXPECT_LE(count("worker_restarts"), restarts);
    EXPECT_NE(stats_.at("last_worker_loss").get<std::string>().find("killed by signal 6"), std::string::npos);
    EXPECT_EQ(count("finished_samples"), plain_.size());
  }
};

constexpr uint64_t kPoison = 3;  // 63 tokens, of which no page is cached, and 4 samples

TEST_F(ProcessSuspects, APromptFailsWithAllItsSamples) {
  for (const int32_t num_workers : {1, 2, 3}) {
    if (kSanitized && num_workers == 3) continue;
    expect_failures({.num_workers = num_workers}, kPoison, 10, 3);
  }
  expect_failures({.policy = "fixed:small+ngram:3", .migrate_every = 3}, kPoison, 62, 3);
}

// Each sample that comes there stands a trial of its own.
TEST_F(ProcessSuspects, ASampleFailsAlone) {
  expect_failures({.num_workers = 1}, kPoison, 70, 3 * requests_[kPoison].n);
  expect_failures({.policy = "fixed:self+ngram:3", .migrate_every = 5}, kPoison, 66, 3 * requests_[kPoison].n);
}

// Its siblings, which have come as far and no further, go on.
TEST_F(ProcessSuspects, ASiblingIsNotGuilty) {
  for (const int32_t at : {63, 64, 80, 105}) {
    for (const int64_t sample : {0, 2}) {
      expect_failures({.num_workers = 1 + at % 2, .breaks_of_sample = sample}, kPoison, at, 3);
    }
  }
}

TEST_F(ProcessSuspects, FailsInRacesToo) {
  for (const RaceMode race : {RaceMode::kFastestOfN, RaceMode::kLeapfrog}) {
    for (const int32_t at : {10, 70}) {
      expect_failures({.num_workers = 3, .policy = "fixed:small+ngram:3", .race = race, .max_batch = 40}, kPoison, at,
                      6 * requests_[kPoison].n);
    }
  }
}

TEST_F(ProcessSuspects, FailsWhereOthersDraft) {
  expect_failures({.num_workers = 2, .policy = "fixed:small:4:decoupled", .num_draft_workers = 1, .delay_seed = 5}, kPoison, 70,
                  3 * requests_[kPoison].n);
}

TEST_F(ProcessSuspects, AScoreFailsAlone) {
  ProcessVariant v{.num_workers = 2, .max_restarts = 3};
  constexpr uint64_t kBroken = 7;
  v.breaks_of_group = kBroken + 1;
  v.breaks_at = 5;
  const std::unique_ptr<Engine> e = engine(v);
  ASSERT_TRUE(e->pause().ok());
  submit_scores(e.get(), requests_, plain_);
  e->resume();
  const Outputs scores = collect(e.get());
  ASSERT_EQ(scores.size(), plain_.size());
  uint64_t tag = 0;
  for (const auto& [key, output] : plain_) {
    Output wanted = output;
    wanted.reason = OTR_FINISH_SCORE;
    const Output& score = scores.at({tag, 0});
    if (tag++ == kBroken) {
      EXPECT_EQ(score.error, kBreaksProcesses);
    } else {
      EXPECT_EQ(difference({{{0, 0}, wanted}}, {{{0, 0}, score}}), "") << key.first;
    }
  }
}

// Its end is its own: whoever goes on from a checkpoint finds it, and does not break.
TEST_F(ProcessSuspects, WhatFailsIsOverInACheckpointToo) {
  const std::string path = model_.path() + "/state";
  ProcessVariant v{.num_workers = 1, .keeps_checkpoints = true, .max_restarts = 3};
  v.breaks_of_group = kPoison + 1;
  v.breaks_at = 5;
  {
    const std::unique_ptr<Engine> e = engine(v);
    ASSERT_TRUE(e->pause().ok());
    for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
    e->resume();
    const auto finished = [&] { return nlohmann::json::parse(e->stats_json())["finished_samples"].get<size_t>(); };
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (finished() < plain_.size() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    ASSERT_TRUE(e->save_checkpoint(path, {}).ok());  // nothing has been taken
  }
  const std::unique_ptr<Engine> e = engine(v);
  ASSERT_TRUE(e->load_checkpoint(path).ok());
  const Outputs outputs = collect(e.get());
  ASSERT_EQ(outputs.size(), plain_.size());
  for (const auto& [key, output] : outputs) {
    if (key.first == kPoison) {
      EXPECT_EQ(output.error, kBreaksProcesses);
    } else {
      EXPECT_EQ(difference({{key, plain_.at(key)}}, {{key, output}}), "");
    }
  }
  read_stats(e.get());
  EXPECT_EQ(count("worker_restarts"), 0);
}

// A machine on which nothing runs is no sample's fault: they are all there when it is given up.
TEST_F(ProcessSuspects, ABrokenMachineConvictsNobody) {
  ProcessVariant v{.num_workers = 1, .max_restarts = 3};
  v.breaks_of_group = 1;
  requests_.resize(1);  // its first row breaks every process
  const std::unique_ptr<Engine> e = engine(v);
  submit(e.get(), requests_[0], 0);
  const auto result = e->wait(120'000);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result.value()->engine_failed) << result.value()->error;
  EXPECT_EQ(result.value()->error.find("every worker process is lost"), 0u) << result.value()->error;
}

// At any time: nobody waits for ever.
TEST_F(ProcessSuspects, CanBeCancelledAndUpdated) {
  for (int round = 0; round < (kSanitized ? 4 : 16); ++round) {
    ProcessVariant v{.num_workers = 1 + round % 2};
    v.breaks_of_group = kPoison + 1;
    v.breaks_at = 5;
    const std::unique_ptr<Engine> e = engine(v);
    for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
    const auto restarts = [&] { return nlohmann::json::parse(e->stats_json())["worker_restarts"].get<int64_t>(); };
    while (restarts() < 1 + round % 3) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(round));
    if (round % 4 < 2) {
      EXPECT_TRUE(e->cancel(0).ok());
      const Outputs outputs = collect(e.get());
      EXPECT_EQ(outputs.size(), plain_.size());
      for (const auto& [key, output] : outputs) {
        const bool is_poison = key.first == kPoison && output.error == kBreaksProcesses;
        EXPECT_TRUE(output.reason == OTR_FINISH_ABORT || output == plain_.at(key) || is_poison);
      }
      continue;
    }
    ASSERT_TRUE(e->pause().ok());
    ASSERT_TRUE(e->begin_weights(1).ok());
    ASSERT_TRUE(e->commit_weights().ok());  // the old ones
    e->resume();
    const Outputs outputs = collect(e.get());
    EXPECT_EQ(outputs.size(), plain_.size());
    for (const auto& [key, output] : outputs) {
      if (key.first == kPoison) {
        EXPECT_EQ(output.error, kBreaksProcesses);
      } else {
        EXPECT_EQ(difference({{key, plain_.at(key)}}, {{key, output}}), "");
      }
    }
  }
}

}  // namespace
}  // namespace otr
