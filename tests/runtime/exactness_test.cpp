// The contract at the engine: what a request gives is a function of the request and the path, whatever it is batched with.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/runtime/every_path.h"
#include "tests/runtime/mixed_requests.h"
#include "tests/runtime/test_engine.h"

namespace otr {
namespace {

class Exactness : public EveryPath {
 protected:
  Outputs run(const EngineSetup& setup) { return TestEngine(model_, setup).run(requests_); }

  const TinyModel model_{{.num_layers = 2}};
  const std::vector<Request> requests_ = mixed_requests(model_);
};

TEST_P(Exactness, BatchChunkAndThreadsChangeNothing) {
  const Outputs expected = run(setup());
  size_t stopped = 0, tokens = 0;
  for (const auto& [key, output] : expected) {
    EXPECT_EQ(output.error, "");
    stopped += output.reason == OTR_FINISH_STOP;
    tokens += output.tokens.size();
  }
  EXPECT_GT(stopped, 1u);  // the mix is one: some stop, and they do not stop at once
  EXPECT_GT(tokens, 5 * expected.size());
  struct Variant {
    int32_t max_batch, chunk, threads;
  };
  for (const Variant& v :
       {Variant{1, 512, 1}, {3, 64, 1}, {64, 1, 1}, {64, 16, 1}, {64, 64, 1}, {3, 16, 2}, {64, 512, 2}, {64, 512, 3}}) {
    EngineSetup s = setup();
    s.max_batch = v.max_batch;
    s.prefill_chunk = v.chunk;
    s.num_threads = v.threads;
    EXPECT_EQ(difference(expected, run(s)), "")
        << "batch " << v.max_batch << ", chunk " << v.chunk << ", threads " << v.threads;
  }
}

TEST_P(Exactness, PreemptionChangesNothing) {
  const Outputs expected = run(setup());
  for (const int32_t chunk : {512, 48}) {
    EngineSetup s = setup();
    s.num_pages = 1;  // and what the largest request takes
    for (const Request& r : requests_) {
      const int64_t tokens = static_cast<int64_t>(r.prompt.size()) + r.sampling.max_new_tokens;
      s.num_pages = std::max(s.num_pages, 1 + (tokens + kPageTokens - 1) / kPageTokens);
    }
    s.prefill_chunk = chunk;
    const TestEngine engine(model_, s);
    EXPECT_EQ(difference(expected, engine.run(requests_)), "") << "chunk " << chunk;
    EXPECT_GE(engine.count("preemptions"), 10) << "chunk " << chunk;
    EXPECT_EQ(engine.count("kv_pages_in_use"), 0);
  }
}

TEST_P(Exactness, APrefixHitChangesNothing) {
  const TestEngine engine(model_, setup());
  const Outputs cold = engine.run(requests_);
  // Of prompts that were computed at the same time only one leaves its pages behind: one by one, the others now leave theirs.
  Outputs warm;
  for (size_t i = 0; i < requests_.size(); ++i) {
    engine.submit(requests_[i], i);
    warm.merge(engine.collect());
  }
  EXPECT_EQ(difference(cold, warm), "");
  const int64_t hits = engine.count("prefix_hit_tokens");
  EXPECT_EQ(difference(cold, engine.run(requests_)), "");
  int64_t sharable = 0;  // every full page before a prompt's last token, once a group
  for (const Request& r : requests_) sharable += static_cast<int64_t>((r.prompt.size() - 1) / kPageTokens * kPageTokens);
  EXPECT_EQ(engine.count("prefix_hit_tokens") - hits, sharable);
}

TEST_P(Exactness, OrderAndCompanyChangeNothing) {
  const TestEngine engine(model_, setup());
  const Outputs expected = engine.run(requests_);
  std::vector<size_t> order(requests_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  const TestEngine other(model_, setup());
  for (const size_t i : order) other.submit(requests_[i], i);
  EXPECT_EQ(difference(expected, other.collect()), "");
  Outputs alone;  // and one after the other
  for (size_t i = 0; i < requests_.size(); ++i) {
    other.submit(requests_[i], i);
    alone.merge(other.collect());
  }
  EXPECT_EQ(difference(expected, alone), "");
}

TEST_P(Exactness, AGroupIsTheSumOfItsSamples) {
  const TestEngine engine(model_, setup());
  const Outputs expected = engine.run(requests_);
  for (size_t i = 0; i < requests_.size(); ++i) {
    Request part = requests_[i];
    const int32_t n = part.n;
    part.n = n / 2;
    if (part.n > 0) engine.submit(part, i);
    part.first_sample += static_cast<uint32_t>(n / 2);
    part.n = n - n / 2;
    engine.submit(part, i);
  }
  EXPECT_EQ(difference(expected, engine.collect()), "");
}

// Penalties, filters and temperatures included.
TEST_P(Exactness, AScoreIsWhatTheRolloutReported) {
  const Outputs expected = TestEngine(model_, setup()).run(requests_);
  for (const int32_t chunk : {512, 20}) {
    EngineSetup s = setup();
    s.prefill_chunk = chunk;
    const TestEngine engine(model_, s);
    uint64_t tag = 0;
    for (const auto& [key, output] : expected) {
      otr_sampling_params sampling = requests_[key.first].sampling;
      engine.score(requests_[key.first].prompt, output.tokens, &sampling, tag++);
    }
    const Outputs scores = engine.collect();
    EXPECT_EQ(engine.count("prefix_hit_tokens"), 0);
    tag = 0;
    for (const auto& [key, output] : expected) {
      Output wanted = output;
      wanted.reason = OTR_FINISH_SCORE;
      EXPECT_EQ(difference({{{0, 0}, wanted}}, {{{0, 0}, scores.at({tag++, 0})}}), "")
          << "request " << key.first << ", sample " << key.second << ", chunk " << chunk;
    }
  }
}

// An old sample that grows takes the pages of scores that have come part of the way: they go on where they were.
TEST_P(Exactness, PreemptedScoresChangeNothing) {
  const int32_t vocab = model_.shape().vocab_size;
  otr_sampling_params penalised;
  otr_sampling_params_init(&penalised, sizeof penalised);
  penalised.repetition_penalty = 1.2f;
  penalised.frequency_penalty = 0.1f;
  const auto submit_scores = [&](const TestEngine& engine, uint32_t round) {
    for (uint32_t i = 0; i < 12; ++i) {
      const std::vector<int32_t> tokens = random_tokens(100 * round + i, 60 + (i * 83 + round * 29) % 250, vocab);
      engine.score({}, tokens, i % 3 == 0 ? &penalised : nullptr, i);
    }
  };
  const TestEngine free(model_, setup());
  EngineSetup s = setup();
  s.num_pages = 6;
  s.prefill_chunk = 5;
  const TestEngine small(model_, s);
  for (uint32_t round = 0; round < (kSanitized ? 3u : 10u); ++round) {
    submit_scores(free, round);
    const Outputs expected = free.collect();
    Request old;
    old.prompt = random_tokens(round, 7 + 6 * round, vocab);
    old.sampling.max_new_tokens = 270;
    old.sampling.ignore_eos = 1;
    small.submit_together([&] {
      small.submit(old, 99);
      submit_scores(small, round);
    });
    Outputs scores = small.collect();
    scores.erase({99, 0});
    EXPECT_EQ(difference(expected, scores), "") << "round " << round;
  }
  EXPECT_GT(small.count("preemptions"), 0);
}

// Where a prompt ends and the scored tokens begin changes nothing either, and the first token of all has no log-prob.
TEST_P(Exactness, AScoreWithoutAPromptBeginsWithNaN) {
  const TestEngine engine(model_, setup());
  const std::vector<int32_t> tokens = random_tokens(9, 300, model_.shape().vocab_size);
  engine.score({}, tokens, nullptr, 0);
  engine.score({tokens.begin(), tokens.begin() + 100}, {tokens.begin() + 100, tokens.end()}, nullptr, 1);
  engine.score({}, {tokens[0]}, nullptr, 2);
  const Outputs scores = engine.collect();
  const std::vector<uint32_t>& all = scores.at({0, 0}).raw_logprobs;
  ASSERT_EQ(all.size(), tokens.size());
  EXPECT_TRUE(scores.at({0, 0}).logprobs.empty());
  EXPECT_TRUE(std::isnan(float_from_bits(all[0])));
  for (size_t t = 1; t < all.size(); ++t) ASSERT_LT(float_from_bits(all[t]), 0.0f);
  EXPECT_EQ(scores.at({1, 0}).raw_logprobs, std::vector<uint32_t>(all.begin() + 100, all.end()));
  ASSERT_EQ(scores.at({2, 0}).raw_logprobs.size(), 1u);
  EXPECT_TRUE(std::isnan(float_from_bits(scores.at({2, 0}).raw_logprobs[0])));
}

OTR_INSTANTIATE_EVERY_PATH(Exactness);

// ---- That the comparison can fail, and what must differ
// ------------------------------------------------------------------------

TEST(ExactnessInverse, ADifferentSeedOrStreamIsFound) {
  const TinyModel model;
  std::vector<Request> requests = mixed_requests(model);
  const TestEngine engine(model);
  const Outputs expected = engine.run(requests);
  requests[5].sampling.seed ^= 1;
  EXPECT_EQ(difference(expected, engine.run(requests)).rfind("request 5 ", 0), 0u);
  requests[5].sampling.seed ^= 1;
  requests[6].stream += uint64_t{1} << 40;
  EXPECT_EQ(difference(expected, engine.run(requests)).rfind("request 6 ", 0), 0u);
}

TEST(ExactnessInverse, OneBitOfOneNumberIsFound) {
  const TinyModel model;
  const Outputs expected = TestEngine(model).run(mixed_requests(model));
  for (const int what : {0, 1, 2, 3}) {
    Outputs changed = expected;
    Output& last = changed.rbegin()->second;
    if (what == 0) last.tokens.back() ^= 1;
    if (what == 1) last.logprobs.back() ^= 1;
    if (what == 2) last.raw_logprobs.back() ^= 1;
    if (what == 3) last.tokens.pop_back(), last.logprobs.pop_back(), last.raw_logprobs.pop_back();
    EXPECT_NE(difference(expected, changed), "") << what;
  }
}

// Samples, streams and seeds share no noise: thirty samples of one prompt are thirty different texts, and over all pairs they
// agree in a position about as often as independent draws from a flat distribution over 97 tokens would.
TEST(Noise, SamplesStreamsAndSeedsDiffer) {
  const TinyModel model({.eos_ids = {}});
  const TestEngine engine(model);
  Request r;
  r.prompt = {1, 2, 3};
  r.n = 10;
  r.sampling.max_new_tokens = 40;
  r.sampling.temperature = 100.0f;
  r.stream = 1;
  engine.submit(r, 0);
  r.stream = 2;
  engine.submit(r, 1);
  r.sampling.seed = 1;
  engine.submit(r, 2);
  const Outputs outputs = engine.collect();
  ASSERT_EQ(outputs.size(), 30u);
  int64_t positions = 0, equal = 0;
  for (auto a = outputs.begin(); a != outputs.end(); ++a) {
    for (auto b = std::next(a); b != outputs.end(); ++b) {
      EXPECT_NE(a->second.tokens, b->second.tokens);
      for (size_t t = 0; t < 40; ++t, ++positions) equal += a->second.tokens[t] == b->second.tokens[t];
    }
  }
  EXPECT_LT(static_cast<double>(equal), 0.02 * static_cast<double>(positions));
}

}  // namespace
}  // namespace otr
