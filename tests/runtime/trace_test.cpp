// The trace agrees with the counters and the samples, whatever state the engine leaves it in.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/runtime/test_engine.h"

namespace otr {
namespace {

using nlohmann::json;

class TraceTest : public testing::Test {
 protected:
  EngineSetup setup(const char* policy) const {
    EngineSetup s;
    s.policy = policy;
    s.trace_path = path_;
    return s;
  }
  std::vector<Request> requests() const {
    std::vector<Request> all;
    for (uint32_t i = 0; i < 5; ++i) {
      Request r(random_tokens(i, 20 + 30 * i, 97));
      r.n = 3;
      r.stream = i;
      r.sampling.max_new_tokens = 10 + static_cast<int32_t>(20 * i);
      all.push_back(r);
    }
    return all;
  }
  std::string text() const {
    std::ifstream file(path_);
    return (std::stringstream() << file.rdbuf()).str();
  }
  // As `outrider report` reads it: line by line, so that an open array is as good.
  std::vector<json> events() const {
    std::vector<json> all;
    std::istringstream lines(text());
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with(',')) line.pop_back();
      if (!line.empty() && line != "[" && line != "]") all.push_back(json::parse(line));
    }
    return all;
  }
  static std::vector<json> named(const std::vector<json>& events, const std::string& name) {
    std::vector<json> found;
    std::copy_if(events.begin(), events.end(), std::back_inserter(found),
                 [&name](const json& e) { return e.at("name") == name; });
    return found;
  }

  const TinyModel model_;
  const std::string path_ = model_.path() + "/trace.json";
};

int64_t sum_of(const std::vector<json>& ticks, const char* key) {
  int64_t sum = 0;
  for (const json& tick : ticks) sum += tick.at("args").at(key).get<int64_t>();
  return sum;
}

TEST_F(TraceTest, AgreesWithCountersAndSamples) {
  for (const char* policy : {"off", "fixed:self+ngram:4:3:12", "tlt"}) {
    Outputs outputs;
    json stats;
    {
      const TestEngine engine(model_, setup(policy));
      engine.score({1, 2, 3}, {4, 5, 6}, nullptr, 1000);
      engine.collect();
      outputs = engine.run(requests());
      stats = engine.stats();
      // Complete as soon as the last sample is there, though not closed.
      EXPECT_EQ(named(events(), "sample").size(), outputs.size());
      EXPECT_FALSE(text().ends_with("]\n"));
    }
    const json closed = json::parse(text());
    const std::vector<json> all(closed.begin(), closed.end()), ticks = named(all, "tick");
    EXPECT_EQ(all, events());
    EXPECT_EQ(static_cast<int64_t>(ticks.size()), stats["ticks"].get<int64_t>());
    EXPECT_EQ(sum_of(ticks, "tokens"), stats["generated_tokens"].get<int64_t>());
    EXPECT_EQ(sum_of(ticks, "prefill_tokens"), stats["prefill_tokens"].get<int64_t>());
    EXPECT_EQ(sum_of(ticks, "drafted"), stats["speculation"]["draft_tokens"].get<int64_t>());
    EXPECT_EQ(sum_of(ticks, "accepted"), stats["speculation"]["accepted_tokens"].get<int64_t>());
    EXPECT_EQ(sum_of(ticks, "verified"), stats["speculation"]["verify_steps"].get<int64_t>());
    EXPECT_FALSE(stats.contains("trace_error"));
    for (size_t i = 0; i < ticks.size(); ++i) EXPECT_EQ(ticks[i]["args"]["tick"].get<size_t>(), i);

    std::multiset<size_t> lengths, traced;
    for (const auto& [key, output] : outputs) lengths.insert(output.tokens.size());
    for (const json& sample : named(all, "sample")) traced.insert(sample["args"]["tokens"].get<size_t>());
    EXPECT_EQ(traced, lengths);

    const json who = named(all, "outrider").at(0)["args"];
    EXPECT_EQ(who["policy"], policy);
    EXPECT_EQ(who["isa"], stats["isa"]);
    EXPECT_EQ(named(all, "batch").size(), ticks.size());
    EXPECT_EQ(named(all, "acceptance").size(), ticks.size());
    EXPECT_EQ(named(all, "tokens per second").size(), ticks.size());
  }
}

TEST_F(TraceTest, SlicesLieInsideTheirTick) {
  {
    const TestEngine engine(model_, setup("fixed:self:4"));
    engine.run(requests());
  }
  const double rounding = 0.2;  // us
  double begin = 0, end = 0, previous_end = 0;
  int drafts = 0, verifications = 0;
  for (const json& e : events()) {
    if (e["ph"] != "X") continue;
    const double ts = e["ts"].get<double>(), until = ts + e["dur"].get<double>();
    if (e["name"] == "tick") {
      EXPECT_GE(ts, previous_end - rounding);
      begin = ts, end = previous_end = until;
      const json& args = e["args"];
      EXPECT_EQ(args["drafters"].empty(), !args.contains("depth"));
      EXPECT_TRUE(args["drafters"] == json::array() || args["drafters"] == json::array({"self"})) << args;
      continue;
    }
    drafts += e["name"] == "draft";
    verifications += e["name"] == "verify";
    EXPECT_GE(ts, begin - rounding);
    EXPECT_LE(until, end + rounding);
  }
  EXPECT_GT(drafts, 10);
  EXPECT_GT(verifications, drafts);  // the prompts' ticks have no draft
}

std::string create_error(const TinyModel& model, const std::string& trace_path, otr_status expected) {
  otr_engine_options options;
  otr_engine_options_init(&options, sizeof options);
  options.model_path = model.path().c_str();
  options.kv_bytes = model.kv_bytes(64);
  options.trace_path = trace_path.c_str();
  otr_engine* engine = nullptr;
  EXPECT_EQ(otr_engine_create(&options, &engine), expected);
  EXPECT_EQ(engine, nullptr);
  return otr_last_error(nullptr);
}

TEST_F(TraceTest, WhatCannotBeWrittenIsAnErrorAtCreate) {
  EXPECT_EQ(create_error(model_, "/nowhere/trace.json", OTR_IO_ERROR),
            "cannot write the trace /nowhere/trace.json: No such file or directory");
  EXPECT_EQ(create_error(model_, model_.path(), OTR_IO_ERROR), "cannot write the trace " + model_.path() + ": Is a directory");
  EXPECT_EQ(create_error(model_, "/dev/full", OTR_IO_ERROR), "cannot write the trace /dev/full: No space left on device");
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(create_error(model_, path_, OTR_IO_ERROR),
            "cannot write the trace " + path_ + ": No such device or address");  // no reader
}

// A create that fails costs nobody the trace of before; one that succeeds leaves nothing of it.
TEST_F(TraceTest, AFailedCreateLeavesTheFileOfBefore) {
  const std::string before(1 << 20, 'x');
  std::ofstream(path_) << before;
  otr_engine_options options;
  otr_engine_options_init(&options, sizeof options);
  options.model_path = "/nowhere/model";
  options.trace_path = path_.c_str();
  otr_engine* engine = nullptr;
  EXPECT_NE(otr_engine_create(&options, &engine), OTR_OK);
  EXPECT_TRUE(text() == before);
  { const TestEngine made(model_, setup("off")); }
  EXPECT_EQ(named(json::parse(text()), "outrider").size(), 1u);
}

// Leading zeros are digits: a policy may be longer than the buffer.
TEST_F(TraceTest, APolicyOfAnyLengthFits) {
  for (const size_t zeros : {size_t{100}, size_t{130'000}, size_t{300'000}}) {
    const std::string policy = "fixed:ngram:" + std::string(zeros, '0') + "4";
    const TestEngine engine(model_, setup(policy.c_str()));
    EXPECT_TRUE(named(events(), "outrider").at(0)["args"]["policy"] == policy) << zeros;
  }
}

TEST_F(TraceTest, ADiskThatFillsUpEndsTheTraceAlone) {
  const Outputs expected = TestEngine(model_).run(requests());
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small = {5'000, limit.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  {
    const TestEngine engine(model_, setup("fixed:self:4"));
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    EXPECT_EQ(difference(expected, engine.run(requests())), "");
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_EQ(engine.stats()["trace_error"], "File too large");
    EXPECT_EQ(difference(expected, engine.run(requests())), "");
  }
  signal(SIGXFSZ, handler);
  EXPECT_EQ(text().size(), 5'000u);
}

}  // namespace
}  // namespace otr
