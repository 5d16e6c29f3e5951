// A test of engines whose workers are processes: its requests, what one thread makes of them, and that nothing is left behind.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/engine_runs.h"
#include "tests/runtime/mixed_requests.h"
#include "tests/runtime/variant_engine.h"

namespace otr {

class Processes : public testing::Test {
 protected:
  void SetUp() override {
    requests_ = mixed_requests(model_);
    requests_.resize(kSanitized ? 5 : 9);
    Request crowd(
        random_tokens(1, 70, model_.shape().vocab_size));  // more than one worker's batch, so that its queue is shared
    crowd.n = 16;
    crowd.sampling.max_new_tokens = 20;
    crowd.sampling.ignore_eos = 1;
    requests_.push_back(crowd);
    plain_ = run({.num_workers = 1, .processes = false});
    open_files_ = num_open_files();
  }
  // No process is left, no zombie, and no file.
  void TearDown() override {
    EXPECT_EQ(children(), std::vector<pid_t>());
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
    EXPECT_EQ(num_open_files(), open_files_);
  }

  Result<std::unique_ptr<Engine>> try_engine(const ProcessVariant& v) const {
    return Engine::create(variant_options(v, "auto", model_, drafter_, 512));
  }
  std::unique_ptr<Engine> engine(const ProcessVariant& v) const {
    Result<std::unique_ptr<Engine>> created = try_engine(v);
    EXPECT_TRUE(created.ok()) << created.status().message();
    return created.ok() ? std::move(created.value()) : nullptr;
  }

  Outputs roll(Engine* e) const {
    EXPECT_TRUE(e->pause().ok());
    for (size_t i = 0; i < requests_.size(); ++i) submit(e, requests_[i], i);
    e->resume();
    return collect(e);
  }
  Outputs run(const ProcessVariant& v) {
    const std::unique_ptr<Engine> e = engine(v);
    if (e == nullptr) return {};
    Outputs outputs = roll(e.get());
    read_stats(e.get());
    return outputs;
  }
  // Once all are at rest: every page is back.
  void read_stats(Engine* e) {
    for (int i = 0; i < 1000; ++i) {  // replicas that have lost, and pages that were lent, may be told so after the last sample
      EXPECT_TRUE(e->pause().ok());
      stats_ = nlohmann::json::parse(e->stats_json());
      e->resume();
      int64_t racing = 0;
      for (const nlohmann::json& w : stats_["workers"])
        racing += w["replicas"].get<int64_t>() - w["lost_replicas"].get<int64_t>();
      const bool restarted = stats_["worker_restarts"].is_number() &&
                             stats_["worker_restarts"] > 0;  // then replicas are counted as far as is known
      if (stats_["kv_pages_in_use"] == 0 && stats_["kv_pages_leased"] == 0 && (racing <= 0 || restarted)) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(stats_["kv_pages_in_use"], 0);
    EXPECT_EQ(stats_["kv_pages_leased"], 0);
    for (const char* key : {"ticks", "generated_tokens", "migrations"}) {
      int64_t sum = 0;
      for (const nlohmann::json& worker : stats_["workers"]) sum += worker.at(key).get<int64_t>();
      EXPECT_EQ(stats_[key], sum) << key;
    }
  }
  int64_t count(const char* key) const { return stats_.at(key).get<int64_t>(); }

  // So many rollouts, while somebody kills workers; and as many more as it takes until somebody was hit.
  void roll_until_one_is_lost(Engine* e, const Outputs& plain, int rounds) const {
    const auto restarts = [e] { return nlohmann::json::parse(e->stats_json())["worker_restarts"].get<int64_t>(); };
    for (int round = 0; round < rounds || (restarts() == 0 && round < 100); ++round) EXPECT_EQ(difference(plain, roll(e)), "");
  }

  // A rollout that takes every kind of order: pauses, moves, a cancelled group, new weights (the old ones), a second step.
  void walk(const ProcessVariant& v) {
    const auto began = std::chrono::steady_clock::now();
    {
      const std::unique_ptr<Engine> e = engine(v);
      ASSERT_NE(e, nullptr);
      Request endless(random_tokens(5, 30, model_.shape().vocab_size));
      endless.sampling.max_new_tokens = 900;
      endless.sampling.ignore_eos = 1;
      endless.n = 2;
      constexpr uint64_t kEndless = 1000;
      ASSERT_TRUE(e->pause().ok());
      const uint64_t cancelled = submit(e.get(), endless, kEndless);
      for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
      e->resume();
      EXPECT_TRUE(e->cancel(cancelled).ok());
      Outputs first = collect(e.get());
      for (uint32_t sample = 0; sample < 2; ++sample) {
        EXPECT_EQ(first[std::pair(kEndless, sample)].reason, OTR_FINISH_ABORT);
        first.erase({kEndless, sample});
      }
      EXPECT_EQ(difference(plain_, first), "");
      ASSERT_TRUE(e->begin_weights(1).ok());
      ASSERT_TRUE(e->commit_weights().ok());
      EXPECT_EQ(difference(plain_, roll(e.get())), "");
      read_stats(e.get());
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    EXPECT_LT(took.count(), kSanitized ? 120 : 30);
  }

  const TinyModel model_{{.num_layers = 2}};
  const TinyModel drafter_{{.hidden_size = 16, .intermediate_size = 24, .seed = 9}};
  std::vector<Request> requests_;
  Outputs plain_;
  nlohmann::json stats_;
  size_t open_files_ = 0;
};

}  // namespace otr
