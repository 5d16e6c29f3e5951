// Speculation changes nothing: whatever is drafted, and by whom, the samples are those of plain decoding, to the last bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "runtime/engine.h"
#include "tests/runtime/mixed_requests.h"

namespace otr {
namespace {

// Proposes forests of any form, of tokens that are sometimes right because there are few.
class RandomDrafter final : public Drafter {
 public:
  RandomDrafter(int number, int32_t vocab_size) : number_(number), vocab_size_(vocab_size) {}
  void join(const DraftSequence&) override {}
  void propose(std::span<const DraftRow> rows, int32_t, int32_t max_nodes) override {
    for (const DraftRow& row : rows) {
      for (int32_t n = static_cast<int32_t>(random_() % static_cast<uint32_t>(max_nodes + 1)); n > 0; --n) {
        const int32_t parent = static_cast<int32_t>(random_() % static_cast<uint32_t>(row.forest->size() + 1)) - 1;
        if (parent != Forest::kRoot && (*row.forest)[parent].depth == row.max_depth) continue;
        row.forest->add(parent, static_cast<int32_t>(random_() % static_cast<uint32_t>(vocab_size_)), 0.1f, number_, 0);
      }
    }
  }
  void observe(const DraftVerdict&) override {}
  void leave(int32_t) override {}

 private:
  const int number_;
  const int32_t vocab_size_;
  std::mt19937 random_{11};
};

using Key = std::pair<uint32_t, uint32_t>;  // of a sample: words of its noise

// Knows what will be drawn, and surrounds it with what will not: right chains that end wrong, wrong siblings first, the right token
// below a wrong one, stop tokens.
class AdversarialDrafter final : public Drafter {
 public:
  AdversarialDrafter(int number, std::map<Key, std::vector<int32_t>> answers) : number_(number), answers_(std::move(answers)) {}
  void join(const DraftSequence&) override {}
  void propose(std::span<const DraftRow> rows, int32_t, int32_t max_nodes) override {
    for (const DraftRow& row : rows) {
      const std::vector<int32_t>& answer = answers_.at({row.sequence.noise.r[0], row.sequence.noise.r[1]});
      size_t at = row.sequence.tokens.size() - static_cast<size_t>(row.sequence.num_prompt);
      Forest& forest = *row.forest;
      const size_t wrong_at = random_() % 8;
      int32_t parent = Forest::kRoot;
      const int32_t others = forest.size();
      for (int32_t depth = 1; depth <= row.max_depth && forest.size() - others + 3 <= max_nodes; ++depth, ++at) {
        const int32_t right = at < answer.size() ? answer[at] : 0;
        const int32_t wrong = (right + 1) % 7;
        if (random_() % 3 == 0) {
          const int32_t trap = forest.add(parent, random_() % 2 == 0 ? 3 : wrong, 0.9f, number_, 1);  // 3 is the stop token
          if (depth < row.max_depth) forest.add(trap, right, 0.9f, number_, 0);
        }
        parent = forest.add(parent, static_cast<size_t>(depth) == wrong_at ? wrong : right, 0.9f, number_, 0);
      }
    }
  }
  void observe(const DraftVerdict&) override {}
  void leave(int32_t) override {}

 private:
  const int number_;
  const std::map<Key, std::vector<int32_t>> answers_;
  std::mt19937 random_{5};
};

struct Variant {
  std::string policy = "off";
  int32_t max_batch = 64;
  int32_t chunk = 512;
  int64_t num_pages = 2048;
  int64_t preempt_at_tick = -1;
  const KernelTable* kernels = nullptr;  // instead of the path's
};

class Speculation : public EveryPath {
 protected:
  Outputs run(const Variant& r) {
    EngineOptions o;
    o.worker.isa = GetParam();
    o.worker.kernels = r.kernels;
    o.worker.num_threads = 1;
    o.worker.target.path = model_.path();
    o.worker.target.kv_bytes = model_.kv_bytes(r.num_pages);
    o.max_batch = r.max_batch;
    o.prefill_chunk = r.chunk;
    o.policy = r.policy;
    o.preempt_at_tick = r.preempt_at_tick;
    o.drafters = {"small=model:" + drafter_.path(), "twin=model:" + model_.path()};
    o.custom_drafters = {
        {"random", [this](int number) { return std::make_unique<RandomDrafter>(number, model_.shape().vocab_size); }},
        {"adversary", [this](int number) { return std::make_unique<AdversarialDrafter>(number, answers_); }}};
    Result<std::unique_ptr<Engine>> created = Engine::create(o);
    EXPECT_TRUE(created.ok()) << created.status().message();
    if (!created.ok()) return {};
    Engine& engine = *created.value();
    for (size_t i = 0; i < requests_.size(); ++i) {
      const Request& request = requests_[i];
      otr_group_request g;
      otr_group_request_init(&g, sizeof g);
      otr_sampling_params sampling = request.sampling;
      sampling.stop_token_ids = request.stop_ids.data();
      sampling.num_stop_token_ids = request.stop_ids.size();
      g.prompt_token_ids = request.prompt.data();
      g.num_prompt_tokens = request.prompt.size();
      g.n = request.n;
      g.first_sample = request.first_sample;
      g.stream = request.stream;
      g.tag = i;
      g.sampling = &sampling;
      EXPECT_TRUE(engine.submit(g).ok());
    }
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
  int64_t spec_count(const char* key) const { return stats_["speculation"][key].get<int64_t>(); }
  int64_t drafter_count(const char* drafter, const char* key) const { return stats_["speculation"]["drafters"][drafter][key].get<int64_t>(); }

  const TinyModel model_{{.num_layers = 2}};
  const TinyModel drafter_{{.hidden_size = 16, .intermediate_size = 24, .seed = 9}};
  std::vector<Request> requests_ = mixed_requests(model_);
  std::map<Key, std::vector<int32_t>> answers_;  // of the last run
  nlohmann::json stats_;
};

TEST_P(Speculation, ChangesNothing) {
  const Outputs plain = run({});
  const Variant variants[] = {
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
      {.policy = "fixed:small:6:4:12:q", .max_batch = 7},
      {.policy = "fixed:self+ngram:5:3:14:q"},
      {.policy = "fixed:self+twin+ngram+random+adversary+small:6:4:40"},
  };
  for (const Variant& variant : variants) {
    EXPECT_EQ(difference(plain, run(variant)), "") << variant.policy;
    for (const auto& [name, counts] : stats_["speculation"]["drafters"].items()) {
      EXPECT_GT(counts.at("drafted").get<int64_t>(), 20) << variant.policy << ": " << name;
    }
  }
}

TEST_P(Speculation, UnderPressureDraftsGiveWay) {
  const Outputs plain = run({});
  int64_t pages = 1;  // and what the largest request takes
  for (const Request& r : requests_) {
    pages = std::max(pages, 1 + (static_cast<int64_t>(r.prompt.size()) + r.sampling.max_new_tokens + kPageTokens - 1) / kPageTokens);
  }
  for (const char* policy : {"fixed:adversary:8:4:24", "fixed:random:6:4:16", "fixed:twin+ngram:5", "fixed:self:6:4:16"}) {
    EXPECT_EQ(difference(plain, run({.policy = policy, .max_batch = 64, .chunk = 48, .num_pages = pages})), "") << policy;
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
      ASSERT_EQ(difference(plain, run({.policy = policy, .chunk = 32, .preempt_at_tick = tick})), "") << policy << ", tick " << tick;
      ticks = stats_["ticks"].get<int64_t>();
      preempted += stats_["preemptions"].get<int64_t>();
    }
    EXPECT_GE(ticks, 10) << policy;
    EXPECT_GE(preempted, ticks / 2) << policy;  // not where only one sequence runs
  }
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

// ---- That the comparison finds kernels which are not row-invariant --------------------------------------------------------------

// Where rows are few, another implementation takes the place of the path's own, as in engines that have one kernel to decode and
// another to verify: each is right, and their last bits differ.
constexpr int32_t kFewRows = 2;
const KernelTable* many_rows;  // the path's table

// linear with its sums from the last input to the first.
void linear_backwards(const LinearParams& p, ThreadPool&) {
  const LinearWeight& w = p.weight;
  for (int64_t r = 0; r < p.num_rows; ++r) {
    for (int64_t n = 0; n < w.out_features; ++n) {
      float sum = 0.0f;
      for (int64_t k = w.in_features - 1; k >= 0; --k) {
        sum += to_float(p.x[r * p.x_stride + k]) * to_float(w.packed[linear_packed_index(n, k, w.in_features)]);
      }
      if (w.bias != nullptr) sum += w.bias[n];
      p.out[r * p.out_stride + n] = sum + (p.residual != nullptr ? p.residual[r * p.out_stride + n] : 0.0f);
    }
  }
}
void linear_by_rows(const LinearParams& p, ThreadPool& pool) { (p.num_rows <= kFewRows ? linear_backwards : many_rows->linear)(p, pool); }
void attention_by_rows(const AttentionParams& p, ThreadPool& pool) {
  (p.rows->num_rows <= kFewRows ? attention_scalar : many_rows->attention)(p, pool);
}

TEST_P(Speculation, KernelsThatDependOnTheNumberOfRowsAreFound) {
  many_rows = select_kernels(GetParam()).value();
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
  if (many_rows->attention != attention_scalar) {
    EXPECT_NE(difference_with(attention), "");
  }
}

OTR_INSTANTIATE_EVERY_PATH(Speculation);

TEST(SpeculationErrors, ArePlain) {
  const TinyModel model, other({.vocab_size = 98});
  const auto error = [&](const char* policy, std::vector<std::string> drafters) {
    EngineOptions o;
    o.worker.num_threads = 1;
    o.worker.target.path = model.path();
    o.worker.target.kv_bytes = model.kv_bytes(64);
    o.policy = policy;
    o.drafters = std::move(drafters);
    const Result<std::unique_ptr<Engine>> created = Engine::create(o);
    EXPECT_FALSE(created.ok());
    return created.ok() ? "" : created.status().message();
  };
  EXPECT_EQ(error("fixed:small:4", {}), "the policy names drafter 'small', which is not defined");
  EXPECT_EQ(error("fixed:d:4", {"d=model:" + other.path()}),
            "drafter 'd' (" + other.path() + ") has a vocabulary of 98 tokens, the target one of 97");
  EXPECT_NE(error("fixed:d:4", {"d=model:/nowhere"}).find("/nowhere"), std::string::npos);
  EXPECT_EQ(error("off", {"d=" + model.path()}), "drafter 'd=" + model.path() + "': expected NAME=model:PATH");
  EXPECT_EQ(error("off", {"self=model:x"}), "drafter 'self=model:x': the name 'self' is taken by a drafter that is always there");
  EXPECT_EQ(error("off", {"a b=model:x"}), "drafter 'a b=model:x': a name has letters, digits, '_', '-' and '.'");
}

}  // namespace
}  // namespace otr
