#include "memory/page_table.h"

#include <gtest/gtest.h>

#include <vector>

namespace otr {
namespace {

class PageTableTest : public testing::Test {
 protected:
  ~PageTableTest() override {
    for (PageTable* t : {&a_, &b_}) t->release_all(&pool_);
  }

  void write(PageTable* t, int32_t begin, int32_t end) {
    work_.clear();
    t->prepare_write(&cache_, &pool_, begin, end, &work_);
  }

  PagePool pool_{8};
  PrefixCache cache_{&pool_};
  PageTable a_, b_;
  PageWork work_;
};

TEST_F(PageTableTest, WritingTakesThePagesItCovers) {
  EXPECT_EQ(a_.pages_to_write(pool_, 0, 0), 0);
  EXPECT_EQ(a_.pages_to_write(pool_, 0, 1), 1);
  EXPECT_EQ(a_.pages_to_write(pool_, 0, 64), 1);
  EXPECT_EQ(a_.pages_to_write(pool_, 0, 65), 2);
  write(&a_, 0, 65);
  EXPECT_EQ(a_.num_pages(), 2);
  EXPECT_EQ(work_.zero, a_.pages());
  EXPECT_TRUE(work_.copy_to.empty());
  EXPECT_EQ(a_.pages_to_write(pool_, 65, 128), 0);
  EXPECT_EQ(a_.pages_to_write(pool_, 128, 129), 1);
  write(&a_, 65, 128);
  EXPECT_EQ(a_.num_pages(), 2);
  EXPECT_TRUE(work_.zero.empty());
  EXPECT_EQ(a_.num_private(pool_), 2);
}

TEST_F(PageTableTest, ASharedPageIsCopiedAndTheLastHolderWritesInPlace) {
  write(&a_, 0, 100);
  b_.share_from(a_, &pool_);
  EXPECT_EQ(b_.pages(), a_.pages());
  EXPECT_EQ(a_.num_private(pool_), 0);
  const PageId full = a_.pages()[0], partial = a_.pages()[1];
  EXPECT_EQ(a_.pages_to_write(pool_, 100, 101), 1);
  EXPECT_EQ(a_.pages_to_write(pool_, 100, 129), 2);
  write(&a_, 100, 129);
  EXPECT_EQ(work_.copy_from, (std::vector<PageId>{partial}));
  EXPECT_EQ(work_.copy_to, (std::vector<PageId>{a_.pages()[1]}));
  EXPECT_EQ(work_.zero, (std::vector<PageId>{a_.pages()[2]}));
  EXPECT_EQ(a_.pages()[0], full);
  EXPECT_NE(a_.pages()[1], partial);
  EXPECT_EQ(b_.pages_to_write(pool_, 100, 101), 0);
  write(&b_, 100, 101);
  EXPECT_EQ(b_.pages()[1], partial);
  EXPECT_TRUE(work_.copy_from.empty() && work_.zero.empty());
  EXPECT_EQ(a_.num_private(pool_), 2);
  EXPECT_EQ(b_.num_private(pool_), 1);
}

TEST_F(PageTableTest, SharingAtAPageBoundaryNeedsNoCopy) {
  write(&a_, 0, 128);
  b_.share_from(a_, &pool_);
  EXPECT_EQ(b_.pages_to_write(pool_, 128, 129), 1);
  write(&b_, 128, 129);
  EXPECT_TRUE(work_.copy_to.empty());
  EXPECT_EQ(work_.zero.size(), 1u);
}

TEST_F(PageTableTest, APrefixHitLeavesTheLastToken) {
  const std::vector<int32_t> tokens(200, 1);
  write(&a_, 0, 200);
  cache_.insert(tokens, a_.pages(), 3);
  const auto covered = [&](size_t num_tokens) {
    const int32_t n = b_.attach_prefix(&cache_, std::span(tokens).first(num_tokens));
    EXPECT_EQ(n, b_.num_pages() * kPageTokens);
    b_.release_all(&pool_);
    return n;
  };
  EXPECT_EQ(covered(1), 0);
  EXPECT_EQ(covered(64), 0);
  EXPECT_EQ(covered(65), 64);
  EXPECT_EQ(covered(128), 64);
  EXPECT_EQ(covered(129), 128);
  EXPECT_EQ(covered(192), 128);
  EXPECT_EQ(covered(200), 192);
}

TEST_F(PageTableTest, ReleasesTheDeepestFirst) {
  const std::vector<int32_t> tokens(192, 1);
  write(&a_, 0, 192);
  cache_.insert(tokens, a_.pages(), 3);
  const std::vector<PageId> pages = a_.pages();
  a_.release_all(&pool_);
  EXPECT_EQ(a_.num_pages(), 0);
  EXPECT_EQ(pool_.num_evictable(), 3);
  EXPECT_EQ(pool_.oldest_evictable(), pages[2]);
}

TEST_F(PageTableTest, CachedPagesOfOneHolderAreItsToGiveUp) {
  const std::vector<int32_t> tokens(64, 1);
  write(&a_, 0, 100);
  cache_.insert(tokens, a_.pages(), 1);
  EXPECT_EQ(a_.num_private(pool_), 2);
  EXPECT_FALSE(pool_.writable(a_.pages()[0]));
  EXPECT_TRUE(pool_.writable(a_.pages()[1]));
}

}  // namespace
}  // namespace otr
