// What a speculator has made room for before the first tick.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "runtime/speculator.h"
#include "tests/runtime/failing_new.h"
#include "tests/runtime/tiny_model.h"

namespace otr {
namespace {

// However large the batch: its last few rows may each get all that its drafters propose.
TEST(SpeculatorAllocation, ForestsHaveRoomForAllThatIsProposed) {
  const TinyModel model;
  constexpr int32_t kBatch = 600;
  DeviceOptions d;
  d.num_threads = 1;
  d.target.path = model.path();
  d.target.kv_bytes = model.kv_bytes(16);
  d.target.bucket = {.max_rows = kBatch, .max_logit_rows = kBatch, .max_copies = kBatch};
  const Result<std::unique_ptr<Device>> device = Device::create(d);
  ASSERT_TRUE(device.ok()) << device.status().message();
  Result<Policy> policy = parse_policy("auto");
  ASSERT_TRUE(policy.ok());
  policy.value().drafters = {"ngram"};
  const std::vector<std::unique_ptr<Sequence>> live;
  const Result<std::unique_ptr<Speculator>> s = Speculator::create({.policy = policy.value(),
                                                                    .models = {},
                                                                    .custom = {},
                                                                    .history = {},
                                                                    .profile = {},
                                                                    .costs = {CostModel{}},
                                                                    .max_batch = kBatch,
                                                                    .prefill_chunk = 16,
                                                                    .max_draft_rows = 512},
                                                                   *device.value(), live);
  ASSERT_TRUE(s.ok()) << s.status().message();
  Forest* const forest = s.value()->mutable_forest(kBatch - 1);
  int32_t nodes = 0;
  allocations_left = 0;
  try {
    for (; nodes < kMaxDraftNodes; ++nodes) forest->add(Forest::kRoot, nodes, 0.5f, 0, 0);
    forest->order_by_path();
    forest->keep_best(0, kMaxDraftNodes);
  } catch (const std::bad_alloc&) {
    nodes = -nodes;
  }
  allocations_left = -1;
  EXPECT_EQ(nodes, kMaxDraftNodes);
}

}  // namespace
}  // namespace otr
