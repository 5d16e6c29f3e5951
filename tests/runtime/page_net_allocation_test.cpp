// Nets whose threads run out of memory: pages come as they are, or not at all; none is lost, and the next joining serves.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tests/runtime/failing_new.h"
#include "tests/runtime/page_nets.h"
#include "tests/runtime/sanitized.h"

namespace otr {
namespace {

class PageNetMemory : public PageNets {
 protected:
  PageNetMemory() : PageNets(2, /*patience_ms=*/kSanitized ? 500 : 50) { is_test_thread = true; }
  ~PageNetMemory() override { engine_allocations_left = -1; }

  // The engine's memory is another matter.
  void take(int32_t worker, const NetNews& news) override {
    const bool was = std::exchange(is_test_thread, true);
    PageNets::take(worker, news);
    is_test_thread = was;
  }
  // The generation that both have joined.
  uint64_t joined() {
    for (int i = 0; i < 10'000; ++i) {
      const uint64_t generation = nets_[0]->generation();
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (generation != 0 && generation == nets_[1]->generation() && account_.is_up()) return generation;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "they do not join";
    return 0;
  }
  void join_again() {
    const std::lock_guard<std::mutex> lock(mutex_);
    account_.lost(1, true);  // a death: failures before it do not count
    account_.ready(1);
  }
};

TEST_F(PageNetMemory, AMoveGivesUp) {
  int failures = 0, came = 0;
  for (int64_t limit = 0;; ++limit) {
    ASSERT_NE(joined(), 0u);
    const auto lent = lend({4, 2});
    const uint64_t parcel = nets_[0]->offer(lent).number;
    ASSERT_NE(parcel, 0u);
    const auto pages = remote(parcel, 2);
    engine_allocations_left = limit;
    const bool has_come = pages->copy(0, std::vector<PageId>{0, 3}, &target(1));
    const bool ran_out = engine_allocations_left.exchange(-1) < 0;
    if (has_come) {
      EXPECT_TRUE(holds(0, 4) && holds(3, 2)) << "allocation " << limit;
    }
    pages->end();
    EXPECT_TRUE(comes_over(*lent)) << "allocation " << limit;
    came += has_come;
    failures += ran_out;
    if (!ran_out) break;
    join_again();
  }
  EXPECT_GT(failures, 3);
  EXPECT_GT(came, 0);
}

TEST_F(PageNetMemory, AJoiningIsTriedAgain) {
  int failures = 0;
  for (int64_t limit = 0;; ++limit) {
    const uint64_t before = joined();
    engine_allocations_left = limit;
    join_again();
    ASSERT_GT(joined(), before);
    if (engine_allocations_left.exchange(-1) >= 0) break;
    ++failures;
  }
  EXPECT_GT(failures, 0);
  const auto lent = lend({1});
  const auto pages = remote(nets_[0]->offer(lent).number, 1);
  EXPECT_TRUE(pages->copy(0, std::vector<PageId>{5}, &target(1)));
  EXPECT_TRUE(holds(5, 1));
}

// To offer has no memory either: then nothing is offered, and the pages go by file.
TEST_F(PageNetMemory, WhatIsNotOfferedIsTheLenders) {
  ASSERT_NE(joined(), 0u);
  std::vector<std::shared_ptr<LentPages>> lent;
  for (int32_t i = 0; i <= PageNet::kMostPages; ++i) lent.push_back(lend({0}));
  for (int32_t i = 0; i < PageNet::kMostPages; ++i) EXPECT_NE(nets_[0]->offer(lent[static_cast<size_t>(i)]).number, 0u);
  allocations_left = 0;  // as many as there is room for are kept
  const PageNet::Parcel refused = nets_[0]->offer(lent.back());
  allocations_left = -1;
  EXPECT_EQ(refused.number, 0u);
  EXPECT_EQ(lent.back().use_count(), 1);
  EXPECT_NE(nets_[0]->offer(lent.back()).number, 0u);
}

}  // namespace
}  // namespace otr
