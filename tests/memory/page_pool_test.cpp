#include "memory/page_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace otr {
namespace {

void expect_counts(const PagePool& pool, int free, int evictable, int in_use) {
  EXPECT_EQ(pool.num_free(), free);
  EXPECT_EQ(pool.num_evictable(), evictable);
  EXPECT_EQ(pool.num_in_use(), in_use);
}

TEST(PagePool, HandsOutEveryPageOnceThenNone) {
  PagePool pool(5);
  expect_counts(pool, 5, 0, 0);
  std::set<PageId> pages;
  for (int i = 0; i < 5; ++i) pages.insert(pool.take_free());
  EXPECT_EQ(pages, (std::set<PageId>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.take_free(), kNoPage);
  expect_counts(pool, 0, 0, 5);
  EXPECT_TRUE(pool.check({1, 1, 1, 1, 1}).ok());
}

TEST(PagePool, ReleaseFreesAtTheLastReference) {
  PagePool pool(2);
  const PageId page = pool.take_free();
  EXPECT_TRUE(pool.writable(page));
  pool.retain(page);
  EXPECT_EQ(pool.refcount(page), 2);
  EXPECT_FALSE(pool.writable(page));
  pool.release(page);
  EXPECT_TRUE(pool.writable(page));
  expect_counts(pool, 1, 0, 1);
  pool.release(page);
  expect_counts(pool, 2, 0, 0);
}

TEST(PagePool, CachedPagesBecomeEvictableInOrder) {
  PagePool pool(4);
  std::vector<PageId> pages;
  for (int i = 0; i < 3; ++i) {
    pages.push_back(pool.take_free());
    pool.set_cached(pages.back(), true);
    EXPECT_FALSE(pool.writable(pages.back()));
  }
  for (const int i : {1, 0, 2}) pool.release(pages[static_cast<size_t>(i)]);
  expect_counts(pool, 1, 3, 0);
  EXPECT_EQ(pool.oldest_evictable(), pages[1]);
  pool.retain(pages[1]);  // the oldest comes back into use …
  EXPECT_EQ(pool.oldest_evictable(), pages[0]);
  pool.retain(pages[2]);  // … and one from the end of the list
  expect_counts(pool, 1, 1, 2);
  pool.release(pages[1]);
  EXPECT_EQ(pool.oldest_evictable(), pages[0]);
  pool.set_cached(pages[0], false);  // evicted: free
  EXPECT_EQ(pool.oldest_evictable(), pages[1]);
  expect_counts(pool, 2, 1, 1);
  pool.set_cached(pages[2], false);  // in use and forgotten: free at its release
  pool.release(pages[2]);
  expect_counts(pool, 3, 1, 0);
  EXPECT_TRUE(pool.check({0, 0, 0, 0}).ok());
}

TEST(PagePool, LeasedPagesAreCountedApart) {
  PagePool pool(4);
  const PageId own = pool.take_free(), lent = pool.take_free(), cached = pool.take_free();
  pool.set_cached(cached, true);
  for (const PageId page : {own, lent, cached}) pool.lease(page);
  EXPECT_EQ(pool.num_leased(), 0);  // they still have an owner
  EXPECT_FALSE(pool.writable(own));
  expect_counts(pool, 1, 0, 3);
  pool.release(lent);
  pool.release(cached);
  EXPECT_EQ(pool.num_leased(), 2);
  expect_counts(pool, 1, 0, 1);
  std::vector<int32_t> references(4), leases(4);
  references[static_cast<size_t>(own)] = 2;
  references[static_cast<size_t>(lent)] = references[static_cast<size_t>(cached)] = 1;
  EXPECT_FALSE(pool.check(references).ok());  // the leases are not known
  leases[static_cast<size_t>(own)] = leases[static_cast<size_t>(lent)] = leases[static_cast<size_t>(cached)] = 1;
  EXPECT_TRUE(pool.check(references, leases).ok());
  pool.lease(lent);     // a second reader
  pool.retain(cached);  // somebody attaches
  EXPECT_EQ(pool.num_leased(), 1);
  pool.end_lease(lent);
  EXPECT_EQ(pool.num_leased(), 1);
  for (const PageId page : {own, lent, cached}) pool.end_lease(page);
  EXPECT_EQ(pool.num_leased(), 0);
  EXPECT_TRUE(pool.writable(own));
  pool.release(own);
  pool.release(cached);
  expect_counts(pool, 3, 1, 0);
  EXPECT_TRUE(pool.check({0, 0, 0, 0}).ok());
}

TEST(PagePool, CheckFindsAWrongReferenceCount) {
  PagePool pool(3);
  pool.retain(pool.take_free());
  EXPECT_TRUE(pool.check({2, 0, 0}).ok());
  EXPECT_EQ(pool.check({1, 0, 0}).code(), StatusCode::kInternal);
  EXPECT_EQ(pool.check({2, 1, 0}).code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace otr
