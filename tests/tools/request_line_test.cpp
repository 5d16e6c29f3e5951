#include "tools/outrider/request_line.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tools/outrider/failure.h"

namespace otr::cli {
namespace {

std::string rollout_reason(const std::string& text) {
  try {
    parse_rollout_line(text, 1, SamplingSettings());
  } catch (const BadLine& bad) {
    return bad.what();
  }
  return "";
}

std::string score_reason(const std::string& text) {
  try {
    parse_score_line(text, 1);
  } catch (const BadLine& bad) {
    return bad.what();
  }
  return "";
}

TEST(RolloutLine, OverridesBeatDefaults) {
  SamplingSettings defaults;
  defaults.n = 4;
  defaults.params.top_k = 5;
  const RolloutLine line = parse_rollout_line(
      R"({"id":"a","prompt_token_ids":[1,2],"n":2,"max_new_tokens":7,"temperature":0.7,"top_p":0.9,"min_p":0.1,
          "seed":18446744073709551615,"repetition_penalty":1.1,"presence_penalty":-1,"frequency_penalty":0.5,
          "stop_token_ids":[3],"ignore_eos":true,"stream":9,"answer":{"x":[1]},"kind":2,"metadata":null})",
      1, defaults);
  EXPECT_EQ(line.id.json, "\"a\"");
  EXPECT_EQ(line.prompt_token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(line.stream, 9u);
  EXPECT_EQ(line.sampling.n, 2);
  const otr_sampling_params params = line.sampling.abi();
  EXPECT_EQ(params.max_new_tokens, 7);
  EXPECT_EQ(params.temperature, 0.7f);
  EXPECT_EQ(params.top_k, 5);
  EXPECT_EQ(params.top_p, 0.9f);
  EXPECT_EQ(params.min_p, 0.1f);
  EXPECT_EQ(params.seed, 18446744073709551615u);
  EXPECT_EQ(params.repetition_penalty, 1.1f);
  EXPECT_EQ(params.presence_penalty, -1.0f);
  EXPECT_EQ(params.frequency_penalty, 0.5f);
  EXPECT_EQ(params.ignore_eos, 1);
  ASSERT_EQ(params.num_stop_token_ids, 1u);
  EXPECT_EQ(params.stop_token_ids[0], 3);
}

TEST(RolloutLine, IdsAreKeptAsGiven) {
  const auto id = [](const char* text) { return parse_rollout_line(text, 12, SamplingSettings()).id; };
  EXPECT_EQ(id(R"({"prompt":"x"})").json, "12");
  EXPECT_EQ(id(R"({"prompt":"x","id":-3})").json, "-3");
  EXPECT_EQ(id(R"({"prompt":"x","id":"a\"\u00e9\n"})").json, "\"a\\\"é\\n\"");
  EXPECT_EQ(id(R"({"prompt":"x","id":"7"})").text, id(R"({"prompt":"x","id":7})").text);
}

TEST(RolloutLine, RefusesWithTheKey) {
  EXPECT_EQ(rollout_reason(R"({"id":"a"})"), "needs either prompt or prompt_token_ids");
  EXPECT_EQ(rollout_reason(R"({"prompt":"a","prompt_token_ids":[1]})"), "needs either prompt or prompt_token_ids");
  EXPECT_EQ(rollout_reason(R"({"prompt":"a","temprature":1})"), "unknown key \"temprature\"");
  EXPECT_EQ(rollout_reason(R"({"prompt":1})"), "prompt: must be a string");
  EXPECT_EQ(rollout_reason(R"({"prompt":"a","id":1.5})"), "id: must be a string or an integer");
  for (const char* ids : {"[-1]", "[1.0]", "[true]", "[2147483648]", "3", "[\"1\"]", "[[1]]"}) {
    EXPECT_NE(rollout_reason(std::string(R"({"prompt_token_ids":)") + ids + "}").find("prompt_token_ids: must be"),
              std::string::npos)
        << ids;
  }
  const char* bad[][2] = {{"n", "0"},
                          {"n", "1.5"},
                          {"n", "-1"},
                          {"n", "2147483648"},
                          {"n", "null"},
                          {"max_new_tokens", "0"},
                          {"temperature", "0.005"},
                          {"temperature", "-1"},
                          {"temperature", "101"},
                          {"temperature", "\"1\""},
                          {"temperature", "1e-50"},
                          {"top_k", "-1"},
                          {"top_p", "0"},
                          {"top_p", "1.01"},
                          {"min_p", "-0.1"},
                          {"min_p", "2"},
                          {"repetition_penalty", "0"},
                          {"presence_penalty", "1e39"},
                          {"frequency_penalty", "[]"},
                          {"seed", "-1"},
                          {"seed", "1.0"},
                          {"stream", "-1"},
                          {"ignore_eos", "1"},
                          {"stop_token_ids", "5"}};
  for (const auto& [key, value] : bad) {
    const std::string text = std::string("{\"prompt\":\"a\",\"") + key + "\":" + value + "}";
    EXPECT_EQ(rollout_reason(text).rfind(std::string(key) + ": must be", 0), 0u) << text << " -> " << rollout_reason(text);
  }
}

TEST(ScoreLine, TakesARolloutsLine) {
  const ScoreLine line = parse_score_line(
      R"({"id":"a","sample":3,"prompt_token_ids":[1],"token_ids":[2,3],"logprobs":[-1,null],"raw_logprobs":[-1,-2],
          "text":"x","finish_reason":"stop"})",
      1);
  EXPECT_EQ(line.sample_json, "3");
  EXPECT_EQ(line.token_ids.size(), 2u);
  EXPECT_FALSE(line.has_sampling);
  EXPECT_TRUE(parse_score_line(R"({"token_ids":[2],"temperature":0.5})", 1).has_sampling);
}

TEST(ScoreLine, RefusesWithTheKey) {
  EXPECT_EQ(score_reason(R"({"id":"a"})"), "needs token_ids, at least one");
  EXPECT_EQ(score_reason(R"({"token_ids":[]})"), "needs token_ids, at least one");
  EXPECT_EQ(score_reason(R"({"token_ids":[1],"prompt":"a"})"), "unknown key \"prompt\"");
  EXPECT_EQ(score_reason(R"({"token_ids":[1],"seed":1})"), "unknown key \"seed\"");
  EXPECT_EQ(score_reason(R"({"token_ids":[1],"sample":-1})"), "sample: must be an integer, at least 0");
  EXPECT_NE(score_reason(R"({"token_ids":[1],"top_p":0})"), "");
}

// Noise must differ between prompts and steps. The known value pins the function: changing it would change every rollout.
TEST(Stream, DependsOnStepAndId) {
  std::set<uint64_t> streams;
  for (uint64_t step = 0; step < 100; ++step) {
    for (int id = 0; id < 100; ++id) streams.insert(stream_of(step, std::to_string(id)));
  }
  EXPECT_EQ(streams.size(), 10000u);
  EXPECT_EQ(stream_of(0, "0000"), 10999789441291398849u);
  EXPECT_EQ(stream_of(7, "é"), 11603707736429186944u);
}

}  // namespace
}  // namespace otr::cli
