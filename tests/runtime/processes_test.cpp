// Workers that are processes: what they give is what one thread gives, wherever and however they end; nothing is lost, and
// nothing is left of them.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "kernels/base/descriptor.h"
#include "runtime/wire_fields.h"
#include "runtime/worker_server.h"
#include "tests/runtime/killer.h"
#include "tests/runtime/open_file_limit.h"
#include "tests/runtime/process_runs.h"

namespace otr {
namespace {

using Variant = ProcessVariant;

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

// Of a report that begins with a lie nothing behind it is believed; what it says that samples have accepted is, and some of
// these have all their tokens.
TEST_F(Processes, WhoseEndsNobodyBelievesHasEndedAllTheSame) {
  int64_t restarts = 0;
  for (int occurrence = 0; occurrence < (kSanitized ? 8 : 24); ++occurrence) {
    Variant v{.num_workers = 2};
    v.faults = {{.worker = 0, .life = 0, .step = ProtocolStep::kReport, .occurrence = occurrence, .kind = FaultKind::kLie}};
    EXPECT_EQ(difference(plain_, run(v)), "") << occurrence;
    EXPECT_GE(count("finished_samples"), plain_.size());  // such a report may have counted them already
    restarts += count("worker_restarts");
  }
  EXPECT_GT(restarts, 4);
}

class ProtocolSteps : public Processes, public testing::WithParamInterface<int> {
 protected:
  // Ten times as long as all need to be ready here and now: who hangs is waited for so long, and all others are to be in time.
  int32_t start_patience_ms() const {
    const auto began = std::chrono::steady_clock::now();
    EXPECT_NE(engine({}), nullptr);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
    return std::max(kSanitized ? 8000 : 1500, static_cast<int32_t>(10 * took.count()));
  }
};

// At every step, in every way. What a process does before it is first ready is the engine's creation, and tested below: here it
// is its successor's.
TEST_P(ProtocolSteps, CanFail) {
  const ProtocolStep step = static_cast<ProtocolStep>(GetParam());
  const bool is_at_start = step == ProtocolStep::kSetup || step == ProtocolStep::kReady;
  const bool is_long = std::getenv("OUTRIDER_LONG_TESTS") != nullptr;
  for (int kind = 0; kind < (is_long ? kNumFaultKinds : kNumFatalKinds); ++kind) {
    if (kSanitized && kind % 2 != GetParam() % 2) continue;
    Variant v{.migrate_every = 7};
    const int32_t life = is_at_start ? 1 : 0;
    if (is_at_start)
      v.faults.push_back({.worker = 1, .life = 0, .step = ProtocolStep::kTick, .occurrence = 2, .kind = FaultKind::kDie});
    v.faults.push_back({.worker = 1, .life = life, .step = step, .occurrence = 0, .kind = static_cast<FaultKind>(kind)});
    if (step == ProtocolStep::kGive)
      v.faults.push_back(v.faults.back()), v.faults.back().worker = 0;  // whoever has a queue gives
    const bool is_hang = static_cast<FaultKind>(kind) == FaultKind::kHang;
    const bool is_late = static_cast<FaultKind>(kind) == FaultKind::kLate;
    if (is_hang) v.timeout_ms = kShortTimeoutMs;
    if (is_late) v.timeout_ms = kMediumTimeoutMs;
    if (is_hang && is_at_start) v.start_timeout_ms = start_patience_ms();
    SCOPED_TRACE(text_of(v.faults));
    const int64_t least = (is_at_start ? 1 : 0) + (is_late || step == ProtocolStep::kStop ? 0 : 1);
    walk(v);
    // Whether anything is given is as the machine likes.
    for (int round = 0; step == ProtocolStep::kGive && round < 10 && count("worker_restarts") < least; ++round) walk(v);
    EXPECT_GE(count("worker_restarts"), least);
  }
}

INSTANTIATE_TEST_SUITE_P(Step, ProtocolSteps, testing::Range(0, kNumPlainSteps));

// Several workers fail, at random steps and in random ways, while samples move.
TEST_F(Processes, RandomFaultsChangeNothing) {
  const bool is_long = std::getenv("OUTRIDER_LONG_TESTS") != nullptr;
  const int rounds = is_long ? 200 : kSanitized ? 3 : 10;
  int64_t restarts = 0;
  for (int round = 0; round < rounds; ++round) {
    std::mt19937 generator(static_cast<uint32_t>(round));
    const auto random = [&generator] { return static_cast<uint32_t>(generator()); };
    Variant v{.num_workers = 1 + static_cast<int32_t>(random() % 4),
              .policy = random() % 2 == 0 ? "off" : "fixed:self+ngram:3:2:6",
              .timeout_ms = kMediumTimeoutMs};
    v.migrate_every = static_cast<int32_t>(random() % 4);
    v.seed = random();
    for (uint32_t i = 1 + random() % 5; i > 0; --i) {
      const int first = static_cast<int>(ProtocolStep::kStart);
      WorkerFault f{.worker = static_cast<int32_t>(random() % static_cast<uint32_t>(v.num_workers)),
                    .life = static_cast<int32_t>(random() % 2),
                    .step = static_cast<ProtocolStep>(first + static_cast<int>(random() % (kNumPlainSteps - first))),
                    .occurrence = static_cast<int32_t>(random() % 12),
                    .kind = static_cast<FaultKind>(random() % kNumFatalKinds)};
      v.faults.push_back(f);
    }
    SCOPED_TRACE("round " + std::to_string(round) + ": " + text_of(v.faults));
    walk(v);
    restarts += count("worker_restarts");
    if (HasFailure()) return;
  }
  EXPECT_GT(restarts, rounds / 2);
}

// A process dies in its 20th tick: what is left for its successor does not take 15. Without a bound on what is not reported, a
// small model's fast ticks are all lost.
TEST_F(Processes, LoseFewTokensOfASample) {
  Variant v{.num_workers = 1};
  for (const auto& [life, tick] : {std::pair(0, 20), std::pair(1, 15)})
    v.faults.push_back({.worker = 0, .life = life, .step = ProtocolStep::kTick, .occurrence = tick, .kind = FaultKind::kDie});
  requests_.resize(1);
  requests_[0].n = 1;
  requests_[0].sampling.max_new_tokens = 22;
  requests_[0].sampling.ignore_eos = 1;
  EXPECT_EQ(run(v).size(), 1u);
  EXPECT_EQ(count("worker_restarts"), 1);
}

// From outside, at any moment, again and again.
TEST_F(Processes, AnyoneMayKillThem) {
  for (Request& r : requests_) r.sampling.max_new_tokens *= 4;
  const Outputs plain = run({.num_workers = 1, .processes = false});
  const std::unique_ptr<Engine> e = engine({.num_workers = 3, .migrate_every = 20, .max_restarts = 1000});
  {
    const Killer killer(1, kSanitized ? 700 : 5, kSanitized ? 700 : 64);
    roll_until_one_is_lost(e.get(), plain, kSanitized ? 1 : 4);
  }
  read_stats(e.get());
  EXPECT_GT(count("worker_restarts"), 0);
}

TEST_F(Processes, WithoutWorkersRequestsFail) {
  Variant v{.max_restarts = 0};
  for (int32_t w = 0; w < 2; ++w)
    v.faults.push_back({.worker = w, .life = 0, .step = ProtocolStep::kTick, .occurrence = 3, .kind = FaultKind::kDie});
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
  for (int32_t life = 0; life < 5; ++life)
    v.faults.push_back({.worker = 1, .life = life, .step = ProtocolStep::kStart, .occurrence = 0, .kind = FaultKind::kDie});
  const std::unique_ptr<Engine> e = engine(v);
  stats_["worker_restarts"] = 0;
  for (int round = 0; round < 50 && count("worker_restarts") < 2;
       ++round) {  // its successor may come when the other has done all
    EXPECT_EQ(difference(plain_, roll(e.get())), "");
    read_stats(e.get());
  }
  EXPECT_EQ(count("worker_restarts"), 2);
  EXPECT_GT(count("requeued_samples"), 0);
  EXPECT_NE(stats_["last_worker_loss"].get<std::string>().find("worker 1: process "), std::string::npos) << stats_;
  EXPECT_NE(stats_["last_worker_loss"].get<std::string>().find("killed by signal 9"), std::string::npos) << stats_;
}

// One whose successor takes a minute to come: nothing waits for it.
TEST_F(Processes, OthersDoTheWorkOfWhoIsNotBack) {
  Variant v{.start_timeout_ms = 60'000};
  v.faults = {{.worker = 1, .life = 0, .step = ProtocolStep::kTick, .occurrence = 1, .kind = FaultKind::kDie},
              {.worker = 1, .life = 1, .step = ProtocolStep::kReady, .occurrence = 0, .kind = FaultKind::kHang}};
  const std::unique_ptr<Engine> e = engine(v);
  const auto began = std::chrono::steady_clock::now();
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
    EXPECT_EQ(difference(plain_, collect(e.get())), "");
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  EXPECT_LT(took.count(), 50);
  const auto stats = nlohmann::json::parse(e->stats_json());
  EXPECT_EQ(stats["worker_restarts"], 1);
  EXPECT_GT(stats["requeued_samples"], 0);
}

// What the system has no room for a moment it may have soon: no worker is given up for it.
TEST_F(Processes, AShortageOfAMomentIsNoFailure) {
  const std::unique_ptr<Engine> e = engine({.num_workers = 1, .max_restarts = 1});
  const auto restarts = [&e] { return nlohmann::json::parse(e->stats_json())["worker_restarts"].get<int64_t>(); };
  const pid_t pid = children().front();
  for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
  {
    const OpenFileLimit limit(0);
    kill(pid, SIGKILL);
    while (restarts() < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_NE(nlohmann::json::parse(e->stats_json())["last_worker_loss"].get<std::string>().find("Too many open files"),
              std::string::npos);
  }
  EXPECT_EQ(difference(plain_, collect(e.get())), "");
}

// What a sample was to take along is lost where the system refuses another file: it is computed anew, by whoever gets it.
TEST_F(Processes, ASampleMovesWithoutItsFileToo) {
  const std::unique_ptr<Engine> e = engine({.num_workers = 2, .migrate_every = 1});
  {
    const OpenFileLimit limit(0);
    EXPECT_EQ(difference(plain_, roll(e.get())), "");
  }
  read_stats(e.get());
  EXPECT_GT(count("migrations"), 0);
  EXPECT_EQ(count("worker_restarts"), 0);
}

// A process that is on its way begins with the pause: nobody waits for it, nor computes meanwhile.
TEST_F(Processes, APauseDoesNotWaitForWhoIsNotThere) {
  Variant v{.num_workers = 1, .start_timeout_ms = 60'000};
  v.faults = {{.worker = 0, .life = 0, .step = ProtocolStep::kTick, .occurrence = 1, .kind = FaultKind::kDie},
              {.worker = 0, .life = 1, .step = ProtocolStep::kReady, .occurrence = 0, .kind = FaultKind::kHang}};
  const std::unique_ptr<Engine> e = engine(v);
  for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
  while (nlohmann::json::parse(e->stats_json())["worker_restarts"] == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(e->pause().ok());
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
  const auto cpu_ms = [] {
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    return 1000 * (used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000;
  };
  const auto before = cpu_ms();
  e->resume();  // which has woken whoever waits for it
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(cpu_ms() - before, 250);
}

TEST_F(Processes, WhoBeginsInAPauseWaitsForItsEnd) {
  Variant v{.num_workers = 1, .timeout_ms = 4000};
  v.faults = {{.worker = 0, .life = 0, .step = ProtocolStep::kTick, .occurrence = 1, .kind = FaultKind::kDie},
              {.worker = 0, .life = 1, .step = ProtocolStep::kReady, .occurrence = 0, .kind = FaultKind::kLate}};
  const std::unique_ptr<Engine> e = engine(v);
  for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
  while (nlohmann::json::parse(e->stats_json())["worker_restarts"] == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(e->pause().ok());
  EXPECT_EQ(e->wait(3000).status().code(), StatusCode::kTimeout);
  e->resume();
  EXPECT_EQ(difference(plain_, collect(e.get())), "");
}

// A worker that dies at once, every time, does not keep the machine busy with its successors.
TEST_F(Processes, RestartsAreFurtherAndFurtherApart) {
  constexpr int32_t kRestarts = 6;
  Variant v{.num_workers = 1, .max_restarts = kRestarts};
  for (int32_t life = 0; life <= kRestarts; ++life)
    v.faults.push_back({.worker = 0, .life = life, .step = ProtocolStep::kStart, .occurrence = 0, .kind = FaultKind::kDie});
  const std::unique_ptr<Engine> e = engine(v);
  submit(e.get(), requests_[0], 0);
  const auto began = std::chrono::steady_clock::now();
  for (const auto& [key, output] : collect(e.get())) EXPECT_EQ(output.reason, OTR_FINISH_ERROR);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  EXPECT_GT(took.count(), 20 + 40 + 80 + 160 + 320);
  EXPECT_EQ(nlohmann::json::parse(e->stats_json())["worker_restarts"], kRestarts);
}

TEST_F(Processes, NewWeightsReachThem) {
  const Variant v{
      .num_workers = 3,
      .policy = "fixed:self:4:2:6",
      .migrate_every = 4,
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

// Pages that are taken back between the order to give and the report belong to others by then, who write on them: samples that
// come in the same tick are begun anew on what is free, which is these. None of that is to be sent as the given sample's.
TEST_F(Processes, PagesThatWereTakenBackAreNotSent) {
  for (Request& r : requests_) r.sampling.max_new_tokens += 150;
  const Outputs plain = run({.num_workers = 1, .processes = false});
  const RebuildOptions rebuild{.mode = RebuildMode::kTransfer, .revoke_every = 1};
  for (const int32_t migrate_every : {2, 3, 5}) {
    EXPECT_EQ(difference(plain, run({.num_workers = 3, .rebuild = rebuild, .migrate_every = migrate_every})), "");
    EXPECT_GT(count("migrations"), 20);
    EXPECT_EQ(count("worker_restarts"), 0);
  }
}

// Samples that move take their keys and values along, whole, or as much of them as a slow link brings before the rest is
// computed.
TEST_F(Processes, KeysAndValuesMoveWithTheirSample) {
  for (Request& r : requests_) r.sampling.max_new_tokens += 150;
  const Outputs plain = run({.num_workers = 1, .processes = false});
  Variant v{.num_workers = 3, .migrate_every = 12};
  for (const RebuildOptions& rebuild :
       {RebuildOptions{}, RebuildOptions{.mode = RebuildMode::kTransfer}, RebuildOptions{.link_bytes_per_second = 2e6},
        RebuildOptions{.mode = RebuildMode::kRecompute}}) {
    v.rebuild = rebuild;
    EXPECT_EQ(difference(plain, run(v)), "");
    EXPECT_GT(count("migrations"), 0);
    // Over a slow link nothing may come before all is computed.
    if (rebuild.link_bytes_per_second == 0) {
      EXPECT_EQ(count("kv_copied_tokens") == 0, rebuild.mode == RebuildMode::kRecompute);
    }
    EXPECT_EQ(count("kv_pages_leased"), 0);
  }
  // Whoever gives dies as soon as it has said so, or before.
  v.rebuild = {};
  for (const ProtocolStep step : {ProtocolStep::kReport, ProtocolStep::kReported}) {
    v.faults.clear();
    for (int32_t worker = 0; worker < 3; ++worker)
      v.faults.push_back({.worker = worker, .life = 0, .step = step, .occurrence = 20, .kind = FaultKind::kDie});
    EXPECT_EQ(difference(plain, run(v)), "");
    EXPECT_GT(count("worker_restarts"), 0);
  }
}

// What the last epoch said is what processes draft from in the next, those that take a lost one's place too.
TEST_F(Processes, TheyDraftFromHistory) {
  for (Request& r : requests_) r.sampling.temperature = 0;
  const Outputs plain = run({.num_workers = 1, .processes = false});
  const std::unique_ptr<Engine> e = engine({.num_workers = 2, .policy = "fixed:history:6"});
  EXPECT_EQ(difference(plain, roll(e.get())), "");
  read_stats(e.get());
  EXPECT_EQ(stats_["speculation"]["drafters"]["history"]["accepted"], 0);
  int64_t before = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    ASSERT_TRUE(e->history()->save(model_.path() + "/history").ok());  // waits until it is there to be drafted from
    if (epoch == 1) kill(children().front(), SIGKILL);
    EXPECT_EQ(difference(plain, roll(e.get())), "");
    EXPECT_EQ(difference(plain, roll(e.get())), "");  // by now it is loaded
    read_stats(e.get());
    const int64_t accepted = stats_["speculation"]["drafters"]["history"]["accepted"].get<int64_t>();
    EXPECT_GT(accepted, before);
    before = accepted;
  }
}

// One trace has the ticks of all, whoever dies; without a death it agrees with the counters.
TEST_F(Processes, TheirTicksAreTraced) {
  const std::string path = model_.path() + "/trace.json";
  for (const bool dies : {false, true}) {
    Variant v{.num_workers = 2, .policy = "fixed:small+ngram:3", .trace_path = path, .migrate_every = 9};
    if (dies) v.faults = {{.worker = 1, .life = 0, .step = ProtocolStep::kTrace, .occurrence = 3, .kind = FaultKind::kDie}};
    EXPECT_EQ(difference(plain_, run(v)), "");
    EXPECT_EQ(count("worker_restarts"), dies ? 1 : 0);
    std::ifstream file(path);
    const nlohmann::json trace = nlohmann::json::parse(file);
    std::map<std::string, int64_t> tokens;
    int64_t ticks = 0, samples = 0, drafted = 0;
    for (const nlohmann::json& event : trace) {
      if (event["name"] == "sample") ++samples;
      if (event["name"] != "tick") continue;
      ++ticks;
      tokens[std::to_string(event["tid"].get<int>())] += event["args"]["tokens"].get<int64_t>();
      drafted += event["args"]["drafted"].get<int64_t>();
      EXPECT_GE(event["ts"].get<double>(), 0);
    }
    EXPECT_EQ(samples, static_cast<int64_t>(plain_.size()));
    EXPECT_GT(drafted, 0);
    EXPECT_EQ(tokens.size(), 2u);
    if (dies) continue;
    EXPECT_EQ(ticks, count("ticks"));
    EXPECT_EQ(tokens["1"] + tokens["2"], count("generated_tokens"));
  }
}

// Whoever tells of ticks, or is told what to draft from, fails in every way.
TEST_F(Processes, TraceAndHistoryCanFail) {
  for (const ProtocolStep step : {ProtocolStep::kTrace, ProtocolStep::kHistory}) {
    for (int kind = 0; kind < kNumFatalKinds; ++kind) {
      if (kSanitized && kind % 3 != 0) continue;
      Variant v{.policy = "fixed:history+ngram:4", .trace_path = model_.path() + "/trace.json"};
      v.faults = {{.worker = 1, .life = 0, .step = step, .occurrence = 0, .kind = static_cast<FaultKind>(kind)}};
      if (static_cast<FaultKind>(kind) == FaultKind::kHang) v.timeout_ms = kShortTimeoutMs;
      SCOPED_TRACE(text_of(v.faults));
      const std::unique_ptr<Engine> e = engine(v);
      EXPECT_EQ(difference(plain_, roll(e.get())), "");
      ASSERT_TRUE(e->history()->save(model_.path() + "/history").ok());
      EXPECT_EQ(difference(plain_, roll(e.get())), "");
      EXPECT_EQ(difference(plain_, roll(e.get())), "");
      read_stats(e.get());
      EXPECT_GE(count("worker_restarts"), 1);
    }
  }
}

TEST_F(Processes, ScoresSurviveToo) {
  Variant v{.num_workers = 2, .migrate_every = 2};
  for (int32_t w = 0; w < 2; ++w)
    v.faults.push_back({.worker = w, .life = 0, .step = ProtocolStep::kTick, .occurrence = 2 + w, .kind = FaultKind::kDie});
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

// As above, of scores: some have all that they score, and no end.
TEST_F(Processes, ScoresWhoseEndsNobodyBelievesEndToo) {
  for (int occurrence = 0; occurrence < (kSanitized ? 4 : 12); ++occurrence) {
    Variant v{.num_workers = 2};
    v.faults = {{.worker = 0, .life = 0, .step = ProtocolStep::kReport, .occurrence = occurrence, .kind = FaultKind::kLie}};
    SCOPED_TRACE(text_of(v.faults));
    const std::unique_ptr<Engine> e = engine(v);
    submit_scores(e.get(), requests_, plain_);
    const Outputs scores = collect(e.get());
    ASSERT_EQ(scores.size(), plain_.size());
    uint64_t tag = 0;
    for (const auto& [key, output] : plain_) {
      Output wanted = output;
      wanted.reason = OTR_FINISH_SCORE;
      EXPECT_EQ(difference({{{0, 0}, wanted}}, {{{0, 0}, scores.at({tag++, 0})}}), "") << key.first;
    }
  }
}

// What the engine fails has not ended: a checkpoint has it as it was, and it ends elsewhere.
TEST_F(Processes, WhatTheEngineFailsGoesOnFromACheckpoint) {
  const std::string path = model_.path() + "/state";
  Variant v{.keeps_checkpoints = true, .max_restarts = 0};
  for (int32_t w = 0; w < 2; ++w)
    v.faults.push_back({.worker = w, .life = 0, .step = ProtocolStep::kTick, .occurrence = 3, .kind = FaultKind::kDie});
  size_t taken = 0;
  {
    const std::unique_ptr<Engine> e = engine(v);
    for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
    for (;; ++taken) {
      const auto result = e->wait(-1);
      ASSERT_TRUE(result.ok());
      if (result.value()->finish_reason != OTR_FINISH_ERROR) continue;
      EXPECT_TRUE(result.value()->engine_failed);
      ++taken;
      break;
    }
    ASSERT_TRUE(e->save_checkpoint(path, {}).ok());
  }
  const std::unique_ptr<Engine> e = engine({.keeps_checkpoints = true});
  const Status loaded = e->load_checkpoint(path);
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  const Outputs rest = collect(e.get());
  EXPECT_EQ(rest.size(), plain_.size() - taken);
  for (const auto& [key, output] : rest) EXPECT_EQ(difference({{key, plain_.at(key)}}, {{key, output}}), "");
}

// Whoever is forked from the engine's process has its sockets, and the processes end nevertheless when that is gone.
TEST_F(Processes, AForkDoesNotKeepThemAlive) {
  if (kSanitized) GTEST_SKIP() << "forks";
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const pid_t host = fork();
  if (host == 0) {
    const Result<std::unique_ptr<Engine>> e = try_engine({});
    std::vector<pid_t> pids = e.ok() ? children() : std::vector<pid_t>();
    pids.push_back(fork());
    if (pids.back() == 0) {
      pause();
      _exit(0);
    }
    (void)!write(fds[1], pids.data(), pids.size() * sizeof pids[0]);
    pause();
    _exit(0);
  }
  pid_t pids[3];
  const ssize_t told = read(fds[0], pids, sizeof pids);
  kill(host, SIGKILL);
  waitpid(host, nullptr, 0);
  ASSERT_EQ(told, static_cast<ssize_t>(sizeof pids));
  const auto is_alive = [](pid_t pid) {
    std::string state;
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    return file >> state >> state >> state && state != "Z";
  };
  EXPECT_TRUE(is_alive(pids[2]));
  int waits = 0;
  for (; (is_alive(pids[0]) || is_alive(pids[1])) && waits < 3000; ++waits)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_LT(waits, 3000);
  EXPECT_TRUE(is_alive(pids[2]));
  for (const pid_t pid : pids) kill(pid, SIGKILL);
  for (const int fd : fds) close(fd);
}

// Of another build the setup may have another form: no more than its beginning is read.
TEST(WorkerBuild, AnotherOneIsRefused) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  WorkerChannel engine{OwnedFd(fds[0])};
  WireBytes setup;
  WireWriter w(&setup);
  w.put(std::string("0.1.9 (commit 1234567)"));
  w.put(std::string("of another form"));
  engine.queue(WireType::kSetup, setup);
  ASSERT_TRUE(engine.flush().ok());
  EXPECT_EQ(serve_worker(fds[1]).code(), StatusCode::kUnsupported);
  ASSERT_TRUE(engine.fill().ok());
  WorkerChannel::Frame frame;
  ASSERT_TRUE(engine.next(&frame).value());
  ASSERT_EQ(frame.type, WireType::kFailed);
  const Status told = decode_failed(frame.payload);
  EXPECT_EQ(told.code(), StatusCode::kUnsupported);
  EXPECT_NE(told.message().find("0.1.9 (commit 1234567)"), std::string::npos) << told.message();
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
  const Status dead =
      refusal({.faults = {{.worker = 1, .life = 0, .step = ProtocolStep::kReady, .occurrence = 0, .kind = FaultKind::kDie}}});
  EXPECT_NE(dead.message().find("worker 1"), std::string::npos) << dead.message();
  const Status refused = refusal(
      {.faults = {{.worker = 0, .life = 0, .step = ProtocolStep::kReady, .occurrence = 0, .kind = FaultKind::kRefuse}}});
  EXPECT_EQ(refused.code(), StatusCode::kOutOfMemory);
}

// The system gives away the numbers of standard streams that are closed: none becomes a file of the library's.
TEST_F(Processes, AClosedStreamStaysClosed) {
  const OwnedFd input(duplicate_descriptor(STDIN_FILENO));
  close(STDIN_FILENO);
  {
    const std::unique_ptr<Engine> e = engine({.trace_path = model_.path() + "/trace"});
    EXPECT_EQ(fcntl(STDIN_FILENO, F_GETFD), -1);
    EXPECT_EQ(difference(plain_, roll(e.get())), "");
    EXPECT_EQ(fcntl(STDIN_FILENO, F_GETFD), -1);
  }
  if (input.get() >= 0) dup2(input.get(), STDIN_FILENO);
}

// An engine is destroyed in bounded time, with work under way and with processes that do not listen.
TEST_F(Processes, TheEngineMayGoAtAnyTime) {
  for (const bool hangs : {false, true}) {
    Variant v;
    if (hangs)
      v.faults.push_back({.worker = 0, .life = 0, .step = ProtocolStep::kTick, .occurrence = 1, .kind = FaultKind::kHang});
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
  const std::unique_ptr<Engine> e = engine({.num_workers = 1, .max_batch = 64});
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
