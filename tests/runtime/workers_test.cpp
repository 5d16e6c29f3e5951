// Several workers: what they give is what one gives, however samples are spread and moved.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "kernels/base/affinity.h"
#include "tests/runtime/engine_runs.h"
#include "tests/runtime/every_path.h"
#include "tests/runtime/mixed_requests.h"
#include "tests/runtime/test_engine.h"

namespace otr {
namespace {

struct WorkersVariant {
  int32_t num_workers = 1;
  std::string policy = "off";
  int32_t migrate_every = 0;
  int32_t max_batch = 64;
  int32_t chunk = 512;
  int64_t num_pages = 2048;  // of a worker
  uint32_t seed = 1;
  std::string trace_path = "";
  bool pin_threads = false;
};

std::string name_of(const WorkersVariant& v) {
  return v.policy + ", " + std::to_string(v.num_workers) + " workers, a move every " + std::to_string(v.migrate_every) +
         " ticks, batch " + std::to_string(v.max_batch);
}

class Workers : public EveryPath {
 protected:
  void SetUp() override {
    EveryPath::SetUp();
    if (std::string(GetParam()) == "cpu-scalar") requests_.resize(6);  // which is slow
  }

  std::unique_ptr<Engine> engine(const WorkersVariant& v) const {
    EngineOptions o;
    o.device.isa = GetParam();
    o.device.num_threads = v.num_workers;
    o.device.pin_threads = v.pin_threads;
    o.device.target.path = model_.path();
    o.device.target.kv_bytes = model_.kv_bytes(v.num_pages * v.num_workers);
    o.num_workers = v.num_workers;
    o.max_batch = v.max_batch;
    o.prefill_chunk = v.chunk;
    o.policy = v.policy;
    o.trace_path = v.trace_path;
    o.proofs = {.migrate_every = v.migrate_every, .migration_seed = v.seed};
    o.drafters = {"small=model:" + drafter_.path()};
    Result<std::unique_ptr<Engine>> created = Engine::create(o);
    EXPECT_TRUE(created.ok()) << created.status().message();
    return created.ok() ? std::move(created.value()) : nullptr;
  }

  Outputs run(const WorkersVariant& v) {
    const std::unique_ptr<Engine> e = engine(v);
    if (e == nullptr) return {};
    EXPECT_TRUE(e->pause().ok());  // they arrive together
    for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
    e->resume();
    Outputs outputs = collect(e.get());
    check_stats(*e, outputs);
    return outputs;
  }

  // Every page is back, and the engine's counters are its workers' sums.
  void check_stats(const Engine& e, const Outputs& outputs) {
    stats_ = nlohmann::json::parse(e.stats_json());
    EXPECT_EQ(stats_["kv_pages_in_use"], 0);
    EXPECT_EQ(stats_["finished_samples"], outputs.size());
    EXPECT_EQ(stats_["workers"].size(), stats_["num_workers"].get<size_t>());
    for (const char* key : {"ticks", "generated_tokens", "finished_samples", "preemptions", "migrations", "kv_pages_peak"}) {
      int64_t sum = 0;
      for (const nlohmann::json& worker : stats_["workers"]) sum += worker.at(key).get<int64_t>();
      EXPECT_EQ(stats_[key], sum) << key;
    }
  }
  int64_t count(const char* key) const { return stats_.at(key).get<int64_t>(); }

  const TinyModel model_{{.num_layers = 2}};
  const TinyModel drafter_{{.hidden_size = 16, .intermediate_size = 24, .seed = 9}};
  std::vector<Request> requests_ = mixed_requests(model_);
  nlohmann::json stats_;
};

TEST_P(Workers, ChangeNothing) {
  const Outputs plain = run({});
  int64_t migrations = 0;
  // Sanitizers, which make each case twenty times as long, get one in three.
  const std::vector<std::string> policies =
      kSanitized ? std::vector<std::string>{"fixed:self+ngram+history+small:4:2:10"}
                 : std::vector<std::string>{"off", "fixed:self+ngram+history+small:4:2:10", "auto"};
  for (const int32_t num_workers : {1, 2, 4}) {
    for (const int32_t migrate_every : {0, 1, 5}) {
      for (const std::string& policy : policies) {
        if (kSanitized ? migrate_every != 1 : policy == "auto" && migrate_every == 1) continue;
        const WorkersVariant v{.num_workers = num_workers, .policy = policy, .migrate_every = migrate_every};
        EXPECT_EQ(difference(plain, run(v)), "") << name_of(v);
        migrations += count("migrations");
      }
    }
  }
  EXPECT_GT(migrations, kSanitized ? 20 : 100);
}

// Each thread of several workers has a CPU of its own, as far as there are some, and the caller keeps those that it had.
TEST_P(Workers, PinnedThreadsChangeNothing) {
  requests_.resize(6);
  const Outputs plain = run({});
  const std::vector<int> before = cpu_affinity();
  ASSERT_FALSE(before.empty());
  const WorkersVariant v{.num_workers = 2, .policy = "fixed:small:3", .migrate_every = 3, .pin_threads = true};
  const std::unique_ptr<Engine> e = engine(v);
  ASSERT_NE(e, nullptr);
  for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
  EXPECT_EQ(difference(plain, collect(e.get())), "");
  EXPECT_EQ(cpu_affinity(), before);
  std::set<int> pinned;  // the CPUs of threads that have one
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::vector<int> cpus = cpu_affinity(std::stoi(task.path().filename()));
    if (cpus.size() == 1) pinned.insert(cpus[0]);
  }
  EXPECT_GE(pinned.size(), std::min<size_t>(2, before.size()));
}

TEST_P(Workers, ChangeNothingUnderPressure) {
  const Outputs plain = run({});
  int64_t pages = 1;  // what the largest request takes, and one more
  for (const Request& r : requests_) {
    pages = std::max(pages,
                     1 + (static_cast<int64_t>(r.prompt.size()) + r.sampling.max_new_tokens + kPageTokens - 1) / kPageTokens);
  }
  int64_t preemptions = 0;
  for (const char* policy : {"off", "fixed:self:4:3:12"}) {
    for (const int32_t migrate_every : {0, 3}) {
      if (kSanitized && (migrate_every == 0) == (policy == std::string("off"))) continue;
      const WorkersVariant v{
          .num_workers = 2, .policy = policy, .migrate_every = migrate_every, .chunk = 48, .num_pages = pages};
      EXPECT_EQ(difference(plain, run(v)), "") << name_of(v);
      preemptions += count("preemptions");
      const WorkersVariant few{.num_workers = 4, .policy = policy, .migrate_every = migrate_every, .max_batch = 6, .chunk = 48};
      EXPECT_EQ(difference(plain, run(few)), "") << name_of(few);
      EXPECT_LE(count("batch_peak"), 6);
    }
  }
  EXPECT_GT(preemptions, 0);
}

// One group of many samples begins at one worker; the others get some of its queue.
TEST_P(Workers, AQueueIsShared) {
  Request r(random_tokens(1, 70, model_.shape().vocab_size));
  r.n = kSanitized ? 24 : 60;
  r.sampling.max_new_tokens = 30;
  r.sampling.ignore_eos = 1;
  requests_ = {r};
  const Outputs plain = run({});
  EXPECT_EQ(difference(plain, run({.num_workers = 3, .max_batch = 12})), "");
  EXPECT_GT(count("migrations"), 0);
  for (const nlohmann::json& worker : stats_["workers"]) EXPECT_GT(worker["generated_tokens"], 0) << stats_["workers"];
}

// Two samples without an end at one worker, and a short one at the other: when that is over, one of the two moves while it
// runs.
TEST_P(Workers, WhoHasRunDryTakesWhatRuns) {
  const TinyModel endless({.max_position_embeddings = 1 << 18});
  const auto request = [](uint32_t seed, int32_t max_new_tokens) {
    Request r(random_tokens(seed, 20, 97));
    r.stream = seed;
    r.sampling.max_new_tokens = max_new_tokens;
    r.sampling.ignore_eos = 1;
    return r;
  };
  const auto moved_or_over = [](const TestEngine& engine) {
    return engine.count("migrations") > 0 || engine.count("outstanding_samples") == 0;
  };
  EngineSetup s = setup();
  s.num_workers = 2;
  s.num_pages = 2 * 4000;
  const TestEngine engine(endless, s);
  std::vector<uint64_t> groups;
  engine.submit_together([&] {  // to workers 0, 1 and 0
    groups.push_back(engine.submit(request(0, 250'000), 0));
    engine.submit(request(1, 2), 1);
    groups.push_back(engine.submit(request(2, 250'000), 2));
  });
  while (!moved_or_over(engine)) std::this_thread::yield();
  const int64_t tokens = engine.count("generated_tokens");
  while (engine.count("generated_tokens") < tokens + 50 && engine.count("outstanding_samples") > 0) std::this_thread::yield();
  for (const uint64_t group : groups) otr_cancel(engine.get(), group);
  Outputs outputs = engine.collect();
  EXPECT_EQ(engine.count("migrations"), 1);
  EXPECT_EQ(engine.count("kv_pages_in_use"), 0);
  // What the two have said until then is what they say alone.
  const TestEngine alone(endless, setup());
  for (const uint32_t tag : {0u, 2u}) {
    Output& output = outputs.at({tag, 0});
    EXPECT_EQ(output.reason, OTR_FINISH_ABORT);
    alone.submit(request(tag, static_cast<int32_t>(output.tokens.size())), tag);
    output.reason = OTR_FINISH_LENGTH;
  }
  outputs.erase({1, 0});
  EXPECT_EQ(difference(outputs, alone.collect()), "");
}

TEST_P(Workers, ScoresMoveToo) {
  const Outputs rolled = run({});
  const std::unique_ptr<Engine> e = engine({.num_workers = 3, .migrate_every = 1, .max_batch = 9, .chunk = 20});
  submit_scores(e.get(), requests_, rolled);
  const Outputs scores = collect(e.get());
  check_stats(*e, scores);
  EXPECT_GT(count("migrations"), 0);
  uint64_t tag = 0;
  for (const auto& [key, output] : rolled) {
    Output wanted = output;
    wanted.reason = OTR_FINISH_SCORE;
    EXPECT_EQ(difference({{{0, 0}, wanted}}, {{{0, 0}, scores.at({tag++, 0})}}), "") << key.first;
  }
}

// A prompt of one token is at its newest token from the beginning: it has to run all the same.
TEST_P(Workers, TheShortestPromptMovesAndEnds) {
  Request r({5});
  r.sampling.max_new_tokens = 12;
  r.sampling.ignore_eos = 1;
  requests_ = {r};
  const Outputs plain = run({});
  EXPECT_EQ(difference(plain, run({.num_workers = 3, .migrate_every = 1})), "");
  EXPECT_GT(count("migrations"), 0);
}

// Samples are cancelled wherever they are, on their way from one worker to another too; who was not cancelled has his tokens.
TEST_P(Workers, CancelAndPauseWhileSamplesMove) {
  const Outputs plain = run({});
  std::mt19937 random(3);
  size_t aborted = 0, cancelled_at_rest = 0;
  for (int round = 0; round < (kSanitized ? 2 : 8); ++round) {
    const WorkersVariant v{.num_workers = 3,
                           .policy = round % 2 == 0 ? "off" : "fixed:self:3",
                           .migrate_every = 1,
                           .seed = static_cast<uint32_t>(random())};
    const std::unique_ptr<Engine> e = engine(v);
    std::vector<uint64_t> groups;
    for (size_t i = 0; i < requests_.size(); ++i) {
      const bool at_rest = random() % 3 == 0;
      if (at_rest) {
        EXPECT_TRUE(e->pause().ok());
      }
      groups.push_back(submit(e.get(), requests_[i], i));
      if (random() % 3 == 0) (void)e->cancel(groups[random() % groups.size()]);  // it may be over
      if (at_rest) {
        if (i % 2 == 1) {
          EXPECT_TRUE(e->cancel(groups.back()).ok());
          cancelled_at_rest += static_cast<size_t>(requests_[i].n);
        }
        const nlohmann::json before = nlohmann::json::parse(e->stats_json());
        std::this_thread::yield();
        const nlohmann::json after = nlohmann::json::parse(e->stats_json());
        EXPECT_EQ(before["ticks"], after["ticks"]);
        e->resume();
      }
    }
    for (int i = 0; i < 3; ++i) (void)e->cancel(groups[random() % groups.size()]);
    const Outputs outputs = collect(e.get());
    check_stats(*e, outputs);
    EXPECT_EQ(outputs.size(), plain.size());
    for (const auto& [key, output] : outputs) {
      aborted += output.reason == OTR_FINISH_ABORT;
      if (output.reason != OTR_FINISH_ABORT) {
        EXPECT_EQ(difference({{key, plain.at(key)}}, {{key, output}}), "");
      }
    }
  }
  EXPECT_GE(aborted, cancelled_at_rest);
  EXPECT_GT(cancelled_at_rest, 0u);
}

// New weights reach every worker, and what was made of the old ones is forgotten by all.
TEST_P(Workers, AllGetNewWeights) {
  const WorkersVariant v{.num_workers = 3, .policy = "fixed:self:4:2:6", .migrate_every = 4};
  const std::unique_ptr<Engine> e = engine(v);
  const auto roll = [&] {
    for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
    return collect(e.get());
  };
  const Outputs before = roll();
  const int64_t rows = model_.shape().vocab_size, width = model_.shape().hidden_size;
  std::vector<float> lm_head(static_cast<size_t>(rows * width));
  std::mt19937 random(5);
  const int64_t shape[] = {rows, width};
  std::vector<Outputs> rolled;
  for (uint64_t version = 1; version <= 2; ++version) {
    std::generate(lm_head.begin(), lm_head.end(), [&] { return static_cast<float>(random() % 512) / 1024.0f - 0.25f; });
    ASSERT_TRUE(e->begin_weights(version).ok());
    ASSERT_TRUE(e->begin_weights(version).ok());  // once more
    ASSERT_TRUE(e->put_weight({.name = "lm_head.weight",
                               .dtype = Dtype::kF32,
                               .shape = shape,
                               .data = reinterpret_cast<const std::byte*>(lm_head.data())})
                    .ok());
    ASSERT_TRUE(e->commit_weights().ok());
    rolled.push_back(roll());
  }
  EXPECT_NE(difference(before, rolled[0]), "");
  EXPECT_NE(difference(rolled[0], rolled[1]), "");
  // The same on one worker.
  const std::unique_ptr<Engine> one = engine({});
  ASSERT_TRUE(one->begin_weights(2).ok());
  ASSERT_TRUE(one->put_weight({.name = "lm_head.weight",
                               .dtype = Dtype::kF32,
                               .shape = shape,
                               .data = reinterpret_cast<const std::byte*>(lm_head.data())})
                  .ok());
  ASSERT_TRUE(one->commit_weights().ok());
  for (size_t i = 0; i < requests_.size(); ++i) submit(one.get(), requests_[i], i);
  EXPECT_EQ(difference(collect(one.get()), rolled[1]), "");
}

// The trace has a thread for each worker, and every sample once.
TEST_P(Workers, TheTraceTellsThemApart) {
  const std::string path = model_.path() + "/trace.json";
  const Outputs outputs = run({.num_workers = 2, .policy = "fixed:self:3", .migrate_every = 5, .trace_path = path});
  std::ifstream file(path);
  const nlohmann::json events = nlohmann::json::parse(file);
  std::set<int64_t> threads;
  std::vector<int64_t> ticks(3);
  size_t samples = 0;
  int64_t tokens = 0;
  for (const nlohmann::json& e : events) {
    if (e["ph"] == "M" && e["name"] == "thread_name") threads.insert(e["tid"].get<int64_t>());
    samples += e["name"] == "sample";
    if (e["name"] != "tick") continue;
    tokens += e["args"]["tokens"].get<int64_t>();
    EXPECT_EQ(e["args"]["tick"], ticks.at(e["tid"].get<size_t>())++);
  }
  EXPECT_EQ(threads, (std::set<int64_t>{1, 2}));
  EXPECT_EQ(samples, outputs.size());
  EXPECT_EQ(tokens, count("generated_tokens"));
  EXPECT_EQ(ticks[1] + ticks[2], count("ticks"));
}

OTR_INSTANTIATE_EVERY_PATH(Workers);

// Threads, batch and pages are divided; weights are there once.
TEST(WorkersOptions, SharesAndRefusals) {
  const TinyModel model;
  const TestEngine one(model, {.num_threads = 5, .policy = "fixed:self:3"}),
      three(model, {.max_batch = 7, .num_threads = 5, .num_pages = 100, .policy = "fixed:self:3", .num_workers = 3});
  const nlohmann::json a = one.stats(), b = three.stats();
  EXPECT_EQ(b["num_workers"], 3);
  EXPECT_EQ(b["num_threads"], 5);
  EXPECT_EQ(b["kv_pages_total"], 99);
  EXPECT_EQ(b["weight_bytes"], a["weight_bytes"]);
  EXPECT_EQ(b["drafter_weight_bytes"], a["drafter_weight_bytes"]);
  Request r(random_tokens(1, 10, model.shape().vocab_size));
  r.sampling.max_new_tokens = 33 * 64 - 10;  // what a worker's pages hold, but the model's context does not
  uint64_t group = 0;
  EXPECT_EQ(three.try_submit(r, 0, &group), OTR_OK);
  EXPECT_EQ(three.collect().size(), 1u);
  const TestEngine small(model, {.num_pages = 8, .num_workers = 4});
  r.sampling.max_new_tokens = 2 * 64 - 10;
  EXPECT_EQ(small.try_submit(r, 0, &group), OTR_OK);
  r.sampling.max_new_tokens = 2 * 64 - 9;
  EXPECT_EQ(small.try_submit(r, 1, &group), OTR_NEVER_FITS);
  EXPECT_EQ(small.collect().size(), 1u);
}

}  // namespace
}  // namespace otr
