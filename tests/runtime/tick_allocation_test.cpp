// What allocates, and what happens when an allocation fails. In a program of its own, since operator new is replaced
// (failing_new.h).
//
// A tick allocates nothing: everything is made at create, at submit, or when a request joins. A call that runs out of memory
// says so and has had no effect.

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <new>
#include <thread>

#include "tests/runtime/engine_runs.h"
#include "tests/runtime/failing_new.h"
#include "tests/runtime/process_variant.h"
#include "tests/runtime/test_engine.h"

namespace otr {
namespace {

class TickAllocation : public testing::Test {
 protected:
  TickAllocation() { is_test_thread = true; }

  // Waits until so many tokens are drawn; returns what the engine thread has allocated by then.
  static int64_t allocations_at(const TestEngine& engine, int64_t tokens) {
    while (engine.count("generated_tokens") < tokens) std::this_thread::yield();
    return engine_allocations;
  }
  static Request endless(size_t prompt, int32_t max_new_tokens, int32_t n) {
    Request r(random_tokens(1, prompt, 97));
    r.n = n;
    r.sampling.max_new_tokens = max_new_tokens;
    r.sampling.ignore_eos = 1;
    return r;
  }
  static EngineSetup roomy(const std::string& policy) {
    EngineSetup setup;
    setup.num_pages = 3000;
    setup.policy = policy;
    return setup;
  }
  // Of samples without an end: what the engine thread allocates between the first and the second number of tokens. Then they
  // are cancelled.
  static int64_t allocations_between(const TestEngine& engine, const std::vector<Request>& requests, int64_t first,
                                     int64_t second) {
    std::vector<uint64_t> groups;
    for (size_t i = 0; i < requests.size(); ++i) groups.push_back(engine.submit(requests[i], i));
    const int64_t joined = engine.count("generated_tokens");  // the first group may be far ahead of the last
    const int64_t before = allocations_at(engine, joined + first);
    const int64_t allocated = allocations_at(engine, joined + second) - before;
    EXPECT_EQ(engine.count("finished_samples"), 0);
    for (const uint64_t group : groups) otr_cancel(engine.get(), group);
    engine.collect();
    return allocated;
  }
  static std::unique_ptr<Engine> create(const EngineOptions& options) {
    Result<std::unique_ptr<Engine>> created = Engine::create(options);
    EXPECT_TRUE(created.ok()) << created.status().message();
    return created.ok() ? std::move(created.value()) : nullptr;
  }
  static EngineOptions options(const TinyModel& model, int32_t num_workers, int64_t num_pages) {
    EngineOptions o;
    o.device.num_threads = num_workers;
    o.device.target.path = model.path();
    o.device.target.kv_bytes = model.kv_bytes(num_pages * num_workers);
    o.num_workers = num_workers;
    return o;
  }
  // How many outputs are as they should be; each of the others has ended with an error.
  static int64_t survivors(const Outputs& expected, const Outputs& outputs, const std::string& where) {
    int64_t survived = 0;
    EXPECT_EQ(outputs.size(), expected.size()) << where;
    for (const auto& [key, output] : outputs) {
      const bool same = expected.contains(key) && output == expected.at(key);
      survived += same;
      EXPECT_TRUE(same || output.reason == OTR_FINISH_ERROR) << where;
    }
    return survived;
  }
};

#ifdef NDEBUG  // else every tick ends with a check of all invariants, which does allocate

TEST_F(TickAllocation, DecodingAllocatesNothing) {
  const TinyModel model({.max_position_embeddings = 8192});
  const TestEngine engine(model, roomy("off"));
  std::vector<Request> requests(2, endless(100, 8000, 8));
  requests[1].sampling.temperature = 0.7f;
  requests[1].sampling.top_p = 0.9f;
  requests[1].sampling.repetition_penalty = 1.1f;
  EXPECT_EQ(allocations_between(engine, requests, 16 * 20, 16 * 2020), 0);  // thirty pages a sample later
}

TEST_F(TickAllocation, ExpertsAllocateNothing) {
  const TinyModel model({.max_position_embeddings = 8192, .num_experts = 6});
  for (const char* policy : {"off", "fixed:self:4"}) {
    const TestEngine engine(model, roomy(policy));
    EXPECT_EQ(allocations_between(engine, {endless(100, 8000, 8)}, 8 * 40, 8 * 1500), 0) << policy;
  }
}

// Nor do drafts: chains and trees of the model itself. (ngram and history grow with what they know.)
TEST_F(TickAllocation, DraftsAllocateNothing) {
  const TinyModel model({.max_position_embeddings = 8192});
  for (const char* policy : {"fixed:self:4", "fixed:self:4:3:12"}) {
    const TestEngine engine(model, roomy(policy));
    Request r = endless(100, 8000, 8);
    r.sampling.top_k = 20;
    EXPECT_EQ(allocations_between(engine, {r}, 8 * 40, 8 * 1500), 0) << policy;
  }
}

// However many of its nodes others displace: the first roll with drafts allocates no more than the second. Before them one
// without any joins.
TEST_F(TickAllocation, TreesHaveRoomForAllThatTheyExpand) {
  const TinyModel model({.max_position_embeddings = 8192});
  EngineSetup setup;
  setup.policy = "fixed:self:32:3:64";
  const TestEngine engine(model, setup);
  engine.run({endless(20, 2, 4)});
  std::vector<int64_t> allocations;
  for (int roll = 0; roll < 2; ++roll) {
    Request r = endless(20, 150, 4);
    r.sampling.seed = static_cast<uint64_t>(roll);  // the prefix cache knows neither
    const int64_t before = engine_allocations;
    engine.run({r});
    allocations.push_back(engine_allocations - before);
  }
  EXPECT_GT(engine.stats()["speculation"]["draft_tokens"], 5000);
  EXPECT_EQ(allocations[0], allocations[1]);
}

// Nor do choosers and what they choose: the few rows that are left of a large batch get all that their drafters propose. The
// drafters' passes take next to nothing by the clock, so that drafts are deep. ngram grows when what it knows doubles: between
// two of these times nothing does.
TEST_F(TickAllocation, TheTailOfALargeBatchAllocatesNothing) {
  const TinyModel model({.max_position_embeddings = 8192});
  for (const char* policy : {"auto", "specactor", "tlt"}) {
    EngineOptions o = options(model, 1, 3000);
    o.max_batch = 600;
    o.policy = policy;
    o.pace.emplace();
    for (RoleCost& role : o.pace->target.roles) role.weights_ms = 1, role.row_ms = 1e-4;
    o.pace->drafters = {{.name = "self", .cost = o.pace->target, .dial = {}}};
    o.pace->drafters[0].cost.roles[static_cast<size_t>(CostRole::kDraft)].weights_ms = 1e-3;
    // By the time that this thread looks, the engine may be further than that on a busy machine: then another one is looked at.
    bool is_late = true;
    for (int round = 0; is_late && round < 50; ++round) {
      const std::unique_ptr<Engine> engine = create(o);
      Engine* const e = engine.get();
      ASSERT_NE(e, nullptr);
      const auto stats = [e] { return nlohmann::json::parse(e->stats_json()); };
      const auto allocations_at_tokens = [&stats](int64_t tokens) {
        while (stats()["generated_tokens"].get<int64_t>() < tokens) std::this_thread::yield();
        return engine_allocations.load();
      };
      Request r = endless(100, 8000, 2);
      r.sampling.top_k = 20;
      const uint64_t group = submit(e, r, 0);
      const int64_t before = allocations_at_tokens(2150), allocated = allocations_at_tokens(3350) - before;
      const nlohmann::json seen = stats();
      (void)e->cancel(group);  // it may be over
      collect(e);
      is_late = seen["generated_tokens"] >= 3500;
      if (is_late) continue;
      EXPECT_EQ(allocated, 0) << policy;
      EXPECT_GT(seen["speculation"]["draft_tokens"], 5000) << policy;
      EXPECT_EQ(seen["finished_samples"], 0);
    }
    EXPECT_FALSE(is_late) << policy;
  }
}

// Nor does the trace, over many of its buffers.
TEST_F(TickAllocation, TracingAllocatesNothing) {
  const TinyModel model({.max_position_embeddings = 8192});
  for (const char* policy : {"off", "fixed:self:4:3:12"}) {
    EngineSetup setup = roomy(policy);
    setup.trace_path = model.path() + "/trace.json";
    const TestEngine engine(model, setup);
    EXPECT_EQ(allocations_between(engine, {endless(100, 8000, 3)}, 3 * 600, 3 * 3000), 0) << policy;
    EXPECT_GT(std::filesystem::file_size(setup.trace_path), 300'000u);
  }
}

// Preemption and joining again allocate nothing either.
TEST_F(TickAllocation, PreemptionAllocatesNothing) {
  const TinyModel model({.max_position_embeddings = 8192});
  EngineSetup setup;
  setup.num_pages = 130;
  setup.max_batch = 8;
  const TestEngine engine(model, setup);
  const uint64_t group = engine.submit(endless(70, 8000, 8), 0);
  while (engine.count("preemptions") < 3) std::this_thread::yield();
  const int64_t before = engine_allocations, preemptions = engine.count("preemptions"),
                tokens = engine.count("generated_tokens");
  EXPECT_EQ(allocations_at(engine, tokens + 2000) - before, 0);
  EXPECT_GT(engine.count("preemptions"), preemptions);
  EXPECT_EQ(engine.count("finished_samples"), 0);
  otr_cancel(engine.get(), group);
  engine.collect();
}

#endif

// The counter can count: requests that arrive do allocate.
TEST_F(TickAllocation, ArrivingRequestsAreSeen) {
  const TinyModel model;
  const TestEngine engine(model);
  const int64_t before = engine_allocations;
  engine.run({endless(5, 5, 500)});
  EXPECT_GT(engine_allocations, before);
}

// Every allocation of the engine's thread fails once: no sample is lost, each ends well or with an error, and the engine goes
// on.
TEST_F(TickAllocation, AnEngineThreadThatRunsOutOfMemoryLosesNothing) {
  const TinyModel model;
  Request r = endless(70, 20, 4);
  r.sampling.repetition_penalty = 1.1f;
  Outputs expected;
  {
    const TestEngine engine(model);
    expected = engine.run({r, r, r});
  }
  int64_t failed = 0, survived = 0;
  for (int64_t step = 0; step < 120; ++step) {
    const int64_t limit = step / 2;
    EngineSetup setup;
    if (step % 2 == 1) setup.policy = "fixed:self+ngram+history:4:2:8";
    const TestEngine engine(model, setup);
    engine_allocations_left = limit;
    const Outputs outputs = engine.run({r, r, r});
    const bool ran_out = engine_allocations_left < 0;
    engine_allocations_left = -1;
    const int64_t right = survivors(expected, outputs, "allocation " + std::to_string(limit));
    survived += right;
    failed += static_cast<int64_t>(outputs.size()) - right;
    EXPECT_EQ(difference(expected, engine.run({r, r, r})), "") << "allocation " << limit;
    EXPECT_EQ(engine.count("kv_pages_in_use"), 0);
    if (!ran_out && step % 2 == 1) break;
  }
  EXPECT_GT(failed, 10);
  EXPECT_GT(survived, 10);
}

// Every allocation of a submit fails once: the call says so and has queued nothing.
TEST_F(TickAllocation, ASubmitThatRunsOutOfMemoryHasNoEffect) {
  const TinyModel model;
  const TestEngine engine(model);
  const Request r = endless(100, 20, 4);
  const Outputs expected = engine.run({r});
  const std::vector<int32_t> tokens = random_tokens(2, 50, 97);
  int failures = 0;
  for (int64_t limit = 0;; ++limit) {
    uint64_t group = 0;
    allocations_left = limit;
    const otr_status status = engine.try_submit(r, 0, &group);
    allocations_left = -1;
    if (status == OTR_OK) break;
    EXPECT_EQ(status, OTR_OUT_OF_MEMORY);
    EXPECT_EQ(group, 0u);
    EXPECT_EQ(engine.count("outstanding_samples"), 0) << "allocation " << limit;
    ++failures;
  }
  EXPECT_GT(failures, 10);
  EXPECT_EQ(difference(expected, engine.collect()), "");

  failures = 0;
  for (int64_t limit = 0;; ++limit) {
    otr_score_request score;
    otr_score_request_init(&score, sizeof score);
    score.token_ids = tokens.data();
    score.num_tokens = tokens.size();
    uint64_t group = 0;
    allocations_left = limit;
    const otr_status status = otr_score(engine.get(), &score, &group);
    allocations_left = -1;
    if (status == OTR_OK) break;
    EXPECT_EQ(status, OTR_OUT_OF_MEMORY);
    EXPECT_EQ(engine.count("outstanding_samples"), 0) << "allocation " << limit;
    ++failures;
  }
  EXPECT_GT(failures, 5);
  EXPECT_EQ(engine.collect().size(), 1u);
}

class OutOfMemory : public TickAllocation {
 protected:
  EngineOptions options(int32_t num_workers) const {
    EngineOptions o = TickAllocation::options(model_, num_workers, 256);
    o.max_batch = 16;
    return o;
  }
  Outputs roll(Engine* e) const {
    for (size_t i = 0; i < requests_.size(); ++i) submit(e, requests_[i], i);
    return collect(e);
  }
  // All at once, with so many allocations of the engine's threads that succeed; *failures counts the times that one more was
  // tried.
  static Outputs roll_with(
      Engine* e, const std::vector<Request>& requests, int64_t limit, int* failures,
      const std::function<void()>& begin = [] {}) {
    EXPECT_TRUE(e->pause().ok());
    for (size_t i = 0; i < requests.size(); ++i) submit(e, requests[i], i);
    engine_allocations_left = limit;
    begin();
    e->resume();
    Outputs outputs = collect(e);
    *failures += engine_allocations_left < 0;
    engine_allocations_left = -1;
    return outputs;
  }

  const TinyModel model_;
  const std::vector<Request> requests_ = [] {
    std::vector<Request> r(3, endless(70, 20, 4));
    r[1].sampling.repetition_penalty = 1.1f;
    r[2].stop_ids = {3, 5, 7};
    return r;
  }();
};

// Engines whose workers are processes: alone, with one that drafts for the other, racing, moving samples and their pages.
class ProcessesOutOfMemory : public OutOfMemory {
 protected:
  EngineOptions processes(int32_t num_workers) const {
    EngineOptions o = options(num_workers);
    o.worker_processes = true;
    o.worker_executable = OUTRIDER_WORKER;
    o.worker_timeout_ms = 20'000;
    o.max_worker_restarts = 1000;
    return o;
  }
  std::vector<EngineOptions> all_kinds() const {
    std::vector<EngineOptions> kinds = {processes(1), processes(2), processes(2), processes(2)};
    kinds[1].num_draft_workers = 1;
    kinds[1].policy = "fixed:small:4:decoupled";
    kinds[2].policy = "fixed:small+ngram:3";
    kinds[2].race = RaceMode::kLeapfrog;
    for (EngineOptions& o : kinds) o.drafters = {"small=model:" + drafter_.path()};
    kinds[3].proofs.migrate_every = 3;
    return kinds;
  }
  // Rolls again and again, and one more allocation succeeds each time before one fails. How often one did.
  int failing_rolls(const EngineOptions& o, const std::function<void()>& begin) {
    const std::unique_ptr<Engine> e = create(o);
    int failures = 0;
    const bool all = o.num_workers == 1 || std::getenv("OUTRIDER_LONG_TESTS") != nullptr;
    const int64_t share = all ? 12 : 3;  // most of what is new with several happens at the beginning
    for (int64_t limit = 0; limit < 90; limit += 1 + limit / share) {
      EXPECT_EQ(difference(expected_, roll_with(e.get(), requests_, limit, &failures, begin)), "") << "allocation " << limit;
    }
    EXPECT_EQ(difference(expected_, roll(e.get())), "");
    nlohmann::json pages;
    for (int i = 0; i < 1000 && pages != 0; ++i) {  // a replica that has lost may be told so after the last sample
      std::this_thread::sleep_for(std::chrono::milliseconds(i > 0 ? 1 : 0));
      EXPECT_TRUE(e->pause().ok());
      pages = nlohmann::json::parse(e->stats_json())["kv_pages_in_use"];
      e->resume();
    }
    EXPECT_EQ(pages, 0);
    return failures;
  }

  const TinyModel drafter_{{.hidden_size = 16, .intermediate_size = 24, .seed = 9}};
  const Outputs expected_ = roll(create(options(1)).get());
};

// Every allocation of the threads that hear worker processes fails once: what the processes have finished comes out, and the
// same.
TEST_F(ProcessesOutOfMemory, WhatTheyReportIsNotLost) {
  for (const EngineOptions& o : all_kinds()) EXPECT_GT(failing_rolls(o, [] {}), o.num_workers == 1 ? 10 : 5) << o.policy;
}

// Likewise of those that see one die: what it had goes to another, or to its successor, and that is told to all whom it
// concerns.
TEST_F(ProcessesOutOfMemory, WhatADeadOneHadIsNotLost) {
  std::vector<EngineOptions> kinds = all_kinds();
  if (std::getenv("OUTRIDER_LONG_TESTS") == nullptr) kinds.erase(kinds.begin(), kinds.begin() + 2);
  for (const EngineOptions& o : kinds) {
    const auto kill_one = [] {
      for (const pid_t pid : children()) return (void)kill(pid, SIGKILL);
    };
    EXPECT_GT(failing_rolls(o, kill_one), 5) << o.policy;
  }
}

// Where nobody is left to queue samples to: each of them fails, and once.
TEST_F(ProcessesOutOfMemory, WhatAllOfThemHadFailsOnce) {
  EngineOptions o = processes(1);
  o.keeps_checkpoints = true;
  o.max_worker_restarts = 0;
  constexpr size_t kSamples = 3;
  int failures = 0;
  for (int64_t limit = 8; limit < 44; limit += 2) {  // restoring them takes some twenty allocations, failing each a few
    const std::unique_ptr<Engine> e = create(o);
    ASSERT_TRUE(e->pause().ok());
    for (size_t i = 0; i < kSamples; ++i) submit(e.get(), endless(70, 20, 1), i);
    engine_allocations_left = limit;
    for (const pid_t pid : children()) kill(pid, SIGKILL);
    e->resume();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // nobody takes a result before the second attempt
    failures += engine_allocations_left < 0;
    engine_allocations_left = -1;
    size_t results = 0;
    for (;; ++results) {
      const auto result = e->wait(5000);
      if (!result.ok()) {
        EXPECT_EQ(result.status().code(), StatusCode::kIdle) << "allocation " << limit;
        break;
      }
      EXPECT_EQ(result.value()->finish_reason, OTR_FINISH_ERROR) << "allocation " << limit;
    }
    EXPECT_EQ(results, kSamples) << "allocation " << limit;
  }
  EXPECT_GT(failures, 5);
}

// A load that runs out of memory has taken nothing, however many groups there are.
TEST_F(OutOfMemory, ALoadIsAllOrNothing) {
  EngineOptions o = options(1);
  o.keeps_checkpoints = true;
  const std::string path = model_.path() + "/state";
  Outputs expected, some;
  {
    const std::unique_ptr<Engine> e = create(o);
    expected = roll(e.get());
    for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
    some = collect(e.get(), 3);
    ASSERT_TRUE(e->save_checkpoint(path, {}).ok());
  }
  const std::unique_ptr<Engine> e = create(o);
  int failures = 0;
  for (int64_t limit = 0;; ++limit) {
    Status loaded;
    allocations_left = limit;
    try {
      loaded = e->load_checkpoint(path);
    } catch (const std::bad_alloc&) {
      loaded = Status(StatusCode::kOutOfMemory, "");
    }
    allocations_left = -1;
    if (loaded.ok()) break;
    EXPECT_EQ(nlohmann::json::parse(e->stats_json())["outstanding_samples"], 0) << "allocation " << limit;
    EXPECT_EQ(e->wait(0).status().code(), StatusCode::kIdle) << "allocation " << limit;
    ++failures;
  }
  EXPECT_GT(failures, 50);
  some.merge(collect(e.get()));
  EXPECT_EQ(difference(expected, some), "");
  EXPECT_EQ(difference(expected, roll(e.get())), "");  // and the next groups get numbers of their own
}

// What is kept for checkpoints needs memory where samples race. Without it no checkpoint is saved any more, and no sample is
// lost.
TEST_F(OutOfMemory, ALedgerWithoutMemoryCostsCheckpointsAlone) {
  EngineOptions o = options(2);
  o.keeps_checkpoints = o.samples_stay = true;
  o.race = RaceMode::kFastestOfN;
  const std::string path = model_.path() + "/state";
  const std::unique_ptr<Engine> e = create(o);
  const Request request = endless(70, 40, 4);
  submit(e.get(), request, 0);
  const Outputs expected = collect(e.get());
  int failures = 0;
  int64_t survived = 0;
  Status saved;
  constexpr int64_t kMost = 2000;
  for (int64_t limit = 0; limit < kMost && saved.ok(); ++limit) {
    survived +=
        survivors(expected, roll_with(e.get(), {request}, limit % 100, &failures), "allocation " + std::to_string(limit));
    saved = e->save_checkpoint(path, {});
  }
  EXPECT_GT(failures, 0);
  EXPECT_GT(survived, 0);
  EXPECT_EQ(saved.code(), StatusCode::kOutOfMemory) << saved.message();
  EXPECT_NE(saved.message().find("no more checkpoints"), std::string::npos);
  submit(e.get(), request, 0);
  EXPECT_EQ(difference(expected, collect(e.get())), "");
}

// A request that a drafting worker has no memory for goes without drafts; what is opened there is closed there.
TEST_F(OutOfMemory, ADraftingWorkerLosesNothing) {
  const TinyModel drafter({.hidden_size = 16, .intermediate_size = 24, .seed = 9});
  const Outputs expected = roll(create(options(1)).get());
  EngineOptions o = options(2);
  o.num_draft_workers = 1;
  o.policy = "fixed:small:4:decoupled";
  o.drafters = {"small=model:" + drafter.path()};
  int failures = 0;
  int64_t survived = 0;
  for (int64_t limit = 0; limit < 60; ++limit) {
    const std::unique_ptr<Engine> e = create(o);
    survived += survivors(expected, roll_with(e.get(), requests_, limit, &failures), "allocation " + std::to_string(limit));
    settled_stats(*e);
  }
  EXPECT_GT(failures, 20);
  EXPECT_GT(survived, 50);  // a verifying worker that runs out of memory in a tick fails what it runs
}

// Policies that choose: whatever fails while they do costs speed, or samples that say so.
TEST_F(OutOfMemory, ChoosersLoseNothing) {
  const Outputs expected = roll(create(options(1)).get());
  for (const char* policy : {"auto", "specactor", "tlt"}) {
    EngineOptions o = options(1);
    o.policy = policy;
    RoleCost target, draft;
    target.weights_ms = 1, target.row_ms = 0.01;
    draft.weights_ms = 0.01;
    o.costs.assign(3, CostModel{{target, draft, target}, 0});
    const std::unique_ptr<Engine> e = create(o);
    int failures = 0;
    int64_t survived = 0;
    for (int64_t limit = 0; limit < 120; limit += 1 + limit / 20) {
      const Outputs outputs = roll_with(e.get(), requests_, limit, &failures);
      survived += survivors(expected, outputs, std::string(policy) + ", allocation " + std::to_string(limit));
    }
    EXPECT_GT(failures, 20) << policy;
    EXPECT_GT(survived, 100) << policy;
    EXPECT_EQ(difference(expected, roll(e.get())), "") << policy;
    settled_stats(*e);
  }
}

// Likewise every allocation that the calling thread makes in a create.
TEST_F(TickAllocation, ACreateThatRunsOutOfMemoryLeavesNothing) {
  const TinyModel model;
  otr_engine_options options;
  otr_engine_options_init(&options, sizeof options);
  options.model_path = model.path().c_str();
  options.num_threads = 1;
  options.max_batch = 4;
  options.prefill_chunk = 16;
  options.kv_bytes = model.kv_bytes(8);
  options.policy = "off";  // the cost model's fit makes ten thousands of allocations, all alike
  int failures = 0;
  for (int64_t limit = 0;; limit += 1 + limit / 50) {
    otr_engine* engine = nullptr;
    allocations_left = limit;
    const otr_status status = otr_engine_create(&options, &engine);
    allocations_left = -1;
    if (status == OTR_OK) {
      EXPECT_EQ(otr_engine_destroy(engine), OTR_OK);
      break;
    }
    EXPECT_EQ(status, OTR_OUT_OF_MEMORY) << "allocation " << limit << ": " << otr_last_error(nullptr);
    EXPECT_EQ(engine, nullptr);
    ++failures;
  }
  EXPECT_GT(failures, 50);
}

}  // namespace
}  // namespace otr
