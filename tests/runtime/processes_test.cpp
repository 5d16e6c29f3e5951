// Workers that are processes: what they give is what one thread gives, wherever and however they end; nothing is lost, and nothing is
// left of them.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "tests/runtime/engine_runs.h"
#include "tests/runtime/mixed_requests.h"

namespace otr {
namespace {

struct Variant {
  int32_t num_workers = 2;
  bool processes = true;
  std::string policy = "off";
  int32_t migrate_every = 0;
  int32_t max_batch = 12;
  std::vector<WorkerFault> faults = {};
  int32_t timeout_ms = kSanitized ? 5000 : 1000;
  int32_t start_timeout_ms = 60'000;
  int32_t max_restarts = 20;
  uint32_t seed = 1;
  std::string executable = OUTRIDER_WORKER;
};

std::string text_of(const std::vector<WorkerFault>& faults) {
  std::string text;
  for (const WorkerFault& f : faults) {
    text += "worker " + std::to_string(f.worker) + " life " + std::to_string(f.life) + " step " + std::to_string(static_cast<int>(f.step)) +
            " occurrence " + std::to_string(f.occurrence) + " kind " + std::to_string(static_cast<int>(f.kind)) + "; ";
  }
  return text;
}

size_t num_open_files() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

std::vector<pid_t> children() {
  std::vector<pid_t> pids;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "children");
    for (pid_t pid; file >> pid;) pids.push_back(pid);
  }
  return pids;
}

class Processes : public testing::Test {
 protected:
  void SetUp() override {
    requests_ = mixed_requests(model_);
    requests_.resize(kSanitized ? 5 : 9);
    Request crowd(random_tokens(1, 70, model_.shape().vocab_size));  // more than one worker's batch, so that its queue is shared
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

  Result<std::unique_ptr<Engine>> try_engine(const Variant& v) const {
    EngineOptions o;
    o.device.num_threads = v.num_workers;
    o.device.target.path = model_.path();
    o.device.target.kv_bytes = model_.kv_bytes(512 * v.num_workers);
    o.num_workers = v.num_workers;
    o.max_batch = v.max_batch;
    o.policy = v.policy;
    o.drafters = {"small=model:" + drafter_.path()};
    o.proofs = {.migrate_every = v.migrate_every, .migration_seed = v.seed, .faults = v.faults};
    o.worker_processes = v.processes;
    o.worker_executable = v.executable;
    o.worker_timeout_ms = v.timeout_ms;
    o.worker_start_timeout_ms = v.start_timeout_ms;
    o.max_worker_restarts = v.max_restarts;
    return Engine::create(o);
  }
  std::unique_ptr<Engine> engine(const Variant& v) const {
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
  Outputs run(const Variant& v) {
    const std::unique_ptr<Engine> e = engine(v);
    if (e == nullptr) return {};
    Outputs outputs = roll(e.get());
    read_stats(e.get());
    return outputs;
  }
  // Once all are at rest: every page is back.
  void read_stats(Engine* e) {
    EXPECT_TRUE(e->pause().ok());
    stats_ = nlohmann::json::parse(e->stats_json());
    e->resume();
    EXPECT_EQ(stats_["kv_pages_in_use"], 0);
    for (const char* key : {"ticks", "generated_tokens", "migrations"}) {
      int64_t sum = 0;
      for (const nlohmann::json& worker : stats_["workers"]) sum += worker.at(key).get<int64_t>();
      EXPECT_EQ(stats_[key], sum) << key;
    }
  }
  int64_t count(const char* key) const { return stats_.at(key).get<int64_t>(); }

  // A rollout that takes every kind of order: pauses, moves, a cancelled group, new weights (the old ones), a second step.
  void walk(const Variant& v) {
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

TEST_F(Processes, ChangeNothing) {
  int64_t migrations = 0;
  for (const int32_t num_workers : {1, 2, 4}) {
    for (const char* policy : {"off", "fixed:self+ngram+history+small:4:2:10", "auto"}) {
      const int32_t migrate_every = policy == std::string("off") ? 1 : 4;
      const Variant v{.num_workers = num_workers, .policy = policy, .migrate_every = migrate_every};
      EXPECT_EQ(difference(plain_, run(v)), "") << policy << ", " << num_workers;
      EXPECT_EQ(count("worker_restarts"), 0);
      EXPECT_EQ(count("requeued_samples"), 0);
      EXPECT_EQ(stats_["workers"].size(), static_cast<size_t>(num_workers));
      EXPECT_EQ(count("finished_samples"), plain_.size());
      migrations += count("migrations");
    }
  }
  EXPECT_GT(migrations, 100);
}

class ProtocolSteps : public Processes, public testing::WithParamInterface<int> {};

// At every step, in every way. What a process does before it is first ready is the engine's creation, and tested below: here it is its
// successor's.
TEST_P(ProtocolSteps, CanFail) {
  const ProtocolStep step = static_cast<ProtocolStep>(GetParam());
  const bool is_at_start = step == ProtocolStep::kSetup || step == ProtocolStep::kReady;
  for (int kind = 0; kind < kNumFaultKinds; ++kind) {
    if (kSanitized && kind % 2 != GetParam() % 2) continue;
    Variant v{.migrate_every = 7};
    const int32_t life = is_at_start ? 1 : 0;
    if (is_at_start) v.faults.push_back({.worker = 1, .life = 0, .step = ProtocolStep::kTick, .occurrence = 2, .kind = FaultKind::kDie});
    v.faults.push_back({.worker = 1, .life = life, .step = step, .occurrence = 0, .kind = static_cast<FaultKind>(kind)});
    if (step == ProtocolStep::kGive) v.faults.push_back(v.faults.back()), v.faults.back().worker = 0;  // whoever has a queue gives
    const bool is_hang = static_cast<FaultKind>(kind) == FaultKind::kHang;
    if (is_hang && !kSanitized) v.timeout_ms = 300;
    v.start_timeout_ms = is_hang && is_at_start ? (kSanitized ? 8000 : 1500) : 60'000;
    SCOPED_TRACE(text_of(v.faults));
    const int64_t least = is_at_start ? 2 : step == ProtocolStep::kStop ? 0 : 1;
    walk(v);
    // Whether anything is given is as the machine likes.
    for (int round = 0; step == ProtocolStep::kGive && round < 10 && count("worker_restarts") < least; ++round) walk(v);
    EXPECT_GE(count("worker_restarts"), least);
  }
}

INSTANTIATE_TEST_SUITE_P(Step, ProtocolSteps, testing::Range(0, kNumProtocolSteps));

// Several workers fail, at random steps and in random ways, while samples move.
TEST_F(Processes, RandomFaultsChangeNothing) {
  const bool is_long = std::getenv("OUTRIDER_LONG_TESTS") != nullptr;
  const int rounds = is_long ? 200 : kSanitized ? 3 : 10;
  int64_t restarts = 0;
  for (int round = 0; round < rounds; ++round) {
    std::mt19937 generator(static_cast<uint32_t>(round));
    const auto random = [&generator] { return static_cast<uint32_t>(generator()); };
    Variant v{.num_workers = 1 + static_cast<int32_t>(random() % 4), .policy = random() % 2 == 0 ? "off" : "fixed:self+ngram:3:2:6"};
    v.migrate_every = static_cast<int32_t>(random() % 4);
    v.seed = random();
    for (uint32_t i = 1 + random() % 5; i > 0; --i) {
      const int first = static_cast<int>(ProtocolStep::kStart);
      WorkerFault f{.worker = static_cast<int32_t>(random() % static_cast<uint32_t>(v.num_workers)),
                    .life = static_cast<int32_t>(random() % 2),
                    .step = static_cast<ProtocolStep>(first + static_cast<int>(random() % (kNumProtocolSteps - first))),
                    .occurrence = static_cast<int32_t>(random() % 12),
                    .kind = static_cast<FaultKind>(random() % kNumFaultKinds)};
      v.faults.push_back(f);
    }
    SCOPED_TRACE("round " + std::to_string(round) + ": " + text_of(v.faults));
    walk(v);
    restarts += count("worker_restarts");
    if (HasFailure()) return;
  }
  EXPECT_GT(restarts, rounds / 2);
}

// From outside, at any moment, again and again.
TEST_F(Processes, AnyoneMayKillThem) {
  for (Request& r : requests_) r.sampling.max_new_tokens *= 4;
  const Outputs plain = run({.num_workers = 1, .processes = false});
  const std::unique_ptr<Engine> e = engine({.num_workers = 3, .migrate_every = 20, .max_restarts = 1000});
  std::atomic<bool> over = false;
  std::thread killer([&] {
    std::mt19937 random(1);
    while (!over) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kSanitized ? 700 : 5 + random() % 60));
      const std::vector<pid_t> pids = children();
      if (!pids.empty()) kill(pids[random() % pids.size()], SIGKILL);
    }
  });
  for (int round = 0; round < (kSanitized ? 1 : 4); ++round) EXPECT_EQ(difference(plain, roll(e.get())), "");
  over = true;
  killer.join();
  read_stats(e.get());
  EXPECT_GT(count("worker_restarts"), 0);
}

TEST_F(Processes, WithoutWorkersRequestsFail) {
  Variant v{.max_restarts = 0};
  for (int32_t w = 0; w < 2; ++w) v.faults.push_back({.worker = w, .life = 0, .step = ProtocolStep::kTick, .occurrence = 3, .kind = FaultKind::kDie});
  const std::unique_ptr<Engine> e = engine(v);
  const Outputs outputs = roll(e.get());
  EXPECT_EQ(outputs.size(), plain_.size());
  for (const auto& [key, output] : outputs) {
    if (output.reason != OTR_FINISH_ERROR) {
      EXPECT_EQ(difference({{key, plain_.at(key)}}, {{key, output}}), "");
      continue;
    }
    EXPECT_NE(output.error.find("every worker process is lost"), std::string::npos) << output.error;
    EXPECT_NE(output.error.find("killed by signal 9"), std::string::npos) << output.error;
  }
  const Result<uint64_t> refused = try_submit(e.get(), requests_[0], 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kLost);
  EXPECT_EQ(e->wait(1000).status().code(), StatusCode::kIdle);
  EXPECT_TRUE(e->pause().ok());
  e->resume();
}

// One worker that cannot be kept alive is given up, and the other one does its work.
TEST_F(Processes, AWorkerThatAlwaysFailsIsGivenUp) {
  Variant v{.max_restarts = 2};
  for (int32_t life = 0; life < 5; ++life) v.faults.push_back({.worker = 1, .life = life, .step = ProtocolStep::kStart, .occurrence = 0, .kind = FaultKind::kDie});
  EXPECT_EQ(difference(plain_, run(v)), "");
  EXPECT_EQ(count("worker_restarts"), 2);
  EXPECT_GT(count("requeued_samples"), 0);
  EXPECT_NE(stats_["last_worker_loss"].get<std::string>().find("worker 1: process "), std::string::npos) << stats_;
  EXPECT_NE(stats_["last_worker_loss"].get<std::string>().find("killed by signal 9"), std::string::npos) << stats_;
}

// A worker that dies at once, every time, does not keep the machine busy with its successors.
TEST_F(Processes, RestartsAreFurtherAndFurtherApart) {
  constexpr int32_t kRestarts = 6;
  Variant v{.num_workers = 1, .max_restarts = kRestarts};
  for (int32_t life = 0; life <= kRestarts; ++life) v.faults.push_back({.worker = 0, .life = life, .step = ProtocolStep::kStart, .occurrence = 0, .kind = FaultKind::kDie});
  const std::unique_ptr<Engine> e = engine(v);
  submit(e.get(), requests_[0], 0);
  const auto began = std::chrono::steady_clock::now();
  for (const auto& [key, output] : collect(e.get())) EXPECT_EQ(output.reason, OTR_FINISH_ERROR);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  EXPECT_GT(took.count(), 20 + 40 + 80 + 160 + 320);
  EXPECT_EQ(nlohmann::json::parse(e->stats_json())["worker_restarts"], kRestarts);
}

TEST_F(Processes, NewWeightsReachThem) {
  const Variant v{.num_workers = 3, .policy = "fixed:self:4:2:6", .migrate_every = 4,
                  .faults = {{.worker = 1, .life = 0, .step = ProtocolStep::kWeights, .occurrence = 0, .kind = FaultKind::kDie}}};
  const std::unique_ptr<Engine> processes = engine(v), threads = engine({.num_workers = 1, .processes = false});
  const int64_t rows = model_.shape().vocab_size, width = model_.shape().hidden_size;
  std::vector<float> lm_head(static_cast<size_t>(rows * width));
  const int64_t shape[] = {rows, width};
  std::mt19937 random(5);
  Outputs before = plain_;
  EXPECT_EQ(difference(before, roll(processes.get())), "");
  for (uint64_t version = 1; version <= 2; ++version) {
    std::generate(lm_head.begin(), lm_head.end(), [&] { return static_cast<float>(random() % 512) / 1024.0f - 0.25f; });
    for (Engine* e : {processes.get(), threads.get()}) {
      ASSERT_TRUE(e->begin_weights(version).ok());
      const std::byte* data = reinterpret_cast<const std::byte*>(lm_head.data());
      ASSERT_TRUE(e->put_weight({.name = "lm_head.weight", .dtype = Dtype::kF32, .shape = shape, .data = data}).ok());
      ASSERT_TRUE(e->commit_weights().ok());
    }
    const Outputs rolled = roll(processes.get());
    EXPECT_NE(difference(before, rolled), "");
    EXPECT_EQ(difference(roll(threads.get()), rolled), "");
    before = rolled;
  }
  read_stats(processes.get());
  EXPECT_EQ(count("worker_restarts"), 1);
}

TEST_F(Processes, ScoresSurviveToo) {
  Variant v{.num_workers = 2, .migrate_every = 2};
  for (int32_t w = 0; w < 2; ++w) v.faults.push_back({.worker = w, .life = 0, .step = ProtocolStep::kTick, .occurrence = 2 + w, .kind = FaultKind::kDie});
  const std::unique_ptr<Engine> e = engine(v);
  submit_scores(e.get(), requests_, plain_);
  const Outputs scores = collect(e.get());
  read_stats(e.get());
  EXPECT_GT(count("requeued_samples"), 0);
  uint64_t tag = 0;
  for (const auto& [key, output] : plain_) {
    Output wanted = output;
    wanted.reason = OTR_FINISH_SCORE;
    EXPECT_EQ(difference({{{0, 0}, wanted}}, {{{0, 0}, scores.at({tag++, 0})}}), "") << key.first;
  }
}

TEST_F(Processes, WhatCannotServeIsRefusedAtCreate) {
  const auto refusal = [this](const Variant& v) {
    const auto created = try_engine(v);
    EXPECT_FALSE(created.ok());
    return created.ok() ? Status() : created.status();
  };
  EXPECT_EQ(refusal({.executable = ""}).code(), StatusCode::kInvalidArgument);
  const Status missing = refusal({.executable = "/nonexistent/worker"});
  EXPECT_NE(missing.message().find("/nonexistent/worker"), std::string::npos) << missing.message();
  const Status stranger = refusal({.executable = "/bin/false"});
  EXPECT_EQ(stranger.code(), StatusCode::kLost);
  EXPECT_NE(stranger.message().find("exited with status 1"), std::string::npos) << stranger.message();
  const Status dead = refusal({.faults = {{.worker = 1, .life = 0, .step = ProtocolStep::kReady, .occurrence = 0, .kind = FaultKind::kDie}}});
  EXPECT_NE(dead.message().find("worker 1"), std::string::npos) << dead.message();
  const Status refused = refusal({.faults = {{.worker = 0, .life = 0, .step = ProtocolStep::kReady, .occurrence = 0, .kind = FaultKind::kRefuse}}});
  EXPECT_EQ(refused.code(), StatusCode::kOutOfMemory);
}

// An engine is destroyed in bounded time, with work under way and with processes that do not listen.
TEST_F(Processes, TheEngineMayGoAtAnyTime) {
  for (const bool hangs : {false, true}) {
    Variant v;
    if (hangs) v.faults.push_back({.worker = 0, .life = 0, .step = ProtocolStep::kTick, .occurrence = 1, .kind = FaultKind::kHang});
    v.timeout_ms = 100'000;
    const std::unique_ptr<Engine> e = engine(v);
    for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const auto began = std::chrono::steady_clock::now();
    e->shutdown();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    EXPECT_LT(took.count(), kSanitized ? 20 : 8);
  }
}

// A process that does not read for a while: what the socket does not take waits in the engine, and nothing of it is lost.
TEST_F(Processes, AFullSocketHoldsTheRestBack) {
  constexpr size_t kGroups = 700, kPrompt = 900;  // 2.5 MB of orders: more than a socket and the queue before it hold
  Request request(random_tokens(3, kPrompt, model_.shape().vocab_size));
  request.sampling.max_new_tokens = 2;
  requests_.assign(kSanitized ? kGroups / 2 : kGroups, request);
  for (size_t i = 0; i < requests_.size(); ++i) requests_[i].stream = i;
  const Outputs plain = run({.num_workers = 1, .processes = false, .max_batch = 64});
  const std::unique_ptr<Engine> e = engine({.num_workers = 1, .max_batch = 64, .timeout_ms = 60'000});
  const std::vector<pid_t> pids = children();
  ASSERT_EQ(pids.size(), 1u);
  ASSERT_EQ(kill(pids[0], SIGSTOP), 0);
  for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(e->wait(0).status().code() == StatusCode::kTimeout);
  ASSERT_EQ(kill(pids[0], SIGCONT), 0);
  EXPECT_EQ(difference(plain, collect(e.get())), "");
  read_stats(e.get());
  EXPECT_EQ(count("worker_restarts"), 0);
}

}  // namespace
}  // namespace otr
