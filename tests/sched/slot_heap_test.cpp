#include "sched/slot_heap.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "kernels/base/clock.h"

namespace otr {
namespace {

// Against an ordered map, with what comes, goes from anywhere, and comes back.
TEST(SlotHeap, TheOldestIsOnTopWhoeverLeft) {
  std::mt19937 random(5);
  SlotHeap heap;
  std::map<uint64_t, int32_t> by_age;
  for (int step = 0; step < 20'000; ++step) {
    const int32_t slot = static_cast<int32_t>(random() % 200);
    if (heap.contains(slot)) {
      heap.remove(slot);
      std::erase_if(by_age, [slot](const auto& e) { return e.second == slot; });
    } else {
      const uint64_t age = uint64_t{random()} << 20 | static_cast<uint64_t>(step);
      heap.push({slot, age});
      by_age[age] = slot;
    }
    ASSERT_EQ(heap.size(), by_age.size());
    ASSERT_EQ(heap.empty(), by_age.empty());
    if (!heap.empty()) {
      ASSERT_EQ(heap.oldest().slot, by_age.begin()->second) << step;
    }
  }
  int64_t slots = 0;
  for (const SlotHeap::Entry& e : heap.entries()) slots += by_age.at(e.age) == e.slot;
  EXPECT_EQ(slots, static_cast<int64_t>(by_age.size()));
}

// Two hundred thousand wait, and all are cancelled, the youngest and the oldest by turns: what is linear a removal takes
// a minute.
TEST(SlotHeap, ManyLeaveTogether) {
  constexpr int32_t kMany = 200'000;
  SlotHeap heap;
  const Stopwatch stopwatch;
  for (int32_t slot = 0; slot < kMany; ++slot) heap.push({slot, static_cast<uint64_t>(slot)});
  for (int32_t i = 0; i < kMany / 2; ++i) {
    heap.remove(i);
    heap.remove(kMany - 1 - i);
  }
  EXPECT_TRUE(heap.empty());
  EXPECT_LT(stopwatch.seconds(), 10);  // takes hundredths
}

}  // namespace
}  // namespace otr
