// The life of requests: nothing is lost, nothing is kept, and every one ends as it should whatever happens around it.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/runtime/every_path.h"
#include "tests/runtime/sanitized.h"
#include "tests/runtime/test_engine.h"

namespace otr {
namespace {

Request request(std::vector<int32_t> prompt, int32_t max_new_tokens, int32_t n = 1) {
  Request r;
  r.prompt = std::move(prompt);
  r.n = n;
  r.sampling.max_new_tokens = max_new_tokens;
  return r;
}

Request endless(std::vector<int32_t> prompt, int32_t max_new_tokens, int32_t n = 1) {
  Request r = request(std::move(prompt), max_new_tokens, n);
  r.sampling.ignore_eos = 1;
  return r;
}

// ---- Nothing is lost
// --------------------------------------------------------------------------------------------------------------

TEST(Structure, TenThousandRequestsEndWithEveryPageBack) {
  const TinyModel model;
  EngineSetup setup;
  setup.max_batch = 24;
  setup.prefill_chunk = 96;
  setup.num_pages = 20;
  const TestEngine engine(model, setup);
  const uint64_t count = kSanitized ? 500 : 10'000;
  std::mt19937 random(1);
  const auto below = [&random](uint32_t n) { return static_cast<int32_t>(random() % n); };
  std::map<std::pair<uint64_t, uint32_t>, otr_finish_reason> ended;
  std::set<uint64_t> scores;
  uint64_t samples = 0, cancels = 0, aborted = 0, tokens = 0, scored = 0, first_tokens = 0;
  const auto take = [&](int64_t timeout_ms) {
    otr_result* result = nullptr;
    const otr_status status = otr_wait(engine.get(), timeout_ms, &result);
    if (status != OTR_OK) return status;
    otr_result_view view;
    otr_result_get(result, &view, sizeof view);
    EXPECT_TRUE(ended.emplace(std::pair(view.tag, view.sample), view.finish_reason).second);
    EXPECT_NE(view.finish_reason, OTR_FINISH_ERROR) << view.error;
    aborted += view.finish_reason == OTR_FINISH_ABORT;
    (scores.count(view.tag) > 0 ? scored : tokens) += view.num_tokens;
    first_tokens += scores.count(view.tag) > 0 && view.num_tokens > 0;  // has no predecessor: reported (NaN), not run
    return otr_result_destroy(result);
  };
  for (uint64_t i = 0; i < count; ++i) {
    // Prompts share a few beginnings; some are longer than a chunk.
    std::vector<int32_t> prompt =
        random_tokens(static_cast<uint32_t>(below(5)), static_cast<size_t>(1 + below(below(20) == 0 ? 300 : 24)), 97);
    prompt.back() = below(97);
    uint64_t group;
    if (below(10) == 0) {
      scores.insert(i);
      group = engine.score({}, prompt, nullptr, i);
      ++samples;
    } else {
      Request r = request(prompt, 1 + below(16), 1 + below(3));
      r.stream = i;
      group = engine.submit(r, i);
      samples += static_cast<uint64_t>(r.n);
    }
    if (below(20) == 0) {
      const otr_status status = otr_cancel(engine.get(), group - static_cast<uint64_t>(below(3)));
      EXPECT_TRUE(status == OTR_OK || status == OTR_INVALID_ARGUMENT);  // finished already
      cancels += status == OTR_OK;
    }
    while (below(3) == 0 && take(0) == OTR_OK) {
    }
  }
  otr_status status;
  while ((status = take(120'000)) == OTR_OK) {
  }
  EXPECT_EQ(status, OTR_IDLE);
  EXPECT_EQ(ended.size(), samples);
  EXPECT_GT(cancels, count / 100);
  EXPECT_GT(aborted, count / 100);
  const nlohmann::json stats = engine.stats();
  EXPECT_EQ(stats["kv_pages_in_use"], 0);
  EXPECT_EQ(stats["kv_pages_peak"], 20);
  EXPECT_EQ(stats["outstanding_samples"], 0);
  EXPECT_EQ(stats["finished_samples"], samples);
  EXPECT_EQ(stats["generated_tokens"], tokens);
  EXPECT_EQ(stats["scored_tokens"].get<uint64_t>() + first_tokens, scored);
  EXPECT_LE(stats["batch_peak"], 24);
  EXPECT_GT(stats["preemptions"], 0);
  EXPECT_GT(stats["prefix_hit_tokens"], 0);
}

// Several sequences that grow in a pool that just holds one: each page one of them takes is one that another gives up.
TEST(Structure, APoolForOneServesMany) {
  const TinyModel model;
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 5; ++i) {
    requests.push_back(
        endless(random_tokens(i, 30 + 20 * i, 97), 256 - 30 - 20 * static_cast<int32_t>(i), 2));  // four pages each
    requests.back().stream = i;
  }
  const Outputs expected = TestEngine(model).run(requests);
  EngineSetup setup;
  setup.num_pages = 4;
  const TestEngine engine(model, setup);
  EXPECT_EQ(difference(expected, engine.run(requests)), "");
  EXPECT_GE(engine.count("preemptions"), 10);
  EXPECT_EQ(engine.count("kv_pages_in_use"), 0);
}

// Both first samples stop at once and leave siblings that hold the whole pool while they wait.
TEST(Structure, WaitingSiblingsGiveUpTheirPages) {
  const TinyModel model;
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 2; ++i) {
    requests.push_back(endless(random_tokens(i, 65, 97), 60, 4));
    requests.back().stream = i;
    const Outputs first = TestEngine(model).run({requests.back()});
    requests.back().stop_ids = {first.at({0, 0}).tokens[0]};
  }
  const Outputs expected = TestEngine(model).run(requests);
  EXPECT_EQ(expected.at({0, 0}).tokens.size(), 1u);
  EXPECT_EQ(expected.at({1, 0}).tokens.size(), 1u);
  for (const int64_t num_pages : {2, 3, 4}) {
    EngineSetup setup;
    setup.num_pages = num_pages;
    setup.max_batch = 2;
    const TestEngine engine(model, setup);
    EXPECT_EQ(difference(expected, engine.run(requests)), "") << num_pages;
  }
}

TEST(Structure, WhatNeverFitsIsRefusedAtSubmit) {
  const TinyModel model;
  EngineSetup setup;
  setup.num_pages = 3;
  const TestEngine engine(model, setup);
  uint64_t group = 0;
  EXPECT_EQ(engine.try_submit(endless({1}, 3 * 64), 0, &group), OTR_NEVER_FITS);  // 193 tokens
  EXPECT_NE(std::string(otr_last_error(engine.get())).find("193"), std::string::npos);
  EXPECT_EQ(engine.try_submit(endless(random_tokens(1, 192, 97), 1), 0, &group), OTR_NEVER_FITS);
  EXPECT_EQ(engine.count("outstanding_samples"), 0);
  const Outputs fits = engine.run({endless({1}, 3 * 64 - 1)});
  EXPECT_EQ(fits.at({0, 0}).tokens.size(), 191u);
  const std::vector<int32_t> tokens = random_tokens(1, 193, 97);
  engine.score({}, tokens, nullptr, 0);  // the last token needs no position
  EXPECT_EQ(engine.collect().at({0, 0}).reason, OTR_FINISH_SCORE);
  otr_score_request r;
  otr_score_request_init(&r, sizeof r);
  const std::vector<int32_t> longer = random_tokens(1, 194, 97);
  r.token_ids = longer.data();
  r.num_tokens = longer.size();
  EXPECT_EQ(otr_score(engine.get(), &r, &group), OTR_NEVER_FITS);
}

// ---- Faults stay with their request
// --------------------------------------------------------------------------------------------------

class Faults : public EveryPath {};

// Token 96 has an embedding that is not a number: whoever has it in the prompt fails, alone.
TEST_P(Faults, ANanFailsItsRequestOnly) {
  const TinyModel model({.num_layers = 2, .nan_embedding = 96});
  std::vector<Request> good;
  for (uint32_t i = 0; i < 8; ++i) {
    good.push_back(request(random_tokens(i, 20 + 17 * i, 96), 50, 2));
    good.back().stream = i;
  }
  const Outputs expected = TestEngine(model, setup()).run(good);
  for (const int32_t chunk : {512, 8}) {
    EngineSetup s = setup();
    s.prefill_chunk = chunk;
    s.num_pages = 24;  // pages of failed requests are soon used again
    const TestEngine engine(model, s);
    for (uint32_t i = 0; i < 8; ++i) {
      Request bad = request(random_tokens(i, 20 + 17 * i, 96), 50, 3);  // its good twin's tokens, but for one
      bad.prompt[7 + 9 * i] = 96;
      engine.submit(bad, 100 + i);
      engine.submit(good[i], i);
      engine.score({}, bad.prompt, nullptr, 200 + i);
    }
    Outputs outputs = engine.collect(), failed;
    for (uint32_t i = 0; i < 8; ++i) {
      for (const auto& [tag, samples] : {std::pair(100 + i, 3u), std::pair(200 + i, 1u)}) {
        for (uint32_t sample = 0; sample < samples; ++sample) {
          const Output& output = outputs.at({tag, sample});
          EXPECT_EQ(output.reason, OTR_FINISH_ERROR);
          EXPECT_NE(output.error, "");
          EXPECT_TRUE(output.tokens.empty()) << "how much of it there is would depend on the chunks";
          outputs.erase({tag, sample});
        }
      }
    }
    EXPECT_EQ(difference(expected, outputs), "") << "chunk " << chunk;
    EXPECT_EQ(engine.count("kv_pages_in_use"), 0);
    EXPECT_EQ(difference(expected, engine.run(good)), "") << "afterwards, chunk " << chunk;
  }
}

// A generated token may be the bad one: what came before it stays.
TEST_P(Faults, ANanInTheResponseKeepsTheTokensBefore) {
  const TinyModel model({.eos_ids = {}, .nan_embedding = 96});
  Request r = endless({1, 2, 3}, 60, 32);
  r.sampling.temperature = 20.0f;
  const TestEngine engine(model, setup());
  const Outputs outputs = engine.run({r});
  int failed = 0;
  for (const auto& [key, output] : outputs) {
    const bool bad = output.reason == OTR_FINISH_ERROR;
    failed += bad;
    ASSERT_FALSE(output.tokens.empty());
    EXPECT_EQ(output.tokens.back() == 96 && output.tokens.size() < 60, bad);
    EXPECT_EQ(output.logprobs.size(), output.tokens.size());
    if (!bad) {
      EXPECT_EQ(output.tokens.size(), 60u);
    }
  }
  EXPECT_GT(failed, 3);
  EXPECT_LT(failed, 32);
}

TEST_P(Faults, ANanLogitFailsRolloutsAndScores) {
  const TinyModel model({.nan_lm_head = 50});
  const TestEngine engine(model, setup());
  engine.submit(request({1, 2, 3}, 10, 3), 0);
  engine.score({1, 2}, {3, 4}, nullptr, 1);
  const Outputs outputs = engine.collect();
  ASSERT_EQ(outputs.size(), 4u);
  for (const auto& [key, output] : outputs) {
    EXPECT_EQ(output.reason, OTR_FINISH_ERROR);
    EXPECT_NE(output.error, "");
    EXPECT_TRUE(output.tokens.empty());
  }
  EXPECT_EQ(engine.count("kv_pages_in_use"), 0);
}

OTR_INSTANTIATE_EVERY_PATH(Faults);

// ---- How a response ends
// ----------------------------------------------------------------------------------------------------------------

TEST(Endings, StopTokens) {
  const TinyModel model;  // token 3 ends a sequence
  const TestEngine engine(model);
  Request r = endless({5, 6, 7}, 200);
  const std::vector<int32_t> all = engine.run({r}).at({0, 0}).tokens;
  ASSERT_EQ(all.size(), 200u);
  const auto first = [&all](int32_t token) {
    return static_cast<size_t>(std::find(all.begin(), all.end(), token) - all.begin()) + 1;
  };
  ASSERT_LE(first(3), 200u) << "the endless response never draws the stop token: choose another stream";

  const auto ends_after = [&](const Request& stopping, size_t length) {
    const Output output = engine.run({stopping}).at({0, 0});
    EXPECT_EQ(output.reason, OTR_FINISH_STOP);
    EXPECT_EQ(output.tokens,
              std::vector<int32_t>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(length)));  // it is the last
    EXPECT_EQ(output.logprobs.size(), length);
  };
  r.sampling.ignore_eos = 0;
  ends_after(r, first(3));
  r.stop_ids = {all[0]};
  ends_after(r, 1);
  r.sampling.ignore_eos = 1;
  ends_after(r, 1);
  r.stop_ids = {all[9], all[4], all[9], all[4]};  // in any order, repeated
  ends_after(r, std::min(first(all[4]), first(all[9])));
  // At the last token, stop goes before length.
  r.sampling.max_new_tokens = static_cast<int32_t>(std::min(first(all[4]), first(all[9])));
  ends_after(r, static_cast<size_t>(r.sampling.max_new_tokens));
}

TEST(Endings, LengthIsClampedByTheContext) {
  const TinyModel model({.max_position_embeddings = 150});
  const TestEngine engine(model);
  for (const size_t prompt : {size_t{1}, size_t{100}, size_t{149}}) {
    const Output output = engine.run({endless(random_tokens(1, prompt, 97), 1000)}).at({0, 0});
    EXPECT_EQ(output.reason, OTR_FINISH_LENGTH);
    EXPECT_EQ(output.tokens.size(), 150 - prompt);
  }
  uint64_t group;
  EXPECT_EQ(engine.try_submit(endless(random_tokens(1, 150, 97), 1), 0, &group), OTR_INVALID_ARGUMENT);
}

TEST(Endings, OneTokenIsOneToken) {
  const TinyModel model;
  const TestEngine engine(model);
  const Outputs outputs = engine.run({endless({1}, 1, 5)});
  ASSERT_EQ(outputs.size(), 5u);
  for (const auto& [key, output] : outputs) {
    EXPECT_EQ(output.tokens.size(), 1u);
    EXPECT_EQ(output.reason, OTR_FINISH_LENGTH);
  }
}

// Temperature 0: every sample is the same, log-probs are those of a certain draw, and each token has the highest raw log-prob.
TEST(Endings, GreedyIsCertain) {
  const TinyModel model;
  const TestEngine engine(model);
  Request r = endless({1, 2}, 30, 3);
  r.sampling.temperature = 0.0f;
  const Outputs outputs = engine.run({r});
  const Output& first = outputs.at({0, 0});
  for (uint32_t sample = 0; sample < 3; ++sample) EXPECT_EQ(outputs.at({0, sample}), first);
  for (const uint32_t bits : first.logprobs) EXPECT_EQ(bits, 0u);
  std::vector<int32_t> history = r.prompt;
  for (size_t t = 0; t < 5; ++t) {
    float best = -1e9f;
    for (int32_t v = 0; v < 97; ++v) engine.score(history, {v}, nullptr, static_cast<uint64_t>(v));
    const Outputs scores = engine.collect();
    for (const auto& [key, score] : scores) best = std::max(best, float_from_bits(score.raw_logprobs[0]));
    EXPECT_EQ(float_from_bits(first.raw_logprobs[t]), best);
    history.push_back(first.tokens[t]);
  }
}

TEST(Endings, MoreSamplesThanTheBatch) {
  const TinyModel model;
  EngineSetup setup;
  setup.max_batch = 4;
  const TestEngine engine(model, setup), wide(model);
  const Request r = request({1, 2, 3}, 20, 100);
  const Outputs outputs = engine.run({r});
  EXPECT_EQ(outputs.size(), 100u);
  EXPECT_EQ(difference(outputs, wide.run({r})), "");
  EXPECT_LE(engine.count("batch_peak"), 4);
}

// Prompts that end just before, at and behind a page's end: the next token of each is the one a longer prompt would score.
TEST(Endings, PromptsAtPageBoundaries) {
  const TinyModel model;
  const TestEngine engine(model);
  const std::vector<int32_t> tokens = random_tokens(4, 130, 97);
  for (const size_t size : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{127}, size_t{128}, size_t{129}}) {
    const std::vector<int32_t> prompt(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(size));
    const Outputs outputs = engine.run({endless(prompt, 70, 3)});
    for (uint32_t sample = 0; sample < 3; ++sample) {
      const Output& output = outputs.at({0, sample});
      std::vector<int32_t> whole = prompt;
      whole.insert(whole.end(), output.tokens.begin(), output.tokens.end());
      engine.score({}, whole, nullptr, 0);
      const std::vector<uint32_t> scored = engine.collect().at({0, 0}).raw_logprobs;
      EXPECT_EQ(output.raw_logprobs, std::vector<uint32_t>(scored.begin() + static_cast<std::ptrdiff_t>(size), scored.end()))
          << size;
    }
  }
}

// ---- Counters
// ---------------------------------------------------------------------------------------------------------------------------

// What one request costs is known; a hit that could not be used at once is counted once.
TEST(Counters, AddUp) {
  const TinyModel model;
  EngineSetup setup;
  setup.num_pages = 8;
  const TestEngine engine(model, setup);
  const Request r = endless(random_tokens(1, 200, 97), 10, 2);
  engine.run({r});
  nlohmann::json stats = engine.stats();
  EXPECT_EQ(stats["prefill_tokens"], 199);  // the prompt runs once for both; its last row is a draw
  EXPECT_EQ(stats["generated_tokens"], 20);
  EXPECT_EQ(stats["finished_samples"], 2);
  EXPECT_EQ(stats["prefix_hit_tokens"], 0);
  EXPECT_EQ(stats["ticks"], 10);
  EXPECT_EQ(stats["batch_peak"], 2);
  EXPECT_EQ(stats["kv_pages_peak"], 5);  // three full ones, and two copies of the fourth
  EXPECT_EQ(stats["kv_page_bytes"], model.layout().page_bytes());
  EXPECT_EQ(stats["kv_pages_total"], 8);
  EXPECT_GT(stats["busy_seconds"], stats["kernel_seconds"]);

  // Another one takes the five pages that are not cached and keeps them for some sixty ticks. As long the first waits, its hit
  // in view.
  engine.submit_together([&] {
    engine.submit(endless(random_tokens(2, 257, 97), 63), 0);
    engine.submit(r, 1);
  });
  engine.collect();
  EXPECT_EQ(engine.stats()["prefix_hit_tokens"], 192);
}

// What passes cost cannot be measured in a pool of one page, and need not be.
TEST(Structure, APoolOfOnePageWillDo) {
  const TinyModel model;
  Request r(random_tokens(4, 20, 97));
  r.n = 2;
  r.sampling.max_new_tokens = 40;
  const Outputs expected = TestEngine(model).run({r});
  for (const char* policy : {"auto", "specactor", "efficientrollout"}) {
    const TestEngine engine(model, {.num_pages = 1, .policy = policy});
    EXPECT_EQ(difference(expected, engine.run({r})), "") << policy;
    EXPECT_EQ(engine.count("kv_pages_in_use"), 0);
  }
}

// A pool that is full of cached prompts drafts as well as an empty one.
TEST(Structure, CachedPromptsDoNotStarveDrafts) {
  const TinyModel model;
  const EngineSetup setup{.num_pages = 24, .policy = "fixed:self:6:3:12"};
  const TestEngine fresh(model, setup), used(model, setup);
  for (uint32_t i = 0; i < 30; ++i) {
    Request r(random_tokens(i, 200, 97));
    r.sampling.max_new_tokens = 1;
    used.run({r});
  }
  Request r(random_tokens(99, 50, 97));
  r.n = 2;
  r.sampling.max_new_tokens = 200;
  r.sampling.ignore_eos = 1;
  const auto drafted = [](const TestEngine& e) {
    return e.stats()["speculation"]["drafters"]["self"]["drafted"].get<int64_t>();
  };
  const Outputs expected = fresh.run({r});
  const int64_t before = drafted(used);
  EXPECT_EQ(difference(used.run({r}), expected), "");
  EXPECT_EQ(drafted(used) - before, drafted(fresh));
  EXPECT_GT(drafted(fresh), 400);
}

}  // namespace
}  // namespace otr
