// Decoupled speculation: drafts come from other workers, and nothing but time changes.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "runtime/draft_roles.h"
#include "tests/runtime/engine_runs.h"
#include "tests/runtime/every_path.h"

namespace otr {
namespace {

struct DecoupledVariant {
  int32_t num_workers = 2, num_draft_workers = 1;
  std::string policy = "fixed:small:4:decoupled";
  int32_t migrate_every = 0;
  int32_t max_batch = 64;
  int32_t chunk = 512;
  int64_t num_pages = 2048;  // of a worker
  uint32_t seed = 1;
  uint32_t delay_seed = 0;
  bool same_model = false;    // the drafter is the target itself
  int32_t link_capacity = 0;  // messages that wait between two workers; 0: as many as there may be
};

std::string name_of(const DecoupledVariant& v) {
  return v.policy + ", " + std::to_string(v.num_workers) + " workers, of them " + std::to_string(v.num_draft_workers) +
         " draft, a move every " + std::to_string(v.migrate_every) + " ticks, delays " + std::to_string(v.delay_seed);
}

class Decoupled : public EveryPath {
 protected:
  void SetUp() override {
    EveryPath::SetUp();
    if (std::string(GetParam()) == "cpu-scalar") requests_.resize(6);  // which is slow
  }

  EngineOptions options(const DecoupledVariant& v) const {
    EngineOptions o;
    o.device.isa = GetParam();
    o.device.num_threads = v.num_workers;
    o.device.target.path = model_.path();
    o.device.target.kv_bytes = model_.kv_bytes(v.num_pages * v.num_workers);
    o.num_workers = v.num_workers;
    o.num_draft_workers = v.num_draft_workers;
    o.max_batch = v.max_batch;
    o.prefill_chunk = v.chunk;
    o.policy = v.policy;
    o.proofs = {.migrate_every = v.migrate_every,
                .migration_seed = v.seed,
                .delay_seed = v.delay_seed,
                .link_capacity = v.link_capacity};
    o.drafters = {"small=model:" + (v.same_model ? model_ : drafter_).path()};
    return o;
  }
  std::unique_ptr<Engine> engine(const DecoupledVariant& v) const {
    Result<std::unique_ptr<Engine>> created = Engine::create(options(v));
    EXPECT_TRUE(created.ok()) << created.status().message();
    return created.ok() ? std::move(created.value()) : nullptr;
  }

  Outputs run(const DecoupledVariant& v) {
    const std::unique_ptr<Engine> e = engine(v);
    if (e == nullptr) return {};
    EXPECT_TRUE(e->pause().ok());  // they arrive together
    for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
    e->resume();
    Outputs outputs = collect(e.get());
    stats_ = settled_stats(*e);
    EXPECT_EQ(stats_["finished_samples"], outputs.size());
    return outputs;
  }
  int64_t count(const char* key) const { return stats_.at(key).get<int64_t>(); }
  int64_t drafting(const char* key) const { return drafting_sum(stats_, key); }
  int64_t sum(const char* key) const {
    int64_t total = 0;
    for (const nlohmann::json& w : stats_["workers"]) total += w.value(key, int64_t{0});
    return total;
  }

  const TinyModel model_{{.num_layers = 2}};
  const TinyModel drafter_{{.hidden_size = 16, .intermediate_size = 24, .seed = 9}};
  std::vector<Request> requests_ = mixed_requests(model_);
  nlohmann::json stats_;
};

// 8 workers of 6 samples each: one drafts for 7, of three one for at most 2; and no more than there are rows of logits.
TEST(DraftRoles, ALevelIsForEveryoneWhomAWorkerDraftsFor) {
  WorkerOptions w;
  w.num_workers = 8;
  w.max_batch = 6;
  w.max_draft_rows = 96;
  EXPECT_EQ(draft_server_options(w, {}, 1).tree.max_batch, 42);
  EXPECT_EQ(draft_server_options(w, {}, 3).tree.max_batch, 12);
  w.max_batch = 64;
  EXPECT_EQ(draft_server_options(w, {}, 1).tree.max_batch, 64 + 96 - 1);
}

TEST_P(Decoupled, ChangesNothing) {
  const Outputs plain = run({.num_workers = 1, .num_draft_workers = 0, .policy = "off"});
  int64_t migrations = 0, drafted = 0;
  for (const int32_t num_workers : {2, 4}) {
    for (const int32_t migrate_every : {0, 5}) {
      for (const uint32_t delay_seed : {0u, 7u}) {
        if (kSanitized && (migrate_every == 0) != (num_workers == 2)) continue;
        const std::string policy = num_workers == 2 ? "fixed:small:4:decoupled" : "fixed:ngram+small+self:7:decoupled";
        const DecoupledVariant v{.num_workers = num_workers,
                                 .num_draft_workers = num_workers == 4 && delay_seed == 0 ? 2 : 1,
                                 .policy = policy,
                                 .migrate_every = migrate_every,
                                 .delay_seed = delay_seed};
        EXPECT_EQ(difference(plain, run(v)), "") << name_of(v);
        migrations += count("migrations");
        EXPECT_GT(drafting("requests"), 0) << name_of(v);
        drafted += drafting("drafted_tokens");
        const int64_t window = policy.back() == '4' ? 4 : 7;
        EXPECT_LE(drafting("wasted_tokens"), (2 * window - 1) * drafting("rollbacks")) << name_of(v);
      }
    }
  }
  EXPECT_GT(migrations, 0);
  EXPECT_GT(drafted, 0);
}

// Queues that hold a message or two: what finds no room is kept and goes later, and neither side waits for the other for ever.
TEST_P(Decoupled, FullQueuesChangeNothing) {
  const Outputs plain = run({.num_workers = 1, .num_draft_workers = 0, .policy = "off"});
  int64_t full_drafts = 0, full_verdicts = 0, ticks = 0;
  for (const int32_t capacity : {1, 2}) {
    for (const uint32_t delay_seed : {0u, 5u}) {
      if (kSanitized && (capacity == 1) != (delay_seed == 0)) continue;
      const DecoupledVariant v{.num_workers = 3,
                               .migrate_every = capacity == 1 ? 0 : 6,
                               .delay_seed = delay_seed,
                               .same_model = delay_seed == 0,
                               .link_capacity = capacity};
      EXPECT_EQ(difference(plain, run(v)), "") << name_of(v) << ", queues of " << capacity;
      EXPECT_GT(drafting("requests"), capacity) << name_of(v);
      EXPECT_GT(drafting("drafted_tokens"), 0) << name_of(v);
      // Else it would be no test of full queues.
      EXPECT_GT(drafting("full_links") + sum("full_links"), 0) << name_of(v) << ", queues of " << capacity;
      full_drafts += drafting("full_links");
      full_verdicts += sum("full_links");
      ticks += sum("ticks");
    }
  }
  EXPECT_GT(full_drafts, 0);
  EXPECT_GT(full_verdicts, 0);
  // Who waits for room sleeps: 5 to 20 vain looks a tick; 3,000 to 9,000 without that.
  if (!kSanitized) {
    EXPECT_LT(full_verdicts, 300 * ticks);
  }
}

// A worker that drafts in one step and verifies in the next: the same samples, and neither weights nor pages come or go with
// the role.
TEST_P(Decoupled, RolesChangeFromStepToStep) {
  const Outputs plain = run({.num_workers = 1, .num_draft_workers = 0, .policy = "off"});
  EngineOptions o = options({.num_workers = 3});
  o.proofs.alternate_roles = true;
  const Result<std::unique_ptr<Engine>> created = Engine::create(o);
  ASSERT_TRUE(created.ok()) << created.status().message();
  Engine* const e = created.value().get();
  const auto held = [](const nlohmann::json& s) {
    return std::vector<int64_t>{s.at("weight_bytes"),      s.at("drafter_weight_bytes"), s.at("weight_bytes_written"),
                                s.at("converted_tensors"), s.at("activation_bytes"),     s.at("kv_pages_total")};
  };
  const nlohmann::json first = nlohmann::json::parse(e->stats_json());
  bool decoupled = first["decoupled"];
  for (int step = 0; step < 4; ++step) {
    const nlohmann::json before = nlohmann::json::parse(e->stats_json());
    EXPECT_EQ(before["decoupled"], decoupled);
    ASSERT_TRUE(e->pause().ok());  // one step: a request that ends before the next comes would be one of its own
    for (size_t i = 0; i < requests_.size(); ++i) submit(e, requests_[i], i);
    e->resume();
    EXPECT_EQ(difference(plain, collect(e)), "") << "step " << step;
    const nlohmann::json after = settled_stats(*e);
    const auto grown = [&](const char* key) {
      return after["workers"][0].at(key).get<int64_t>() - before["workers"][0].at(key).get<int64_t>();
    };
    const int64_t drafted = drafting_sum(after, "drafted_tokens") - drafting_sum(before, "drafted_tokens");
    EXPECT_EQ(drafted > 0, decoupled) << "step " << step;
    EXPECT_EQ(grown("generated_tokens") > 0, !decoupled) << "step " << step;
    EXPECT_EQ(held(after), held(first));
    decoupled = !decoupled;
  }
  // What was held is what was written, once; and a tensor that is put is seen to be.
  EXPECT_EQ(first["weight_bytes_written"], first["weight_bytes"].get<int64_t>() + first["drafter_weight_bytes"].get<int64_t>());
  const std::vector<float> norm(static_cast<size_t>(model_.shape().hidden_size), 1.0f);
  const int64_t shape[] = {model_.shape().hidden_size};
  ASSERT_TRUE(e->begin_weights(1).ok());
  ASSERT_TRUE(e->put_weight({.name = "model.norm.weight",
                             .dtype = Dtype::kF32,
                             .shape = shape,
                             .data = reinterpret_cast<const std::byte*>(norm.data())})
                  .ok());
  ASSERT_TRUE(e->commit_weights().ok());
  EXPECT_EQ(nlohmann::json::parse(e->stats_json())["weight_bytes_written"],
            first["weight_bytes_written"].get<int64_t>() + static_cast<int64_t>(norm.size() * sizeof(float)));
}

// A drafter that is never wrong: windows are kept whole, and its drafts are what the target verifies.
TEST_P(Decoupled, DraftsAreVerified) {
  requests_.resize(3);
  for (Request& r : requests_) r.sampling.max_new_tokens = 400, r.sampling.ignore_eos = 1, r.stop_ids.clear();
  const Outputs plain = run({.num_workers = 1, .num_draft_workers = 0, .policy = "off"});
  const DecoupledVariant v{.same_model = true};
  EXPECT_EQ(difference(plain, run(v)), "");
  const nlohmann::json& small = stats_["speculation"]["drafters"]["small"];
  EXPECT_GT(small["accepted"], 0);
  EXPECT_EQ(small["accepted"], small["drafted"]);
  EXPECT_EQ(drafting("rollbacks"), 0);
  EXPECT_EQ(drafting("wasted_tokens"), 0);
  EXPECT_GT(drafting("kept_tokens"), count("generated_tokens") / 3);
}

TEST_P(Decoupled, ChangesNothingUnderPressure) {
  const Outputs plain = run({.num_workers = 1, .num_draft_workers = 0, .policy = "off"});
  int64_t pages = 1;  // what the largest request takes, and one more
  for (const Request& r : requests_) {
    pages = std::max(pages,
                     1 + (static_cast<int64_t>(r.prompt.size()) + r.sampling.max_new_tokens + kPageTokens - 1) / kPageTokens);
  }
  int64_t preemptions = 0;
  for (const bool same_model : {false, true}) {
    const DecoupledVariant v{.migrate_every = same_model ? 3 : 0, .chunk = 48, .num_pages = pages, .same_model = same_model};
    EXPECT_EQ(difference(plain, run(v)), "") << name_of(v);
    preemptions += count("preemptions");
    const DecoupledVariant few{.num_workers = 4, .max_batch = 6, .chunk = 48, .delay_seed = 3, .same_model = same_model};
    EXPECT_EQ(difference(plain, run(few)), "") << name_of(few);
  }
  EXPECT_GT(preemptions, 0);
}

TEST_P(Decoupled, CancelAndPause) {
  const Outputs plain = run({.num_workers = 1, .num_draft_workers = 0, .policy = "off"});
  std::mt19937 random(3);
  size_t aborted = 0;
  for (int round = 0; round < (kSanitized ? 2 : 6); ++round) {
    const DecoupledVariant v{.num_workers = 3,
                             .migrate_every = round % 2 == 0 ? 0 : 3,
                             .seed = static_cast<uint32_t>(random()),
                             .delay_seed = round % 3 == 0 ? 11u : 0u,
                             .same_model = round % 2 == 0};
    const std::unique_ptr<Engine> e = engine(v);
    std::vector<uint64_t> groups;
    for (size_t i = 0; i < requests_.size(); ++i) {
      const bool at_rest = random() % 3 == 0;
      if (at_rest) {
        EXPECT_TRUE(e->pause().ok());
      }
      groups.push_back(submit(e.get(), requests_[i], i));
      if (random() % 3 == 0) (void)e->cancel(groups[random() % groups.size()]);  // it may be over
      if (at_rest) e->resume();
    }
    const Outputs outputs = collect(e.get());
    EXPECT_EQ(outputs.size(), plain.size());
    for (const auto& [key, output] : outputs) {
      aborted += output.reason == OTR_FINISH_ABORT;
      if (output.reason != OTR_FINISH_ABORT) {
        EXPECT_EQ(difference({{key, plain.at(key)}}, {{key, output}}), "");
      }
    }
    settled_stats(*e);
  }
  EXPECT_GT(aborted, 0u);
}

// New weights: what was drafted for the old ones is over, and the next step's drafts are judged by the new.
TEST_P(Decoupled, NewWeights) {
  const std::unique_ptr<Engine> one = engine({.num_workers = 1, .num_draft_workers = 0, .policy = "off"});
  const std::unique_ptr<Engine> two = engine({.same_model = true});
  const int64_t rows = model_.shape().vocab_size, width = model_.shape().hidden_size;
  std::vector<float> lm_head(static_cast<size_t>(rows * width));
  std::mt19937 random(5);
  std::generate(lm_head.begin(), lm_head.end(), [&] { return static_cast<float>(random() % 512) / 1024.0f - 0.25f; });
  const int64_t shape[] = {rows, width};
  std::vector<Outputs> rolled;
  for (Engine* e : {one.get(), two.get()}) {
    for (const bool updates : {true, false}) {
      for (size_t i = 0; i < requests_.size(); ++i) submit(e, requests_[i], i);
      rolled.push_back(collect(e));
      if (!updates) break;
      ASSERT_TRUE(e->begin_weights(1).ok());
      ASSERT_TRUE(e->put_weight({.name = "lm_head.weight",
                                 .dtype = Dtype::kF32,
                                 .shape = shape,
                                 .data = reinterpret_cast<const std::byte*>(lm_head.data())})
                      .ok());
      ASSERT_TRUE(e->commit_weights().ok());
    }
  }
  EXPECT_NE(difference(rolled[0], rolled[1]), "");
  EXPECT_EQ(difference(rolled[0], rolled[2]), "");
  EXPECT_EQ(difference(rolled[1], rolled[3]), "");
}

// The policies that plan: whatever is decided, the outputs are the same, and the decision is told.
TEST_P(Decoupled, PlannedPolicies) {
  const Outputs plain = run({.num_workers = 1, .num_draft_workers = 0, .policy = "off"});
  for (const char* policy : {"specactor", "auto"}) {
    // A target whose passes take long beside the drafter's, then one as quick: the first decouples.
    for (const double draft_ms : {0.05, 1.0}) {
      EngineOptions o = options({.policy = policy});
      RoleCost target, draft;
      target.weights_ms = 1, target.row_ms = 0.2;
      draft.weights_ms = draft_ms, draft.row_ms = draft_ms / 20;
      o.costs.assign(std::string(policy) == "auto" ? 4 : 5, CostModel{{target, draft, target}, 0});
      Result<std::unique_ptr<Engine>> created = Engine::create(o);
      ASSERT_TRUE(created.ok()) << created.status().message();
      Engine* const e = created.value().get();
      const nlohmann::json before = nlohmann::json::parse(e->stats_json());
      EXPECT_NE(before["plan"].get<std::string>().find("Chosen: "), std::string::npos) << before;
      for (int step = 0; step < 2; ++step) {
        for (size_t i = 0; i < requests_.size(); ++i) submit(e, requests_[i], i);
        EXPECT_EQ(difference(plain, collect(e)), "") << policy << " " << before["plan"];
      }
      const nlohmann::json stats = settled_stats(*e);
      EXPECT_TRUE(!before["decoupled"].get<bool>() || drafting_sum(stats, "requests") > 0) << stats;
    }
  }
}

OTR_INSTANTIATE_EVERY_PATH(Decoupled);

TEST(DecoupledOptions, Refusals) {
  const TinyModel model, drafter({.hidden_size = 16, .intermediate_size = 24, .seed = 9});
  const auto refused = [&](const std::string& policy, int32_t workers, int32_t drafting, const std::string& why) {
    EngineOptions o;
    o.device.target.path = model.path();
    o.device.target.kv_bytes = model.kv_bytes(64);
    o.device.num_threads = workers;
    o.policy = policy;
    o.num_workers = workers;
    o.num_draft_workers = drafting;
    o.drafters = {"small=model:" + drafter.path(), "other=model:" + drafter.path()};
    const Result<std::unique_ptr<Engine>> created = Engine::create(o);
    ASSERT_FALSE(created.ok()) << policy;
    EXPECT_EQ(created.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(created.status().message().find(why), std::string::npos) << created.status().message();
  };
  refused("fixed:small:4:decoupled", 2, 0, "needs num_draft_workers");
  refused("fixed:small:4:decoupled", 2, 2, "half of num_workers");
  refused("fixed:small:4", 2, 1, "lets no worker draft");
  refused("rhymerl", 2, 1, "lets no worker draft");
  refused("fixed:self:4:decoupled", 2, 1, "shares the target's pages");
  refused("fixed:small+other:4:decoupled", 2, 1, "one drafter");
}

}  // namespace
}  // namespace otr
