// Calls from many threads at once (run under tsan, too).

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/runtime/sanitized.h"
#include "tests/runtime/test_engine.h"

namespace otr {
namespace {

Request small_request(uint32_t i) {
  Request r;
  r.prompt = random_tokens(i % 7, 1 + i % 40, 97);
  r.n = 1 + static_cast<int32_t>(i % 3);
  r.stream = i;
  r.sampling.max_new_tokens = 1 + static_cast<int32_t>(i % 20);
  return r;
}

TEST(AbiThreads, SubmittersWaitersCancellersAndReaders) {
  const TinyModel model;
  EngineSetup setup;
  setup.num_threads = 2;
  setup.max_batch = 16;
  setup.num_pages = 40;
  const TestEngine engine(model, setup);
  constexpr uint32_t kSubmitters = 3;
  const uint32_t each = kSanitized ? 40 : 300;
  std::atomic<uint32_t> submitting{kSubmitters}, samples{0};
  std::atomic<uint64_t> newest{0};

  std::mutex mutex;
  Outputs outputs;  // guarded by mutex
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kSubmitters; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = t * each; i < (t + 1) * each; ++i) {
        const Request r = small_request(i);
        samples += static_cast<uint32_t>(r.n);
        newest = engine.submit(r, i);
        uint64_t refused = 0;
        EXPECT_EQ(otr_submit(engine.get(), nullptr, &refused), OTR_INVALID_ARGUMENT);
        EXPECT_NE(std::string(otr_last_error(engine.get())), "");
      }
      --submitting;
    });
  }
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (;;) {
        const bool last = submitting == 0;  // asked before the wait: idle after the last submit is the end
        otr_result* result = nullptr;
        const otr_status status = otr_wait(engine.get(), 50, &result);
        if (status == OTR_IDLE && last) return;
        if (status == OTR_IDLE) std::this_thread::yield();
        if (status != OTR_OK) continue;
        otr_result_view view;
        EXPECT_EQ(otr_result_get(result, &view, sizeof view), OTR_OK);
        Output output{std::vector<int32_t>(view.token_ids, view.token_ids + view.num_tokens),
                      bits_of(view.logprobs, view.num_tokens), bits_of(view.raw_logprobs, view.num_tokens), view.finish_reason,
                      view.error};
        const std::lock_guard<std::mutex> lock(mutex);
        EXPECT_TRUE(outputs.emplace(std::pair(view.tag, view.sample), std::move(output)).second);
        EXPECT_EQ(otr_result_destroy(result), OTR_OK);
      }
    });
  }
  threads.emplace_back([&] {
    uint64_t i = 0;
    while (submitting > 0) {
      if (++i % 8 == 0) otr_cancel(engine.get(), newest);
      const nlohmann::json stats = engine.stats();
      EXPECT_LE(stats["kv_pages_in_use"], 40);
    }
  });
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(outputs.size(), samples);
  EXPECT_EQ(engine.count("kv_pages_in_use"), 0);
  // Whatever the threads did to each other: who was not cancelled has the tokens of a quiet engine.
  const TestEngine quiet(model);
  for (uint32_t i = 0; i < kSubmitters * each; ++i) quiet.submit(small_request(i), i);
  const Outputs expected = quiet.collect();
  size_t aborted = 0;
  for (const auto& [key, output] : outputs) {
    aborted += output.reason == OTR_FINISH_ABORT;
    if (output.reason != OTR_FINISH_ABORT) {
      EXPECT_EQ(output, expected.at(key)) << key.first;
    }
  }
  EXPECT_LT(aborted, outputs.size() / 2);
}

TEST(AbiThreads, DestroyWakesWaiters) {
  const TinyModel model;
  for (int round = 0; round < 5; ++round) {
    otr_engine_options options;
    otr_engine_options_init(&options, sizeof options);
    options.model_path = model.path().c_str();
    options.num_threads = 1;
    options.max_batch = 1;
    options.kv_bytes = model.kv_bytes(64);
    otr_engine* engine = nullptr;
    ASSERT_EQ(otr_engine_create(&options, &engine), OTR_OK);
    std::atomic<int> waiting{0};
    std::vector<std::thread> threads;
    const int32_t prompt = 1;
    otr_sampling_params sampling;
    otr_sampling_params_init(&sampling, sizeof sampling);
    sampling.ignore_eos = 1;
    otr_group_request request;
    otr_group_request_init(&request, sizeof request);
    request.prompt_token_ids = &prompt;
    request.num_prompt_tokens = 1;
    request.n = 500;  // longer than this test
    request.sampling = &sampling;
    uint64_t group = 0;
    ASSERT_EQ(otr_submit(engine, &request, &group), OTR_OK);
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        ++waiting;
        otr_status status;
        otr_result* result = nullptr;
        while ((status = otr_wait(engine, -1, &result)) == OTR_OK) otr_result_destroy(result);
        EXPECT_EQ(status, OTR_INVALID_HANDLE);
      });
    }
    while (waiting < 3) std::this_thread::yield();
    EXPECT_EQ(otr_engine_destroy(engine), OTR_OK);
    for (std::thread& thread : threads) thread.join();
  }
}

// Of several threads that destroy one thing, one does, and the others are told that it is gone.
TEST(AbiThreads, OneDestroyWins) {
  const TinyModel model;
  for (int round = 0; round < 10; ++round) {
    otr_engine_options options;
    otr_engine_options_init(&options, sizeof options);
    options.model_path = model.path().c_str();
    options.num_threads = 1;
    options.kv_bytes = model.kv_bytes(64);
    otr_engine* engine = nullptr;
    ASSERT_EQ(otr_engine_create(&options, &engine), OTR_OK);
    const int32_t prompt = 1;
    otr_group_request request;
    otr_group_request_init(&request, sizeof request);
    request.prompt_token_ids = &prompt;
    request.num_prompt_tokens = 1;
    uint64_t group = 0;
    ASSERT_EQ(otr_submit(engine, &request, &group), OTR_OK);
    otr_result* result = nullptr;
    ASSERT_EQ(otr_wait(engine, -1, &result), OTR_OK);
    std::atomic<int> engine_wins{0}, result_wins{0}, wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        const otr_status e = otr_engine_destroy(engine), r = otr_result_destroy(result);
        engine_wins += e == OTR_OK;
        result_wins += r == OTR_OK;
        wrong += (e != OTR_OK && e != OTR_INVALID_HANDLE) + (r != OTR_OK && r != OTR_INVALID_HANDLE);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(engine_wins, 1);
    EXPECT_EQ(result_wins, 1);
    EXPECT_EQ(wrong, 0);
  }
}

// Threads that do everything wrong at once disturb nobody who does it right.
TEST(AbiThreads, MisuseDisturbsNobody) {
  const TinyModel model;
  std::vector<Request> requests;
  for (uint32_t i = 0; i < (kSanitized ? 20u : 100u); ++i) requests.push_back(small_request(i));
  const Outputs expected = TestEngine(model).run(requests);
  const TestEngine engine(model);
  std::atomic<bool> done{false};
  std::atomic<uint64_t> refused{0}, accepted{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      const auto count = [&](otr_status status, const otr_engine* handle) {
        accepted += status == OTR_OK;
        refused += status != OTR_OK && *otr_last_error(handle) != '\0';
      };
      auto* foreign = reinterpret_cast<otr_engine*>(uintptr_t{64} * (t + 1));
      otr_engine_options options;
      otr_engine_options_init(&options, sizeof options);
      options.model_path = "/nowhere";
      do {
        otr_engine* none = nullptr;
        otr_result* result = nullptr;
        uint64_t group = 0;
        count(otr_engine_create(&options, &none), nullptr);
        count(otr_engine_destroy(foreign), foreign);
        count(otr_submit(engine.get(), nullptr, &group), engine.get());
        Request bad({-1});
        count(engine.try_submit(bad, 0, &group), engine.get());
        bad.prompt = {1};
        bad.sampling.temperature = std::nanf("");
        count(engine.try_submit(bad, 0, &group), engine.get());
        count(otr_cancel(engine.get(), UINT64_MAX), engine.get());
        count(otr_wait(foreign, -1, &result), foreign);
        count(otr_result_get(reinterpret_cast<otr_result*>(engine.get()), nullptr, 0), nullptr);
        count(otr_stats(engine.get(), nullptr, 5, nullptr), engine.get());
      } while (!done);
    });
  }
  const Outputs outputs = engine.run(requests);
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(difference(expected, outputs), "");
  EXPECT_EQ(accepted, 0u);
  EXPECT_GE(refused, 27u);
  EXPECT_EQ(refused % 9, 0u);  // every one had its text
}

// Two engines in one process share nothing but the code.
TEST(AbiThreads, TwoEnginesAtOnce) {
  const TinyModel model, other({.seed = 2});
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 20; ++i) requests.push_back(small_request(i));
  const Outputs expected = TestEngine(model).run(requests), expected_other = TestEngine(other).run(requests);
  EXPECT_NE(difference(expected, expected_other), "");
  Outputs a, b;
  std::thread first([&] { a = TestEngine(model).run(requests); });
  std::thread second([&] { b = TestEngine(other).run(requests); });
  first.join();
  second.join();
  EXPECT_EQ(difference(expected, a), "");
  EXPECT_EQ(difference(expected_other, b), "");
}

}  // namespace
}  // namespace otr
