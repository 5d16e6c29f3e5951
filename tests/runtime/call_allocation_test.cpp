// Every allocation that a call makes fails once: the call says so, and has had no effect. Submits and creates are in
// tick_allocation_test.cpp.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "runtime/history_store.h"
#include "tests/runtime/failing_new.h"
#include "tests/runtime/test_engine.h"

namespace otr {
namespace {

class CallAllocation : public testing::Test {
 protected:
  CallAllocation() { is_test_thread = true; }

  static Request request(size_t prompt, int32_t n) {
    Request r(random_tokens(1, prompt, 97));
    r.n = n;
    r.sampling.max_new_tokens = 5;
    r.sampling.ignore_eos = 1;
    return r;
  }
};

// Every allocation of a wait fails once: the sample is still there for the next.
TEST_F(CallAllocation, AWaitThatRunsOutOfMemoryLosesNoSample) {
  const TinyModel model;
  const TestEngine engine(model);
  const Request r = request(20, 12);
  const Outputs expected = engine.run({r});
  engine.submit(r, 0);
  while (engine.count("finished_samples") < 2 * r.n) std::this_thread::yield();
  std::vector<otr_result*> results;  // all kept, so that some need new places
  int failures = 0;
  for (int64_t left = r.n; left > 0; --left) {
    for (int64_t limit = 0;; ++limit) {
      otr_result* result = nullptr;
      allocations_left = limit;
      const otr_status status = otr_wait(engine.get(), 0, &result);
      allocations_left = -1;
      if (status == OTR_OK) {
        results.push_back(result);
        break;
      }
      ASSERT_EQ(status, OTR_OUT_OF_MEMORY) << "allocation " << limit;
      EXPECT_EQ(result, nullptr);
      ASSERT_EQ(engine.count("outstanding_samples"), left) << "allocation " << limit;
      ++failures;
    }
  }
  EXPECT_GT(failures, 2 * r.n);
  Outputs outputs;
  for (otr_result* result : results) {
    otr_result_view v;
    ASSERT_EQ(otr_result_get(result, &v, sizeof v), OTR_OK);
    outputs[{v.tag, v.sample}] = {{v.token_ids, v.token_ids + v.num_tokens},
                                  bits_of(v.logprobs, v.num_tokens),
                                  bits_of(v.raw_logprobs, v.num_tokens),
                                  v.finish_reason,
                                  v.error};
    EXPECT_EQ(otr_result_destroy(result), OTR_OK);
  }
  EXPECT_EQ(difference(expected, outputs), "");
}

// Every allocation of an export fails once: it holds no page afterwards.
TEST_F(CallAllocation, AnExportThatRunsOutOfMemoryHoldsNoPage) {
  const TinyModel model;
  const TestEngine engine(model, {.num_pages = 16});
  const Request r = request(300, 2);
  const Outputs expected = engine.run({r});
  std::vector<std::byte> buffer(1 << 20);
  size_t size = 0, covered = 0;
  int failures = 0;
  for (int64_t limit = 0;; ++limit) {
    allocations_left = limit;
    const otr_status status =
        otr_kv_export(engine.get(), r.prompt.data(), r.prompt.size(), buffer.data(), buffer.size(), &size, &covered);
    allocations_left = -1;
    if (status == OTR_OK) break;
    ASSERT_EQ(status, OTR_OUT_OF_MEMORY) << "allocation " << limit << ": " << otr_last_error(engine.get());
    ++failures;
  }
  EXPECT_GE(failures, 3);  // names of pages twice, and what they hold
  EXPECT_EQ(covered, 256u);
  EXPECT_EQ(difference(expected, engine.run({r})), "");
  EXPECT_EQ(engine.count("kv_pages_in_use"), 0);
}

// Every allocation of a commit fails once: the step's samples are all there for the next.
TEST_F(CallAllocation, ACommitThatRunsOutOfMemoryKeepsTheStep) {
  HistoryStore store(HistoryContent::kTokens, 100);
  Sequence s;
  s.group = std::make_shared<Group>();
  s.group->id = 7;
  s.group->num_prompt = 1;
  s.tokens = {1, 2, 3};
  s.finish_reason = OTR_FINISH_STOP;
  store.collect(s);
  int failures = 0;
  for (int64_t limit = 0;; ++limit) {
    allocations_left = limit;
    try {
      store.commit();
      break;
    } catch (const std::bad_alloc&) {
      ++failures;
    }
    allocations_left = -1;
    EXPECT_TRUE(store.reward(7, 0, 1.0f).ok()) << "allocation " << limit;
  }
  allocations_left = -1;
  EXPECT_GT(failures, 1);
  EXPECT_FALSE(store.reward(7, 0, 1.0f).ok());
}

}  // namespace
}  // namespace otr
