// End to end through the C interface, on the model given: decoding at several batches, prefill, rollouts of groups, and
// conversations of several turns.
//
// A call is a whole rollout, from submit to the last result. Prompts are random and new in every call, so that no prefix is
// reused but that of a turn by the next. Verified: samples have the asked length, and scoring call 0's tokens gives the raw
// log-probs of its rollout, to the bit. Made again at the end of a repetition, call 0 may find its prompts in the cache, and
// has to draw the same. The ceiling: every run of the model reads all weights (and the keys, which are few here), or does two
// operations a weight and row, at the rates measured between calls.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <stdexcept>
#include <vector>

#include "bench/comparison.h"
#include "bench/suite.h"
#include "loader/model_config.h"
#include "loader/xxh64.h"
#include "runtime/outrider.h"

namespace otr::bench {
namespace {

struct EngineShape {
  const char* kind;
  int groups, n, prompt_tokens, new_tokens;
  int turns = 1;  // each after the first behind kAnswerTokens more
};
constexpr EngineShape kShapes[] = {{"decode", 1, 1, 4, 64},    {"decode", 8, 1, 4, 64},    {"decode", 16, 1, 4, 64},
                                   {"decode", 32, 1, 4, 64},   {"prefill", 1, 1, 512, 1},  {"prefill", 1, 1, 2048, 1},
                                   {"rollout", 1, 8, 128, 32}, {"rollout", 4, 8, 128, 32}, {"turns", 4, 1, 66, 64, 2}};
constexpr int kAnswerTokens = 16;
constexpr int kPrefillChunk = 512;
constexpr int32_t kLiveTokens = 500;  // of a widened tinymath: the embeddings of the others are zeros, which run faster

void require(otr_status status, const otr_engine* engine) {
  if (status != OTR_OK) throw std::runtime_error(std::string("engine: ") + otr_last_error(engine));
}

struct Sample {
  std::vector<int32_t> prompt, tokens;
  std::vector<float> logprobs, raw_logprobs;
};

// One engine for all cases.
class BenchEngine {
 public:
  BenchEngine(const std::string& model, const char* isa, int threads) {
    Result<ModelConfig> loaded = load_model_config(model);
    if (!loaded.ok()) throw std::runtime_error(loaded.status().message());
    config = loaded.value();
    otr_engine_options options;
    otr_engine_options_init(&options, sizeof options);
    options.model_path = model.c_str();
    options.isa = isa;
    options.num_threads = threads;
    options.max_batch = 64;
    options.prefill_chunk = kPrefillChunk;
    options.policy = "off";  // the ceilings count a pass a token
    options.kv_bytes = uint64_t{1} << 30;
    require(otr_engine_create(&options, &engine_), nullptr);
  }
  ~BenchEngine() { otr_engine_destroy(engine_); }
  BenchEngine(const BenchEngine&) = delete;
  BenchEngine& operator=(const BenchEngine&) = delete;

  // Weights that a token is multiplied with, lm_head apart; and those that a run of `rows` reads, if no two of them take an
  // expert together before all are taken.
  double layer_weights(double rows = 1) const {
    const double h = config.hidden_size, heads = config.num_heads, kv = config.num_kv_heads, d = config.head_dim;
    double sum = config.num_layers * h * (2 * heads + 2 * kv) * d;
    for (int32_t layer = 0; layer < config.num_layers; ++layer) {
      double inner = static_cast<double>(config.token_intermediate_size(layer));
      if (config.has_experts(layer))
        inner = std::min(inner * rows, double{1} * config.experts->num_experts * config.experts->intermediate_size);
      sum += 3 * h * inner;
    }
    return sum;
  }
  double head_weights() const { return static_cast<double>(config.hidden_size) * config.vocab_size; }

  // In the order of submission, turn after turn.
  std::vector<Sample> rollout(const EngineShape& s, int64_t call) {
    otr_sampling_params sampling;
    otr_sampling_params_init(&sampling, sizeof sampling);
    sampling.max_new_tokens = s.new_tokens;
    sampling.ignore_eos = 1;
    const size_t groups = static_cast<size_t>(s.groups), turns = static_cast<size_t>(s.turns);
    std::vector<std::vector<int32_t>> prompts(groups * turns);  // by tag: turn * groups + group
    for (size_t g = 0; g < groups; ++g) {
      prompts[g] = tokens(call, g, s.prompt_tokens);
      otr_group_request request;
      otr_group_request_init(&request, sizeof request);
      request.prompt_token_ids = prompts[g].data();
      request.num_prompt_tokens = prompts[g].size();
      request.n = s.n;
      request.stream = static_cast<uint64_t>(call) * 1000 + g;
      request.tag = g;
      request.sampling = &sampling;
      uint64_t id = 0;
      require(otr_submit(engine_, &request, &id), engine_);
    }
    std::map<std::pair<uint64_t, uint32_t>, Sample> samples;
    for_each_result([&](const otr_result* result, const otr_result_view& view) {
      const Sample& sample = samples[{view.tag, view.sample}] = {prompts[view.tag],
                                                                 {view.token_ids, view.token_ids + view.num_tokens},
                                                                 {view.logprobs, view.logprobs + view.num_tokens},
                                                                 {view.raw_logprobs, view.raw_logprobs + view.num_tokens}};
      const size_t next = view.tag + groups;
      if (next >= prompts.size()) return;
      const std::vector<int32_t> answer = tokens(call, next, kAnswerTokens);
      std::vector<int32_t>& whole = prompts[next] = sample.prompt;
      whole.insert(whole.end(), sample.tokens.begin(), sample.tokens.end());
      whole.insert(whole.end(), answer.begin(), answer.end());
      otr_append_request turn;
      otr_append_request_init(&turn, sizeof turn);
      turn.token_ids = answer.data();
      turn.num_tokens = answer.size();
      turn.tag = next;
      uint64_t id = 0;
      require(otr_append(engine_, result, &turn, &id), engine_);
    });
    std::vector<Sample> in_order;
    for (auto& [key, sample] : samples) in_order.push_back(std::move(sample));
    return in_order;
  }

  std::vector<float> score(const Sample& sample) {
    otr_score_request request;
    otr_score_request_init(&request, sizeof request);
    request.prompt_token_ids = sample.prompt.data();
    request.num_prompt_tokens = sample.prompt.size();
    request.token_ids = sample.tokens.data();
    request.num_tokens = sample.tokens.size();
    uint64_t id = 0;
    require(otr_score(engine_, &request, &id), engine_);
    std::vector<float> raw;
    for_each_result([&](const otr_result*, const otr_result_view& view) {
      raw.assign(view.raw_logprobs, view.raw_logprobs + view.num_tokens);
    });
    return raw;
  }

  ModelConfig config;

 private:
  std::vector<int32_t> tokens(int64_t call, size_t stream, int count) const {
    std::vector<int32_t> drawn;
    for (int i = 0; i < count; ++i) {
      const PhiloxBlock b = philox4x32(PhiloxKey{3, static_cast<uint32_t>(call)},
                                       PhiloxBlock{{static_cast<uint32_t>(i), static_cast<uint32_t>(stream), 0, 0}});
      drawn.push_back(static_cast<int32_t>(b.w[0] % static_cast<uint32_t>(std::min(config.vocab_size, kLiveTokens))));
    }
    return drawn;
  }

  template <typename Visit>
  void for_each_result(const Visit& visit) {
    otr_result* result = nullptr;
    otr_status status;
    while ((status = otr_wait(engine_, -1, &result)) == OTR_OK) {
      otr_result_view view;
      require(otr_result_get(result, &view, sizeof view), nullptr);
      visit(result, view);
      otr_result_destroy(result);
    }
    if (status != OTR_IDLE) require(status, engine_);
  }

  otr_engine* engine_ = nullptr;
};

std::string verify_samples(BenchEngine& engine, const EngineShape& s, const std::vector<Sample>& samples) {
  if (samples.size() != static_cast<size_t>(s.groups * s.n * s.turns)) return "wrong: samples are missing";
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].tokens.size() != static_cast<size_t>(s.new_tokens)) return "wrong: a sample has another length";
    const std::vector<float> scored = engine.score(samples[i]);
    if (scored.size() != samples[i].raw_logprobs.size() ||
        std::memcmp(scored.data(), samples[i].raw_logprobs.data(), scored.size() * sizeof(float)) != 0) {
      return "wrong: sample " + std::to_string(i) + " has other raw log-probs than its score";
    }
  }
  return "";
}

Work make_rollout(std::shared_ptr<BenchEngine> engine, const EngineShape& s) {
  auto samples = std::make_shared<std::vector<Sample>>();  // of the last call
  // What turns have computed is there for the next one, but for what does not fill a page.
  const int prompt_rows = s.groups * (s.prompt_tokens + (s.turns - 1) * kAnswerTokens), sample_rows = s.groups * s.n * s.turns;
  // The last chunk of the prompts yields the first tokens.
  const double prompt_runs = std::ceil(static_cast<double>(s.groups * s.prompt_tokens) / kPrefillChunk);
  const double runs = prompt_runs + s.turns - 1 + s.turns * (s.new_tokens - 1);
  Work work;
  work.items = static_cast<double>(s.new_tokens > 1 ? sample_rows * s.new_tokens : prompt_rows);
  const double rows_of_run = (prompt_rows + sample_rows * (s.new_tokens - 1)) / runs;
  work.bytes = 2.0 * (runs * engine->layer_weights(rows_of_run) + s.turns * s.new_tokens * engine->head_weights());
  work.flops = 2.0 * ((prompt_rows + sample_rows * (s.new_tokens - 1)) * engine->layer_weights() +
                      (s.groups * s.turns + sample_rows * (s.new_tokens - 1)) * engine->head_weights());
  work.run = [=](int64_t call) { *samples = engine->rollout(s, call); };
  work.verify = [=] { return verify_samples(*engine, s, *samples); };
  work.spoil = [=] { samples->clear(); };
  work.hash = [=] {
    uint64_t hash = 0;
    for (const Sample& sample : *samples) {
      for (const uint64_t h : {xxh64(sample.tokens.data(), sample.tokens.size() * sizeof(int32_t)),
                               xxh64(sample.logprobs.data(), sample.logprobs.size() * sizeof(float)),
                               xxh64(sample.raw_logprobs.data(), sample.raw_logprobs.size() * sizeof(float))}) {
        hash = hash * 0x9e3779b97f4a7c15u ^ h;
      }
    }
    return hash;
  };
  return work;
}

}  // namespace

void add_engine_cases(Suite& suite, const std::string& model) {
  auto engine = std::make_shared<std::shared_ptr<BenchEngine>>();  // made for the first case that runs
  for (const EngineShape& s : kShapes) {
    std::string name = std::string("engine/") + s.kind + "/";
    if (s.turns > 1) {
      name += "turns:" + std::to_string(s.turns) + "/batch:" + std::to_string(s.groups);
    } else if (s.n > 1) {
      name += "groups:" + std::to_string(s.groups) + "/n:" + std::to_string(s.n);
    } else if (s.new_tokens > 1) {
      name += "batch:" + std::to_string(s.groups);
    } else {
      name += "tokens:" + std::to_string(s.prompt_tokens);
    }
    suite.add(name, [&suite, engine, model, s] {
      if (*engine == nullptr) *engine = std::make_shared<BenchEngine>(model, suite.kernels().path, suite.pool().num_threads());
      return make_rollout(*engine, s);
    });
  }
}

}  // namespace otr::bench
