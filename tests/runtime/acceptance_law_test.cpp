// What drafters yield is what their distributions allow: acceptance of the engine on rollouts of tinymath against closed forms
// (tests/spec/drafting_law.h) of the target's p and the drafters' q at every place that was judged.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/row_batch_builder.h"
#include "loader/tokenizer.h"
#include "runtime/engine.h"
#include "tests/runtime/sanitized.h"
#include "tests/spec/drafting_law.h"

namespace otr {
namespace {

const std::string kTinymath = std::string(OUTRIDER_TEST_DATA) + "/tinymath";
constexpr int32_t kNumPrompts = kSanitized ? 4 : 48, kSamples = 2, kMaxNewTokens = 96, kDepth = 5;

using Key = std::pair<uint32_t, uint32_t>;  // of a sample: words of its noise

// A verified forest: from which position on, the nodes at its first place by rank, and how many nodes were kept.
struct Verdict {
  int32_t position, max_depth;
  std::vector<int32_t> candidates;
  size_t num_kept;
};

struct Sample {
  std::vector<int32_t> tokens;  // prompt and response
  int32_t num_prompt, num_new;
  NoiseStream noise;
  std::map<std::string, std::vector<Verdict>> verdicts;  // by policy
};

// Proposes nothing and sees everything.
class Spy final : public Drafter {
 public:
  Spy(std::map<Key, std::vector<Verdict>>* verdicts) : verdicts_(*verdicts) {}
  void join(const DraftSequence&) override {}
  DraftWork propose(std::span<const DraftRow> rows, const DraftLimits&) override {
    for (const DraftRow& row : rows) max_depth_[row.sequence.slot] = row.max_depth;
    return {};
  }
  void observe(const DraftVerdict& v) override {
    if (v.forest->empty()) return;
    const DraftSequence& s = v.sequence;
    Verdict verdict{static_cast<int32_t>(s.tokens.size()) - v.num_new, max_depth_[s.slot], {}, v.accepted.size()};
    for (const DraftNode& node : v.forest->nodes()) {
      if (node.depth == 1) verdict.candidates.push_back(node.token);
    }
    verdicts_[{s.noise.r[0], s.noise.r[1]}].push_back(std::move(verdict));
  }
  void leave(int32_t) override {}

 private:
  std::map<Key, std::vector<Verdict>>& verdicts_;
  std::map<int32_t, int32_t> max_depth_;
};

// Rolls tinymath's first problems out. The samples are the same under every policy; what the policy's drafter yields comes to
// them.
void roll(const std::string& policy, std::map<Key, Sample>* samples) {
  std::map<Key, std::vector<Verdict>> verdicts;
  EngineOptions o;
  o.device.num_threads = 2;
  o.device.target.path = kTinymath + "/target";
  o.device.target.kv_bytes = uint64_t{64} << 20;
  o.max_batch = 32;
  o.policy = policy;
  o.drafters = {"model=model:" + kTinymath + "/drafter"};
  o.custom_drafters = {{"spy", [&verdicts](int) { return std::make_unique<Spy>(&verdicts); }}};
  Result<std::unique_ptr<Engine>> created = Engine::create(o);
  ASSERT_TRUE(created.ok()) << created.status().message();
  Engine& engine = *created.value();
  const Result<Tokenizer> tokenizer = Tokenizer::load(kTinymath + "/target/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok());
  std::ifstream prompts(kTinymath + "/prompts.jsonl");
  std::string line;
  for (int32_t i = 0; i < kNumPrompts && std::getline(prompts, line); ++i) {
    const std::vector<int32_t> prompt =
        tokenizer.value().encode(nlohmann::json::parse(line)["prompt"].get<std::string>()).value();
    otr_group_request g;
    otr_group_request_init(&g, sizeof g);
    otr_sampling_params sampling;
    otr_sampling_params_init(&sampling, sizeof sampling);
    sampling.max_new_tokens = kMaxNewTokens;
    g.prompt_token_ids = prompt.data();
    g.num_prompt_tokens = prompt.size();
    g.n = kSamples;
    g.stream = 1000 + static_cast<uint64_t>(i);
    g.sampling = &sampling;
    ASSERT_TRUE(engine.submit(g).ok());
  }
  for (;;) {
    Result<std::unique_ptr<Sequence>> finished = engine.wait(120'000);
    if (!finished.ok()) {
      ASSERT_EQ(finished.status().code(), StatusCode::kIdle) << policy << ": " << finished.status().message();
      break;
    }
    const Sequence& s = *finished.value();
    Sample& sample = (*samples)[{s.noise.r[0], s.noise.r[1]}];
    ASSERT_TRUE(sample.tokens.empty() || sample.tokens == s.tokens) << policy;
    sample.tokens = s.tokens;
    sample.num_prompt = s.num_prompt();
    sample.num_new = s.num_tokens() - s.num_prompt();
    sample.noise = s.noise;
  }
  engine.shutdown();
  for (auto& [key, of_sample] : verdicts) (*samples)[key].verdicts[policy] = std::move(of_sample);
}

// p of the target, and of both drafters q and their candidates, after every token of a response. The drafters' candidates are
// drawn once with the target's noise and once with other noise.
class Models {
 public:
  struct At {
    std::vector<double> distribution;
    Candidates coupled, independent;
  };
  using Course = std::vector<At>;  // by token of the response

  Models() {
    device_ = std::move(Device::create({.isa = "auto", .num_threads = 2, .target = options("/target")}).value());
    drafter_ = std::move(ModelRunner::create(options("/drafter"), device_->kernels(), device_->pool()).value());
    EXPECT_TRUE(device_->target().add_quantized({.max_rows = 1, .max_logit_rows = 1}).ok());
    for (PageId page = 0; page < kPages; ++page) pages_.push_back(page);
    for (ModelRunner* m : {&device_->target(), drafter_.get()}) {
      PageWork work;
      work.zero = pages_;
      m->prepare(work);
    }
  }

  Course target(const Sample& s) { return all_at_once(s, &device_->target()); }
  Course model(const Sample& s) { return all_at_once(s, drafter_.get()); }
  // `self` runs a sequence's newest token over the target's keys. Descending, since it leaves its own behind. REQUIRES:
  // target(s).
  Course self(const Sample& s) {
    ModelRunner& m = device_->target();
    Course course(static_cast<size_t>(s.num_new));
    for (int32_t i = s.num_new - 1; i >= 0; --i) {
      RowBatchBuilder rows = builder(m);
      const int32_t at = s.num_prompt + i - 1;
      rows.add({&s.tokens[static_cast<size_t>(at)], 1}, at, pages_, 0);
      m.quantized_program().run(rows.batch());
      course[static_cast<size_t>(i)] = read(s, &m, m.quantized_program(), 0, at + 1);
    }
    return course;
  }

 private:
  static constexpr PageId kPages = 8;
  static constexpr int32_t kRows = kPages * kPageTokens;

  static ModelOptions options(const char* folder) {
    return {
        .path = kTinymath + folder, .kv_bytes = 0, .num_pages = kPages, .bucket = {.max_rows = kRows, .max_logit_rows = kRows}};
  }
  static RowBatchBuilder builder(const ModelRunner& m) {
    return RowBatchBuilder({.max_rows = kRows, .max_segments = 1, .max_logit_rows = kRows, .max_pages_per_sequence = kPages},
                           attention_tile_rows(m.config().num_heads, m.config().num_kv_heads));
  }
  Course all_at_once(const Sample& s, ModelRunner* m) const {
    RowBatchBuilder rows = builder(*m);
    rows.add(std::span(s.tokens).first(s.tokens.size() - 1), 0, pages_, s.num_prompt - 1);
    m->run(rows.batch());
    Course course;
    for (int32_t i = 0; i < s.num_new; ++i) course.push_back(read(s, m, m->program(), i, s.num_prompt + i));
    return course;
  }
  static At read(const Sample& s, ModelRunner* m, const ForwardProgram& program, int32_t row, int32_t position) {
    At at;
    const size_t vocab = static_cast<size_t>(m->config().vocab_size);
    const float* logits = program.logits() + static_cast<size_t>(row) * vocab;
    const double greatest = static_cast<double>(*std::max_element(logits, logits + vocab));
    double sum = 0.0;
    for (size_t v = 0; v < vocab; ++v) at.distribution.push_back(std::exp(static_cast<double>(logits[v]) - greatest));
    for (const double x : at.distribution) sum += x;
    for (double& x : at.distribution) x /= sum;
    SampleDraw draw{.logits_row = row,
                    .position = position,
                    .noise = s.noise,
                    .forced_token = -1,
                    .temperature = 1.0f,
                    .top_k = 0,
                    .top_p = 1.0f,
                    .min_p = 0.0f,
                    .repetition_penalty = 1.0f,
                    .presence_penalty = 0.0f,
                    .frequency_penalty = 0.0f,
                    .num_penalties = 0,
                    .penalties = nullptr};
    const CandidateDraw coupled{draw, 1.0f};
    m->candidates(program, &coupled, 1, law::kMostRanks, &at.coupled);
    draw.noise.r[0] ^= 0x5eedu;
    const CandidateDraw independent{draw, 1.0f};
    m->candidates(program, &independent, 1, 1, &at.independent);
    return at;
  }

  std::vector<PageId> pages_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ModelRunner> drafter_;
};

// Events that came, against the probabilities they had. Each place's probability is given by what came before it, so that the
// sum of the differences is a martingale, and its variance the sum of p (1 - p).
struct Tally {
  double came = 0, expected = 0, variance = 0;
  int64_t places = 0;
  void add(double event, double mean, double var) {
    came += event;
    expected += mean;
    variance += var;
    ++places;
  }
  void add(bool event, double p) { add(event ? 1.0 : 0.0, p, p * (1.0 - p)); }
  // Within 4 standard errors; two events more are allowed, since few rare ones are not normal.
  bool follows() const { return std::fabs(came - expected) <= 4.0 * std::sqrt(variance) + 2.0; }
  double sigmas() const { return (came - expected) / std::sqrt(variance + 1e-9); }
  void print(const char* what) const {
    const double n = static_cast<double>(places);
    std::printf("  %-22s %9.4f %9.4f %7.4f %6.2f %8lld\n", what, came / n, expected / n, std::sqrt(variance) / n, sigmas(),
                static_cast<long long>(places));
  }
};

struct DrafterTallies {
  std::array<Tally, law::kMostRanks> by_rank;
  Tally independent, greedy, kept;  // kept: nodes of a chain
  int64_t other_candidates = 0;     // places where the engine proposed something else than q and the noise say
};

// The first place of every verified forest of a policy of depth 1.
void judge_places(const Sample& s, const std::vector<Verdict>& verdicts, const Models::Course& p, const Models::Course& q,
                  DrafterTallies* t) {
  for (const Verdict& v : verdicts) {
    const size_t at = static_cast<size_t>(v.position - s.num_prompt);
    const int32_t drawn = s.tokens[static_cast<size_t>(v.position)];
    const std::array<double, law::kMostRanks> expected = law::by_rank(p[at].distribution, q[at].distribution);
    for (size_t m = 0; m < v.candidates.size(); ++m) t->by_rank[m].add(v.candidates[m] == drawn, expected[m]);
    t->other_candidates += !std::equal(v.candidates.begin(), v.candidates.end(), q[at].coupled.tokens);
    const size_t favourite = law::likeliest(q[at].distribution);
    t->independent.add(q[at].independent.tokens[0] == drawn, law::independent(p[at].distribution, q[at].distribution));
    t->greedy.add(static_cast<size_t>(drawn) == favourite, p[at].distribution[favourite]);
  }
}

// How many nodes of a chain are kept: given the tokens that the target draws, each is matched by itself with kept_if.
void judge_chains(const Sample& s, const std::vector<Verdict>& verdicts, const Models::Course& p, const Models::Course& q,
                  DrafterTallies* t) {
  for (const Verdict& v : verdicts) {
    const int32_t depth = std::min(v.max_depth, static_cast<int32_t>(s.tokens.size()) - v.position);
    double all = 1.0, mean = 0.0, square = 0.0;
    for (int32_t k = 0; k < depth; ++k) {
      const size_t at = static_cast<size_t>(v.position - s.num_prompt + k);
      all *= law::kept_if(p[at].distribution, q[at].distribution,
                          static_cast<size_t>(s.tokens[static_cast<size_t>(v.position + k)]));
      mean += all;
      square += (2.0 * k + 1.0) * all;  // (k + 1)^2 - k^2
    }
    t->kept.add(static_cast<double>(v.num_kept), mean, square - mean * mean);
  }
}

TEST(AcceptanceLaw, RolloutsFollowIt) {
  const std::map<std::string, std::pair<std::string, std::string>> policies = {
      {"model", {"fixed:model+spy:1:4:8", "fixed:model+spy:" + std::to_string(kDepth)}},
      {"self", {"fixed:self+spy:1:4:8", "fixed:self+spy:" + std::to_string(kDepth)}}};
  std::map<Key, Sample> samples;
  for (const auto& [name, of_drafter] : policies) {
    for (const std::string& policy : {of_drafter.first, of_drafter.second}) ASSERT_NO_FATAL_FAILURE(roll(policy, &samples));
  }
  ASSERT_EQ(samples.size(), static_cast<size_t>(kNumPrompts * kSamples));
  Models models;
  std::map<std::string, DrafterTallies> tallies;
  for (const auto& entry : samples) {
    const Sample& s = entry.second;
    const Models::Course p = models.target(s);
    for (int32_t i = 0; i < s.num_new; ++i) {
      ASSERT_EQ(p[static_cast<size_t>(i)].coupled.tokens[0], s.tokens[static_cast<size_t>(s.num_prompt + i)]);
    }
    for (const auto& [name, of_drafter] : policies) {
      const Models::Course q = name == "self" ? models.self(s) : models.model(s);
      const auto verdicts = [&s](const std::string& policy) {
        const auto found = s.verdicts.find(policy);
        return found == s.verdicts.end() ? std::vector<Verdict>{} : found->second;
      };
      judge_places(s, verdicts(of_drafter.first), p, q, &tallies[name]);
      judge_chains(s, verdicts(of_drafter.second), p, q, &tallies[name]);
    }
  }
  for (const auto& [name, t] : tallies) {
    std::printf("%-24s %9s %9s %7s %6s %8s\n", name.c_str(), "measured", "law", "sigma", "off by", "places");
    for (size_t m = 0; m < law::kMostRanks; ++m) {
      t.by_rank[m].print(("candidate " + std::to_string(m + 1)).c_str());
      EXPECT_TRUE(t.by_rank[m].follows()) << name << ", candidate " << m + 1;
    }
    t.independent.print("independent draft");
    t.greedy.print("greedy draft");
    t.kept.print(("kept of a chain of " + std::to_string(kDepth)).c_str());
    EXPECT_TRUE(t.independent.follows()) << name;
    EXPECT_TRUE(t.greedy.follows()) << name;
    EXPECT_GE(t.by_rank[0].places, kSanitized ? 100 : 1500) << name;
    EXPECT_EQ(t.other_candidates, 0) << name;
    // Coupling is worth what the law says, and independent drafts would have been told apart from it.
    EXPECT_GT(t.by_rank[0].expected, t.greedy.expected) << name;
    EXPECT_GT(t.greedy.expected, t.independent.expected) << name;
    EXPECT_GT(t.by_rank[0].came - t.independent.expected, (kSanitized ? 0.0 : 4.0) * std::sqrt(t.by_rank[0].variance)) << name;
  }
  EXPECT_TRUE(tallies["model"].kept.follows());
  // The drafts of `self` see its own keys at the drafted tokens, not the target's as the law has it: nearly the same.
  const Tally& self = tallies["self"].kept;
  const double places = static_cast<double>(self.places);
  EXPECT_GE(1.0 + self.came / places, 0.95 * (1.0 + self.expected / places));
}

}  // namespace
}  // namespace otr
