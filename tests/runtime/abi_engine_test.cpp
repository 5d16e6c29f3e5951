// The C ABI under misuse: every wrong argument gives its status and a text, has no effect, and leaves a usable engine.
// Engines, handles, waiting and cancelling.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "kernels/dispatch.h"
#include "tests/runtime/abi_fixture.h"

namespace otr {
namespace {

class AbiEngine : public AbiFixture {};

TEST_F(AbiEngine, CreateRefusesWrongOptions) {
  const struct {
    const char* what;
    std::function<void(otr_engine_options*)> spoil;
    otr_status status = OTR_INVALID_ARGUMENT;
  } cases[] = {
      {"no model", [](auto* o) { o->model_path = nullptr; }},
      {"empty model", [](auto* o) { o->model_path = ""; }},
      {"unknown device", [](auto* o) { o->device = "gpu"; }},
      {"no CUDA here", [](auto* o) { o->device = "cuda:0"; }, OTR_UNSUPPORTED},
      {"unknown path", [](auto* o) { o->isa = "cpu-sse"; }},
      {"unknown policy", [](auto* o) { o->policy = "fast"; }},
      {"max_batch 0", [](auto* o) { o->max_batch = 0; }},
      {"max_batch < 0", [](auto* o) { o->max_batch = -1; }},
      {"huge max_batch", [](auto* o) { o->max_batch = kIntMax; }},
      {"num_workers 0", [](auto* o) { o->num_workers = 0; }},
      {"huge num_workers", [](auto* o) { o->num_workers = kIntMax; }},
      {"more workers than places", [](auto* o) { o->max_batch = 2, o->num_workers = 3; }},
      {"prefill_chunk 0", [](auto* o) { o->prefill_chunk = 0; }},
      {"huge prefill_chunk", [](auto* o) { o->prefill_chunk = kIntMax; }},
      {"num_threads < 0", [](auto* o) { o->num_threads = -1; }},
      {"pin_threads > 1", [](auto* o) { o->pin_threads = 2; }},
      {"huge num_threads", [](auto* o) { o->num_threads = kIntMax; }},
      {"a field of a newer library", [](auto* o) { o->reserved = 1; }, OTR_UNSUPPORTED},
      {"less than a page", [](auto* o) { o->kv_bytes = 100; }},
      {"a terabyte of pages", [](auto* o) { o->kv_bytes = uint64_t{1} << 40; }, OTR_OUT_OF_MEMORY},
      {"2^64 - 1 bytes of pages", [](auto* o) { o->kv_bytes = UINT64_MAX; }, OTR_OUT_OF_MEMORY},
      {"struct_size 0", [](auto* o) { o->struct_size = 0; }},
      {"struct_size 12", [](auto* o) { o->struct_size = 12; }},
      {"struct_size 5000", [](auto* o) { o->struct_size = 5000; }},
  };
  for (const auto& c : cases) {
    otr_engine_options o = options_;
    c.spoil(&o);
    auto* made = reinterpret_cast<otr_engine*>(uintptr_t{1});
    EXPECT_EQ(otr_engine_create(&o, &made), c.status) << c.what << ": " << otr_last_error(nullptr);
    EXPECT_EQ(made, nullptr) << c.what;
    EXPECT_NE(std::string(otr_last_error(nullptr)), "") << c.what;
  }
  otr_engine* made = nullptr;
  EXPECT_EQ(otr_engine_create(nullptr, &made), OTR_INVALID_ARGUMENT);
  EXPECT_EQ(otr_engine_create(&options_, nullptr), OTR_INVALID_ARGUMENT);
  options_.model_path = "/nowhere/at all";
  EXPECT_NE(otr_engine_create(&options_, &made), OTR_OK);
  EXPECT_NE(std::string(otr_last_error(nullptr)).find("/nowhere/at all"), std::string::npos);
  expect_usable();
}

// A forced path that is missing is refused, and every one that is there makes an engine that says so.
TEST_F(AbiEngine, CreateTakesThePathItIsTold) {
  for (const PathInfo& path : list_paths()) {
    options_.isa = path.table->path;
    otr_engine* made = nullptr;
    const otr_status status = otr_engine_create(&options_, &made);
    EXPECT_EQ(status, path.available ? OTR_OK : OTR_UNSUPPORTED) << path.table->path;
    if (!path.available) {
      EXPECT_NE(std::string(otr_last_error(nullptr)).find(path.reason), std::string::npos);
      continue;
    }
    char stats[4096];
    size_t size = 0;
    ASSERT_EQ(otr_stats(made, stats, sizeof stats, &size), OTR_OK);
    EXPECT_EQ(nlohmann::json::parse(stats)["isa"], path.table->path);
    EXPECT_EQ(otr_engine_destroy(made), OTR_OK);
  }
}

TEST_F(AbiEngine, ZeroMeansTheDefault) {
  options_.num_threads = 0;
  options_.device = options_.isa = options_.policy = nullptr;
  otr_engine* made = nullptr;
  ASSERT_EQ(otr_engine_create(&options_, &made), OTR_OK) << otr_last_error(nullptr);
  char stats[4096];
  size_t size = 0;
  ASSERT_EQ(otr_stats(made, stats, sizeof stats, &size), OTR_OK);
  EXPECT_EQ(nlohmann::json::parse(stats)["num_threads"], ThreadPool::default_threads());
  otr_engine_destroy(made);
}

// ---- Handles
// -------------------------------------------------------------------------------------------------------------------------

TEST_F(AbiEngine, ADeadOrForeignHandleIsFoundOut) {
  otr_engine* dead = nullptr;
  ASSERT_EQ(otr_engine_create(&options_, &dead), OTR_OK);
  ASSERT_EQ(otr_engine_destroy(dead), OTR_OK);
  otr_engine* next = nullptr;
  ASSERT_EQ(otr_engine_create(&options_, &next), OTR_OK);  // takes its place, but not its name
  EXPECT_NE(next, dead);
  int local = 0;
  for (otr_engine* handle : {dead, reinterpret_cast<otr_engine*>(&local), reinterpret_cast<otr_engine*>(uintptr_t{0x1000}),
                             reinterpret_cast<otr_engine*>(UINTPTR_MAX), static_cast<otr_engine*>(nullptr)}) {
    otr_result* result = reinterpret_cast<otr_result*>(uintptr_t{1});
    size_t size = 0;
    EXPECT_EQ(otr_submit(handle, &group_, &id_), OTR_INVALID_HANDLE);
    EXPECT_NE(std::string(otr_last_error(handle)), "");
    EXPECT_EQ(otr_score(handle, &score_, &id_), OTR_INVALID_HANDLE);
    EXPECT_EQ(otr_cancel(handle, 1), OTR_INVALID_HANDLE);
    EXPECT_EQ(otr_wait(handle, 0, &result), OTR_INVALID_HANDLE);
    EXPECT_EQ(result, nullptr);
    EXPECT_EQ(otr_stats(handle, nullptr, 0, &size), OTR_INVALID_HANDLE);
    EXPECT_EQ(otr_engine_destroy(handle), handle == nullptr ? OTR_OK : OTR_INVALID_HANDLE);
  }
  EXPECT_EQ(otr_engine_destroy(next), OTR_OK);
  expect_usable();
}

TEST_F(AbiEngine, ResultsAreHandlesOfTheirOwn) {
  engine_.submit(Request(tokens_), 5);
  otr_result* result = nullptr;
  ASSERT_EQ(otr_wait(engine(), -1, &result), OTR_OK);
  otr_result_view view;
  EXPECT_EQ(otr_result_get(result, nullptr, sizeof view), OTR_INVALID_ARGUMENT);
  for (const size_t size : {size_t{0}, size_t{7}, size_t{9}, size_t{1} << 40})
    EXPECT_EQ(otr_result_get(result, &view, size), OTR_INVALID_ARGUMENT);
  EXPECT_EQ(otr_result_get(reinterpret_cast<otr_result*>(engine()), &view, sizeof view), OTR_INVALID_HANDLE);
  ASSERT_EQ(otr_result_get(result, &view, sizeof view), OTR_OK);
  EXPECT_EQ(view.tag, 5u);
  EXPECT_EQ(view.struct_size, sizeof view);
  std::memset(static_cast<void*>(&view), 0xab, sizeof view);
  ASSERT_EQ(otr_result_get(result, &view, offsetof(otr_result_view, sample)), OTR_OK);  // an older caller's
  EXPECT_EQ(view.tag, 5u);
  EXPECT_EQ(view.sample, 0xababababu);
  EXPECT_EQ(otr_result_destroy(result), OTR_OK);
  EXPECT_EQ(otr_result_destroy(result), OTR_INVALID_HANDLE);
  EXPECT_EQ(otr_result_get(result, &view, sizeof view), OTR_INVALID_HANDLE);
  EXPECT_EQ(otr_result_destroy(nullptr), OTR_OK);
  EXPECT_EQ(otr_result_get(nullptr, &view, sizeof view), OTR_INVALID_HANDLE);
}

TEST_F(AbiEngine, ResultsOutliveTheirEngine) {
  otr_engine* made = nullptr;
  ASSERT_EQ(otr_engine_create(&options_, &made), OTR_OK);
  ASSERT_EQ(otr_submit(made, &group_, &id_), OTR_OK);
  otr_result* result = nullptr;
  ASSERT_EQ(otr_wait(made, -1, &result), OTR_OK);
  otr_result_view before, after;
  ASSERT_EQ(otr_result_get(result, &before, sizeof before), OTR_OK);
  ASSERT_EQ(otr_engine_destroy(made), OTR_OK);
  ASSERT_EQ(otr_result_get(result, &after, sizeof after), OTR_OK);
  EXPECT_EQ(before.token_ids, after.token_ids);
  EXPECT_EQ(before.group_id, id_);
  ASSERT_GT(after.num_tokens, 0u);
  for (size_t i = 0; i < after.num_tokens; ++i) {
    EXPECT_TRUE(after.token_ids[i] >= 0 && after.token_ids[i] < 97);
    EXPECT_LT(after.raw_logprobs[i], 0.0f);
  }
  EXPECT_STREQ(after.error, "");
  EXPECT_EQ(otr_result_destroy(result), OTR_OK);
}

// With groups that run, groups that wait for the batch, and groups that nobody has looked at yet: nothing may leak (asan).
TEST_F(AbiEngine, DestroyAbandonsWhatIsOutstanding) {
  for (const int32_t groups : {1, 3, 20}) {
    otr_engine* made = nullptr;
    ASSERT_EQ(otr_engine_create(&options_, &made), OTR_OK);
    const std::vector<int32_t> prompt = random_tokens(1, 500, 97);
    group_.prompt_token_ids = prompt.data();
    group_.num_prompt_tokens = prompt.size();
    group_.n = 5;
    for (int32_t i = 0; i < groups; ++i) EXPECT_EQ(otr_submit(made, &group_, &id_), OTR_OK) << otr_last_error(made);
    EXPECT_EQ(otr_engine_destroy(made), OTR_OK);
  }
}

// ---- Wait and cancel
// -----------------------------------------------------------------------------------------------------------------

TEST_F(AbiEngine, WaitKeepsItsTimeLimits) {
  auto* result = reinterpret_cast<otr_result*>(uintptr_t{1});
  EXPECT_EQ(otr_wait(engine(), 0, &result), OTR_IDLE);
  EXPECT_EQ(result, nullptr);
  EXPECT_EQ(otr_wait(engine(), -1, &result), OTR_IDLE);
  EXPECT_EQ(otr_wait(engine(), std::numeric_limits<int64_t>::max(), &result), OTR_IDLE);
  EXPECT_EQ(otr_wait(engine(), std::numeric_limits<int64_t>::min(), &result), OTR_IDLE);
  EXPECT_EQ(otr_wait(engine(), 0, nullptr), OTR_INVALID_ARGUMENT);

  Request slow;
  slow.prompt = {1};
  slow.n = 1000;
  slow.sampling.max_new_tokens = 1000;
  slow.sampling.ignore_eos = 1;
  const uint64_t group = engine_.submit(slow, 0);
  EXPECT_EQ(otr_wait(engine(), 0, &result), OTR_TIMEOUT);
  EXPECT_EQ(result, nullptr);
  EXPECT_NE(std::string(otr_last_error(engine())), "");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(otr_wait(engine(), 20, &result), OTR_TIMEOUT);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(19));
  EXPECT_EQ(otr_cancel(engine(), group), OTR_OK);
  EXPECT_EQ(engine_.collect().size(), 1000u);
}

TEST_F(AbiEngine, CancelAll) {
  Request r;
  r.prompt = {1, 2};
  r.n = 300;
  r.sampling.max_new_tokens = 1000;
  r.sampling.ignore_eos = 1;
  for (const uint64_t tag : {0, 1}) engine_.submit(r, tag);
  EXPECT_EQ(otr_cancel(engine(), 0), OTR_OK);
  const Outputs outputs = engine_.collect();
  ASSERT_EQ(outputs.size(), 600u);
  for (const auto& [key, output] : outputs) EXPECT_EQ(output.reason, OTR_FINISH_ABORT) << key.first << " " << key.second;
  r.n = 1;
  r.sampling.max_new_tokens = 4;
  EXPECT_EQ(engine_.run({r}).at({0, 0}).tokens.size(), 4u);
}

TEST_F(AbiEngine, CancelBeforeWhileAndAfter) {
  EXPECT_EQ(otr_cancel(engine(), 0), OTR_OK);  // all, of which there are none
  EXPECT_EQ(otr_cancel(engine(), 12345), OTR_INVALID_ARGUMENT);
  Request r;
  r.prompt = {1, 2};
  r.n = 1000;
  r.sampling.max_new_tokens = 1000;
  r.sampling.ignore_eos = 1;
  // Before the engine looks at it, or in its first ticks: long before the last samples join the batch.
  uint64_t group = engine_.submit(r, 0);
  EXPECT_EQ(otr_cancel(engine(), group), OTR_OK);
  Outputs outputs = engine_.collect();
  ASSERT_EQ(outputs.size(), 1000u);
  EXPECT_EQ(outputs.at({0, 999}).reason, OTR_FINISH_ABORT);
  EXPECT_LE(outputs.at({0, 999}).tokens.size(), 1u);
  EXPECT_EQ(otr_cancel(engine(), group), OTR_INVALID_ARGUMENT);

  // While it runs: with the tokens it has, which are the first of those it would have had.
  r.n = 3;
  const Outputs whole = engine_.run({r});
  otr_status cancelled = OTR_INVALID_ARGUMENT;
  for (int round = 0; round < 20 && cancelled != OTR_OK; ++round) {  // it may be over before this thread comes to it
    const int64_t before = engine_.count("generated_tokens");
    group = engine_.submit(r, 0);
    while (engine_.count("generated_tokens") < before + 30) std::this_thread::yield();
    cancelled = otr_cancel(engine(), group);
    outputs = engine_.collect();
    ASSERT_EQ(outputs.size(), 3u);
  }
  EXPECT_EQ(cancelled, OTR_OK);
  for (const auto& [key, output] : outputs) {
    if (output.reason != OTR_FINISH_ABORT) continue;  // it may have been quick
    const std::vector<int32_t>& all = whole.at(key).tokens;
    ASSERT_LE(output.tokens.size(), all.size());
    EXPECT_TRUE(std::equal(output.tokens.begin(), output.tokens.end(), all.begin()));
    EXPECT_EQ(output.logprobs.size(), output.tokens.size());
  }

  // One of two groups only.
  EXPECT_EQ(otr_pause(engine()), OTR_OK);
  group = engine_.submit(r, 0);
  engine_.submit(Request(tokens_), 1);
  EXPECT_EQ(otr_cancel(engine(), group), OTR_OK);
  EXPECT_EQ(otr_resume(engine()), OTR_OK);
  outputs = engine_.collect();
  EXPECT_NE(outputs.at({1, 0}).reason, OTR_FINISH_ABORT);
  EXPECT_EQ(engine_.count("kv_pages_in_use"), 0);
}

TEST_F(AbiEngine, APausedEngineKeepsItsSamples) {
  Request r;
  r.prompt = {1, 2, 3};
  r.n = 3;
  r.sampling.max_new_tokens = 300;
  r.sampling.ignore_eos = 1;
  const Outputs whole = engine_.run({r, r});
  const int64_t before = engine_.count("generated_tokens");
  engine_.submit(r, 0);
  while (engine_.count("generated_tokens") == before) std::this_thread::yield();
  EXPECT_EQ(otr_pause(engine()), OTR_OK);
  EXPECT_EQ(otr_pause(engine()), OTR_OK);
  const int64_t ticks = engine_.count("ticks");
  engine_.submit(r, 1);
  EXPECT_EQ(otr_cancel(engine(), engine_.submit(r, 2)), OTR_OK);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(engine_.count("ticks"), ticks);
  EXPECT_EQ(engine_.count("outstanding_samples"), 9);
  // With the same weights as before they go on as if nothing had been.
  EXPECT_EQ(otr_weights_begin(engine(), 1), OTR_OK);
  EXPECT_EQ(otr_weights_commit(engine()), OTR_OK);
  EXPECT_EQ(engine_.count("ticks"), ticks);
  EXPECT_EQ(otr_resume(engine()), OTR_OK);
  EXPECT_EQ(otr_resume(engine()), OTR_OK);
  const Outputs outputs = engine_.collect();
  ASSERT_EQ(outputs.size(), 9u);
  for (const auto& [key, output] : outputs) {
    if (key.first == 2) EXPECT_EQ(output.reason, OTR_FINISH_ABORT);
    else EXPECT_TRUE(output == whole.at(key)) << key.first << " " << key.second;
  }

  // Weights may change while it is paused, and it may be destroyed.
  EXPECT_EQ(otr_pause(engine()), OTR_OK);
  EXPECT_EQ(otr_weights_begin(engine(), 1), OTR_OK);
  EXPECT_EQ(otr_weights_commit(engine()), OTR_OK);
  engine_.submit(r, 3);
}

}  // namespace
}  // namespace otr
