// Speculation changes nothing: whatever is drafted, and by whom, the samples are those of plain decoding, to the last bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "kernels/linear/linear_epilogue.h"
#include "tests/runtime/engine_runs.h"
#include "tests/runtime/every_path.h"
#include "tests/runtime/odd_drafters.h"
#include "tests/runtime/tiny_model.h"

namespace otr {
namespace {

struct SpeculationVariant {
  std::string policy = "off";
  int32_t max_batch = 64;
  int32_t chunk = 512;
  int64_t num_pages = 2048;
  int64_t preempt_at_tick = -1;
  const KernelTable* kernels = nullptr;  // instead of the path's
  std::vector<CostModel> costs = {};     // of a policy that weighs them
  AcceptanceDial dial = {};
};

// One pass costs 1 ms whatever it runs, a level of a draft nothing: speculation always pays.
CostModel free_drafts() {
  CostModel costs;
  for (const CostRole role : {CostRole::kTarget, CostRole::kVerify}) costs.roles[static_cast<size_t>(role)].weights_ms = 1;
  return costs;
}

class Speculation : public EveryPath {
 protected:
  Outputs run(const SpeculationVariant& r) {
    EngineOptions o;
    o.device.isa = GetParam();
    o.device.kernels = r.kernels;
    o.device.num_threads = 1;
    o.device.target.path = target_.path;
    o.device.target.kv_bytes = target_.page_bytes * static_cast<uint64_t>(r.num_pages);
    o.max_batch = r.max_batch;
    o.prefill_chunk = r.chunk;
    o.policy = r.policy;
    o.proofs.preempt_at_tick = r.preempt_at_tick;
    o.costs = r.costs;
    o.dial = r.dial;
    o.drafters = {"small=model:" + target_.drafter, "twin=model:" + target_.path, "twin4=w4:" + target_.path};
    o.custom_drafters = {{"random", [this](int number) { return std::make_unique<RandomDrafter>(number, target_.vocab_size); }},
                         {"adversary", [this](int number) {
                            return std::make_unique<AdversarialDrafter>(number, answers_, target_.stop_token);
                          }}};
    Result<std::unique_ptr<Engine>> created = Engine::create(o);
    EXPECT_TRUE(created.ok()) << created.status().message();
    if (!created.ok()) return {};
    Engine& engine = *created.value();
    EXPECT_TRUE(engine.pause().ok());  // they arrive together
    for (size_t i = 0; i < requests_.size(); ++i) submit(&engine, requests_[i], i);
    engine.resume();
    Outputs outputs;
    for (;;) {
      Result<std::unique_ptr<Sequence>> finished = engine.wait(120'000);
      if (!finished.ok()) {
        EXPECT_EQ(finished.status().code(), StatusCode::kIdle) << finished.status().message();
        break;
      }
      const Sequence& s = *finished.value();
      const size_t prompt = static_cast<size_t>(s.num_prompt()), n = s.tokens.size() - prompt;
      outputs[{s.group->tag, s.sample}] = {{s.tokens.begin() + s.num_prompt(), s.tokens.end()},
                                           bits_of(s.logprobs.data(), n),
                                           bits_of(s.raw_logprobs.data(), n),
                                           s.finish_reason,
                                           s.error};
      answers_[{s.noise.r[0], s.noise.r[1]}].assign(s.tokens.begin() + s.num_prompt(), s.tokens.end());
    }
    stats_ = nlohmann::json::parse(engine.stats_json());
    EXPECT_EQ(stats_["kv_pages_in_use"], 0);
    return outputs;
  }
  // What the largest request takes, and one more.
  int64_t fewest_pages() const {
    int64_t pages = 1;
    for (const Request& r : requests_) {
      pages = std::max(pages,
                       1 + (static_cast<int64_t>(r.prompt.size()) + r.sampling.max_new_tokens + kPageTokens - 1) / kPageTokens);
    }
    return pages;
  }
  int64_t spec_count(const char* key) const { return stats_["speculation"][key].get<int64_t>(); }
  int64_t drafter_count(const char* drafter, const char* key) const {
    return stats_["speculation"]["drafters"][drafter][key].get<int64_t>();
  }

  const TinyModel model_{{.num_layers = 2}};
  const TinyModel drafter_{{.hidden_size = 16, .intermediate_size = 24, .seed = 9}};
  struct Target {
    std::string path, drafter;
    int32_t vocab_size, stop_token;
    uint64_t page_bytes;
  };
  Target target_{.path = model_.path(),
                 .drafter = drafter_.path(),
                 .vocab_size = model_.shape().vocab_size,
                 .stop_token = model_.shape().eos_ids[0],
                 .page_bytes = model_.kv_bytes(1)};
  std::vector<Request> requests_ = mixed_requests(model_);
  std::map<SampleKey, std::vector<int32_t>> answers_;  // of the last run
  nlohmann::json stats_;
};

TEST_P(Speculation, ChangesNothing) {
  const Outputs plain = run({});
  const SpeculationVariant variants[] = {
      {.policy = "fixed:random:5:4:12"},
      {.policy = "fixed:random:16:4:64", .max_batch = 7},
      {.policy = "fixed:random:1:16:16", .max_batch = 1, .chunk = 16},
      {.policy = "fixed:adversary:8:4:24"},
      {.policy = "fixed:adversary:16:2:60", .max_batch = 3},
      {.policy = "fixed:ngram:6"},
      {.policy = "fixed:small:3", .chunk = 16},
      {.policy = "fixed:twin:7", .max_batch = 7},
      {.policy = "fixed:self:5", .max_batch = 7},
      {.policy = "fixed:self:6:4:12", .chunk = 16},
      {.policy = "fixed:small:4:16:40", .max_batch = 3},
      {.policy = "fixed:twin:5:3:9"},
      {.policy = "fixed:twin4:6", .max_batch = 3, .chunk = 16},
      {.policy = "fixed:small:6:4:12:q", .max_batch = 7},
      {.policy = "fixed:self+ngram:5:3:14:q"},
      {.policy = "fixed:self+twin+ngram+random+adversary+small:6:4:40"},
      {.policy = "auto"},
      {.policy = "auto", .max_batch = 3, .chunk = 16},
      {.policy = "auto:uncoupled:chain:untuned:stragglers"},
      {.policy = "auto:q", .max_batch = 7},
  };
  for (const SpeculationVariant& variant : variants) {
    EXPECT_EQ(difference(plain, run(variant)), "") << variant.policy;
    if (std::string(variant.policy).starts_with("auto")) continue;  // what it drafts is a matter of time
    for (const auto& [name, counts] : stats_["speculation"]["drafters"].items()) {
      EXPECT_GT(counts.at("drafted").get<int64_t>(), 20) << variant.policy << ": " << name;
    }
  }
}

// The papers' policies, each with all its drafters. (What they decide: tests/spec/paper_choosers_test.cpp.)
TEST_P(Speculation, ThePapersPoliciesChangeNothing) {
  const Outputs plain = run({});
  const std::vector<CostModel> one(1, free_drafts()), six(6, free_drafts());
  // Sanitizers get fewer requests, which end before specactor's profile comes to the models.
  const std::vector<std::string> profiled =
      kSanitized ? std::vector<std::string>{"ngram", "self"} : std::vector<std::string>{"ngram", "self", "small", "twin"};
  const struct {
    SpeculationVariant variant;
    std::vector<std::string> drafters, drafting;
  } cases[] = {
      {{.policy = "specactor", .costs = six}, {"ngram", "history", "self", "small", "twin", "twin4"}, profiled},
      {{.policy = "tlt", .max_batch = 7}, {"small", "ngram"}, {"small"}},
      {{.policy = "tlt", .max_batch = 16, .num_pages = fewest_pages()}, {"small", "ngram"}, {"small"}},
      {{.policy = "rhymerl", .costs = one}, {"history"}, {}},  // the first epoch
      {{.policy = "efficientrollout", .max_batch = 7, .costs = one}, {"self"}, {"self"}},
  };
  for (const auto& [variant, drafters, drafting] : cases) {
    EXPECT_EQ(difference(plain, run(variant)), "") << variant.policy;
    std::vector<std::string> names;
    for (const auto& [name, counts] : stats_["speculation"]["drafters"].items()) names.push_back(name);
    EXPECT_EQ(std::set(names.begin(), names.end()), std::set(drafters.begin(), drafters.end())) << variant.policy;
    for (const std::string& name : drafting)
      EXPECT_GT(drafter_count(name.c_str(), "drafted"), 20) << variant.policy << ": " << name;
    EXPECT_EQ(spec_count("draft_tokens") > 0, !drafting.empty()) << variant.policy;
  }
}

// Random and adversarial drafters, alone and among others, on trained weights and on Qwen3's shape. OUTRIDER_LONG_TESTS=1 runs
// the full product, a few cases else.
TEST_P(Speculation, OddDraftersChangeNothingOnOtherModels) {
  const std::string data = OUTRIDER_TEST_DATA, qwen3 = data + "/golden/qwen3-group7-sharded";
  const bool all = std::getenv("OUTRIDER_LONG_TESTS") != nullptr;
  if (std::string(GetParam()) == "cpu-scalar") GTEST_SKIP() << "hours on the scalar path; ChangesNothing covers it";
  const Target targets[] = {{data + "/tinymath/target", data + "/tinymath/drafter", 465, 0, target_.page_bytes},
                            {qwen3, qwen3, 251, 0, target_.page_bytes}};
  int cases = 0, index = 0;
  for (const Target& target : targets) {
    target_ = target;
    requests_ = mixed_requests(target.vocab_size);
    const Outputs plain = run({.num_pages = 8192});
    target_.page_bytes = stats_["kv_page_bytes"].get<uint64_t>();
    for (const char* drafters : {"random", "adversary", "adversary+self+small+ngram+random"}) {
      for (int depth = 1; depth <= 16; ++depth) {
        for (const char* shape : {":1", ":3:12", ":8:40"}) {
          for (const int32_t batch : {1, 7, 64}) {
            for (const bool pressure : {false, true}) {
              if (!all && index++ % (kSanitized ? 577 : 197) != 0) continue;
              const std::string policy = std::string("fixed:") + drafters + ":" + std::to_string(depth) + shape;
              ASSERT_EQ(
                  difference(
                      plain,
                      run({.policy = policy, .max_batch = batch, .chunk = 48, .num_pages = pressure ? fewest_pages() : 512})),
                  "")
                  << policy << ", batch " << batch << (pressure ? ", under pressure" : "");
              EXPECT_TRUE(spec_count("draft_tokens") > 0 || depth < 3) << policy;  // the adversary needs room for three nodes
              ++cases;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(cases, all ? 1728 : kSanitized ? 3 : 9);
}

TEST_P(Speculation, UnderPressureDraftsGiveWay) {
  const Outputs plain = run({});
  const int64_t pages = fewest_pages();
  for (const char* policy :
       {"fixed:adversary:8:4:24", "fixed:random:6:4:16", "fixed:twin+ngram:5", "fixed:self:6:4:16", "auto"}) {
    EXPECT_EQ(difference(plain, run({.policy = policy, .max_batch = 64, .chunk = 48, .num_pages = pages})), "") << policy;
    if (std::string(policy) == "auto") continue;  // what it drafts is a matter of time
    EXPECT_GE(stats_["preemptions"].get<int64_t>(), 10) << policy;
    EXPECT_GT(spec_count("accepted_tokens"), 0) << policy;
  }
}

TEST_P(Speculation, PreemptionAtEveryTickChangesNothing) {
  requests_.resize(6);
  for (Request& r : requests_) r.sampling.max_new_tokens = std::min(r.sampling.max_new_tokens, 16);
  const Outputs plain = run({});
  for (const char* policy : {"off", "fixed:self:3:2:6"}) {
    int64_t preempted = 0, ticks = 1;
    for (int64_t tick = 0; tick < ticks; ++tick) {
      ASSERT_EQ(difference(plain, run({.policy = policy, .chunk = 32, .preempt_at_tick = tick})), "")
          << policy << ", tick " << tick;
      ticks = stats_["ticks"].get<int64_t>();
      preempted += stats_["preemptions"].get<int64_t>();
    }
    EXPECT_GE(ticks, 10) << policy;
    EXPECT_GE(preempted, ticks / 2) << policy;  // not where only one sequence runs
  }
}

// A sample that has lost its keys drafts in the very tick that runs its last tokens again; "self" would read keys that are not
// there yet, and waits for the next one.
TEST_P(Speculation, DraftsBehindTokensThatRunAgain) {
  requests_.clear();
  for (const int32_t prompt : {20, 30}) {
    Request& r = requests_.emplace_back(random_tokens(1, prompt, 97));
    r.sampling.max_new_tokens = 41;  // the prompt's, and eight ticks of five
    r.sampling.ignore_eos = 1;
  }
  const Outputs plain = run({});
  const auto without_a_draft = [&](const char* policy) {
    EXPECT_EQ(difference(plain, run({.policy = policy, .preempt_at_tick = 4})), "") << policy;
    EXPECT_EQ(stats_["preemptions"], 1) << policy;
    return spec_count("decode_steps") - spec_count("verify_steps");
  };
  EXPECT_EQ(without_a_draft("fixed:twin:4"), 0);
  EXPECT_EQ(spec_count("decode_steps"), 16);
  EXPECT_LE(without_a_draft("fixed:twin:4:2:8"), 2);  // where a sample lacks one token
  EXPECT_GE(without_a_draft("fixed:self:4"), 1);
}

// A drafter that is the target itself proposes what the target will draw: every token of a chain is kept.
TEST_P(Speculation, ATwinIsAlwaysRight) {
  const Outputs plain = run({});
  EXPECT_EQ(difference(plain, run({.policy = "fixed:twin:4"})), "");
  EXPECT_EQ(drafter_count("twin", "accepted"), drafter_count("twin", "drafted"));
  EXPECT_GT(drafter_count("twin", "drafted"), kSanitized ? 300 : 500);  // sanitizers get fewer requests
  EXPECT_EQ(spec_count("draft_tokens"), drafter_count("twin", "drafted"));
  EXPECT_LT(spec_count("decode_steps") * 3, spec_count("decode_tokens"));
  // In a tree too: of the best candidates that were judged, each was the one. (Others are judged beside it, and wrong.)
  for (const char* policy : {"fixed:twin:6:3:6", "fixed:twin:6:3:18"}) {
    EXPECT_EQ(difference(plain, run({.policy = policy})), "");
    const nlohmann::json& twin = stats_["speculation"]["drafters"]["twin"];
    EXPECT_EQ(twin.at("judged_at_pi").at(9), twin.at("kept_at_pi").at(9)) << policy;
    EXPECT_GT(twin.at("judged_at_pi").at(9).get<int64_t>(), 50) << policy;
    EXPECT_EQ(twin["accepted_at_rank"].size(), 1u) << policy;
  }
}

// ---- That the comparison finds kernels which are not row-invariant
// --------------------------------------------------------------

// Where rows are few, another implementation takes the place of the path's own, as in engines that have one kernel to decode
// and another to verify: each is right, and their last bits differ.
constexpr int32_t kFewRows = 2;
const KernelTable* many_rows;  // the path's table

// linear with its sums from the last input to the first.
void linear_backwards(const LinearParams& p, const LaunchContext&) {
  const LinearWeight& w = p.weight;
  for (int64_t r = 0; r < p.num_rows; ++r) {
    float sums[kLinearBlockN];
    for (int64_t n = 0; n < linear_padded(w.out_features); ++n) {
      float& sum = sums[n % kLinearBlockN];
      sum = 0.0f;
      for (int64_t k = w.in_features - 1; k >= 0; --k) {
        sum += to_float(p.x[r * p.x_stride + k]) * to_float(w.packed[linear_packed_index(n, k, w.in_features)]);
      }
      if (n % kLinearBlockN == kLinearBlockN - 1) linear_finish(p, r, n / kLinearBlockN, sums);
    }
  }
}
void linear_by_rows(const LinearParams& p, const LaunchContext& on) {
  (p.num_rows <= kFewRows ? linear_backwards : many_rows->linear)(p, on);
}
const KernelTable* few_rows;  // the definition's
void attention_by_rows(const AttentionParams& p, const LaunchContext& on) {
  (p.rows->num_rows <= kFewRows ? few_rows : many_rows)->attention(p, on);
}

TEST_P(Speculation, KernelsThatDependOnTheNumberOfRowsAreFound) {
  many_rows = select_kernels(GetParam()).value();
  few_rows = select_kernels("cpu-scalar").value();
  KernelTable linear = *many_rows, attention = *many_rows;
  linear.linear = linear_by_rows;
  attention.attention = attention_by_rows;
  // One request at a time: plain decoding then runs one row a tick, and verification several.
  const auto difference_with = [this](const KernelTable& kernels) {
    const Outputs plain = run({.max_batch = 1, .kernels = &kernels});
    return difference(plain, run({.policy = "fixed:twin:5", .max_batch = 1, .kernels = &kernels}));
  };
  EXPECT_EQ(difference_with(*many_rows), "");
  EXPECT_NE(difference_with(linear), "");
  if (many_rows->attention != few_rows->attention) {
    EXPECT_NE(difference_with(attention), "");
  }
}

OTR_INSTANTIATE_EVERY_PATH(Speculation);

// A drafter in 4 bits runs those, and is not its checkpoint: it errs where that, the target's twin, never does.
TEST_P(Speculation, ADrafterRunsIn4Bits) {
  const Outputs plain = run({.policy = "fixed:twin:4"});
  const int64_t kept = drafter_count("twin", "accepted"), whole = drafter_count("twin", "drafted"),
                bytes = stats_["drafter_weight_bytes"];
  EXPECT_EQ(difference(plain, run({.policy = "fixed:twin4:4"})), "");
  const int64_t kept4 = drafter_count("twin4", "accepted"), whole4 = drafter_count("twin4", "drafted");
  EXPECT_GT(stats_["drafter_weight_bytes"].get<int64_t>(), bytes);
  EXPECT_LT(static_cast<double>(kept4) / static_cast<double>(whole4), static_cast<double>(kept) / static_cast<double>(whole));
  EXPECT_GT(2 * kept4, whole4);
}

// The twin proposes what the target draws; so what the dial replaces is never kept, and nothing behind it.
TEST_P(Speculation, ADialSpoilsDrafts) {
  const Outputs plain = run({});
  double kept[3] = {};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(difference(plain, run({.policy = "fixed:twin:3", .dial = {.keep = 0.5 * i}})), "");
    EXPECT_GT(drafter_count("twin", "drafted"), 100);
    kept[i] = static_cast<double>(drafter_count("twin", "accepted")) / static_cast<double>(drafter_count("twin", "drafted"));
  }
  EXPECT_EQ(kept[0], 0);
  EXPECT_NEAR(kept[1], (0.5 + 0.25 + 0.125) / 3, 0.08);
  EXPECT_GT(kept[2], 0.9);
}

// A twin of the target that was made for 64 positions: past them `auto` drafts with the next best drafter. By a modelled clock,
// since it would give up drafters that take longer here than they should.
TEST(SpeculationContexts, AutoAsksNobodyPastHisContext) {
  constexpr int32_t kShort = 64;
  const TinyModel target({.max_position_embeddings = 1024}), twin({.max_position_embeddings = kShort});
  EngineOptions o;
  o.device.num_threads = 1;
  o.device.target.path = target.path();
  o.max_batch = 4;
  o.policy = "auto";
  o.drafters = {"small=model:" + twin.path()};
  CostModel small = free_drafts(), self = small;
  small.roles[static_cast<size_t>(CostRole::kDraft)].weights_ms = 0.01;
  self.roles[static_cast<size_t>(CostRole::kDraft)].weights_ms = 0.05;
  o.costs = {small, small, self};
  o.pace = {.target = small, .drafters = {{.name = "small", .cost = small}, {.name = "self", .cost = self}}};
  const Result<std::unique_ptr<Engine>> e = Engine::create(o);
  ASSERT_TRUE(e.ok()) << e.status().message();
  Request r(random_tokens(1, 20, 97));
  r.sampling.max_new_tokens = 800;
  r.sampling.ignore_eos = 1;
  submit(e.value().get(), r, 0);
  EXPECT_EQ(collect(e.value().get()).size(), 1u);
  const nlohmann::json stats = nlohmann::json::parse(e.value()->stats_json());
  const nlohmann::json& drafters = stats["speculation"]["drafters"];
  EXPECT_GT(drafters["small"]["drafts"], 0);
  EXPECT_GT(drafters["self"]["accepted"], 200) << drafters;
}

TEST(SpeculationErrors, ArePlain) {
  const TinyModel model, other({.vocab_size = 98});
  const auto error = [&](const char* policy, std::vector<std::string> drafters) {
    EngineOptions o;
    o.device.num_threads = 1;
    o.device.target.path = model.path();
    o.device.target.kv_bytes = model.kv_bytes(64);
    o.policy = policy;
    o.drafters = std::move(drafters);
    const Result<std::unique_ptr<Engine>> created = Engine::create(o);
    EXPECT_FALSE(created.ok());
    return created.ok() ? "" : created.status().message();
  };
  EXPECT_EQ(error("fixed:small:4", {}), "the policy names drafter 'small', which is not defined");
  EXPECT_EQ(error("fixed:d:4", {"d=model:" + other.path()}),
            "drafter 'd' (" + other.path() + ") has a vocabulary of 98 tokens, the target one of 97");
  EXPECT_EQ(error("off", {"d=model:x", "d=model:y"}), "drafter 'd=model:y': the name is given twice");
  EXPECT_NE(error("fixed:d:4", {"d=model:/nowhere"}).find("/nowhere"), std::string::npos);
  EXPECT_EQ(error("off", {"d=" + model.path()}), "drafter 'd=" + model.path() + "': expected NAME=model:PATH or NAME=w4:PATH");
  EXPECT_EQ(error("off", {"d=w4:"}), "drafter 'd=w4:': expected NAME=model:PATH or NAME=w4:PATH");
  EXPECT_EQ(error("fixed:d:4", {"d=w4:" + other.path()}),
            "drafter 'd' (" + other.path() + ") has a vocabulary of 98 tokens, the target one of 97");
  EXPECT_EQ(error("off", {"self=model:x"}),
            "drafter 'self=model:x': the name 'self' is taken by a drafter that is always there");
  EXPECT_EQ(error("off", {"a b=model:x"}), "drafter 'a b=model:x': a name has letters, digits, '_', '-' and '.'");
}

}  // namespace
}  // namespace otr
