#include "memory/prefix_cache.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace otr {
namespace {

using Tokens = std::vector<int32_t>;

// Pages of 64 equal tokens.
Tokens tokens_of(const std::vector<int32_t>& pages) {
  Tokens tokens;
  for (const int32_t token : pages) tokens.insert(tokens.end(), kPageTokens, token);
  return tokens;
}

struct Cache {
  explicit Cache(int32_t num_pages) : pool(num_pages), cache(&pool) {}

  // Takes pages for the tokens and offers them; the caller holds them.
  std::vector<PageId> fill(const Tokens& tokens) {
    std::vector<PageId> pages;
    for (size_t i = 0; i < tokens.size() / kPageTokens; ++i) pages.push_back(cache.allocate());
    cache.insert(tokens, pages, static_cast<int32_t>(pages.size()));
    return pages;
  }
  std::vector<PageId> match(const Tokens& tokens, int32_t max_pages = 1000) {
    std::vector<PageId> pages;
    cache.match(tokens, max_pages, &pages);
    return pages;
  }
  void release(const std::vector<PageId>& pages) {
    for (auto it = pages.rbegin(); it != pages.rend(); ++it) pool.release(*it);
  }

  PagePool pool;
  PrefixCache cache;
};

TEST(PrefixCache, FindsTheLongestPrefixAndHoldsIt) {
  Cache c(10);
  const Tokens prompt = tokens_of({1, 2, 3});
  const std::vector<PageId> pages = c.fill(prompt);
  c.release(pages);
  EXPECT_EQ(c.pool.num_evictable(), 3);
  EXPECT_EQ(c.match(prompt), pages);
  for (const PageId page : pages) EXPECT_EQ(c.pool.refcount(page), 1);
  EXPECT_EQ(c.match(tokens_of({1, 2, 9, 3})), (std::vector<PageId>{pages[0], pages[1]}));
  EXPECT_EQ(c.match(prompt, 1), (std::vector<PageId>{pages[0]}));
  EXPECT_TRUE(c.match(tokens_of({2, 3})).empty());  // a page counts only behind its own parent
  EXPECT_TRUE(c.match(prompt, 0).empty());
  EXPECT_TRUE(c.match({}).empty());
  EXPECT_EQ(c.pool.refcount(pages[0]), 3);
  // The same without holding it.
  EXPECT_EQ(c.cache.match_length(prompt, 9), 3);
  EXPECT_EQ(c.cache.match_length(prompt, 1), 1);
  EXPECT_EQ(c.cache.match_length(tokens_of({1, 2, 9, 3}), 9), 2);
  EXPECT_EQ(c.cache.match_length(tokens_of({2, 3}), 9), 0);
  EXPECT_EQ(c.cache.match_length({}, 9), 0);
  EXPECT_EQ(c.pool.refcount(pages[0]), 3);
  EXPECT_TRUE(c.cache.check().ok());
}

TEST(PrefixCache, PartialPagesDoNotCount) {
  Cache c(4);
  Tokens prompt = tokens_of({1, 2});
  prompt.resize(2 * kPageTokens - 1);
  const std::vector<PageId> pages = c.fill(prompt);
  ASSERT_EQ(pages.size(), 1u);
  EXPECT_EQ(c.match(tokens_of({1, 2})), pages);
  prompt.resize(kPageTokens - 1);
  EXPECT_TRUE(c.match(prompt).empty());
}

TEST(PrefixCache, LastTokenOfAPageDecides) {
  Cache c(4);
  const Tokens prompt = tokens_of({1});
  c.fill(prompt);
  for (const size_t at : {size_t{0}, size_t{31}, size_t{63}}) {
    Tokens other = prompt;
    other[at] = 2;
    EXPECT_TRUE(c.match(other).empty()) << at;
  }
}

// Whoever computed the same prefix at the same time keeps its pages to itself, children included.
TEST(PrefixCache, ASecondCopyIsNotCached) {
  Cache c(10);
  const std::vector<PageId> first = c.fill(tokens_of({1, 2}));
  const std::vector<PageId> second = c.fill(tokens_of({1, 2, 3}));
  for (const PageId page : second) EXPECT_FALSE(c.pool.cached(page));
  EXPECT_EQ(c.match(tokens_of({1, 2, 3})), first);
  c.release(second);
  EXPECT_EQ(c.pool.num_free(), 8);
  EXPECT_TRUE(c.cache.check().ok());
}

// Of a second copy its holder has no need: it goes on with the first, and what comes behind is cached.
TEST(PrefixCache, ASecondCopyMayGiveWay) {
  Cache c(10);
  const std::vector<PageId> first = c.fill(tokens_of({1, 2}));
  c.release(first);
  std::vector<PageId> second;
  for (int i = 0; i < 3; ++i) second.push_back(c.cache.allocate());
  const PageId last = second.back();
  c.cache.insert_or_adopt(tokens_of({1, 2, 3}), second);
  EXPECT_EQ(second, (std::vector<PageId>{first[0], first[1], last}));
  EXPECT_EQ(c.pool.num_free(), 7);  // the copies are free again
  EXPECT_EQ(c.pool.num_evictable(), 0);
  EXPECT_TRUE(c.cache.check().ok());
  c.release(second);
  EXPECT_EQ(c.match(tokens_of({1, 2, 3})), second);
}

// Another holder of the copies keeps them, and none of them gets a parent that he does not hold.
TEST(PrefixCache, WhatOthersHoldGetsNoNewParent) {
  Cache c(10);
  const std::vector<PageId> first = c.fill(tokens_of({1}));
  std::vector<PageId> second;
  for (int i = 0; i < 3; ++i) second.push_back(c.cache.allocate());
  const std::vector<PageId> shared = {second[0], second[1]};
  for (const PageId page : shared) c.pool.retain(page);
  c.cache.insert_or_adopt(tokens_of({1, 2, 3}), second);
  EXPECT_EQ(second[0], first[0]);
  EXPECT_EQ(second[1], shared[1]);
  EXPECT_FALSE(c.pool.cached(second[1]));
  EXPECT_FALSE(c.pool.cached(second[2]));
  c.release(first);
  c.release(second);
  EXPECT_TRUE(c.cache.check().ok());
  EXPECT_EQ(c.pool.num_in_use(), 2);
  c.release(shared);
  EXPECT_EQ(c.pool.num_free(), 9);
}

TEST(PrefixCache, OfferingTheSamePagesAgainChangesNothing) {
  Cache c(10);
  const Tokens prompt = tokens_of({1, 2, 3});
  const std::vector<PageId> pages = c.fill(tokens_of({1, 2}));
  std::vector<PageId> longer = pages;
  longer.push_back(c.cache.allocate());
  c.cache.insert(prompt, longer, 3);  // two known, one new behind them
  c.cache.insert(prompt, longer, 3);
  EXPECT_EQ(c.match(prompt), longer);
  EXPECT_TRUE(c.cache.check().ok());
}

TEST(PrefixCache, EvictsTheOldestAndChildrenFirst) {
  Cache c(4);
  const std::vector<PageId> a = c.fill(tokens_of({1, 2}));
  const std::vector<PageId> b = c.fill(tokens_of({3}));
  c.release(a);
  c.release(b);
  EXPECT_EQ(c.cache.num_available(), 4);
  const PageId free = c.cache.allocate();
  EXPECT_EQ(c.cache.allocate(), a[1]);
  EXPECT_EQ(c.match(tokens_of({1, 2})), (std::vector<PageId>{a[0]}));  // held again, so the next to go is b
  EXPECT_EQ(c.cache.allocate(), b[0]);
  EXPECT_TRUE(c.match(tokens_of({3})).empty());
  EXPECT_EQ(c.cache.num_available(), 0);
  EXPECT_EQ(c.cache.allocate(), kNoPage);
  EXPECT_NE(free, kNoPage);
  EXPECT_TRUE(c.cache.check().ok());
}

TEST(PrefixCache, ClearForgetsHeldAndEvictablePages) {
  Cache c(4);
  const std::vector<PageId> held = c.fill(tokens_of({1}));
  c.release(c.fill(tokens_of({2, 3})));
  c.cache.clear();
  EXPECT_EQ(c.pool.num_free(), 3);
  EXPECT_EQ(c.pool.num_evictable(), 0);
  EXPECT_TRUE(c.match(tokens_of({1})).empty());
  EXPECT_TRUE(c.match(tokens_of({2, 3})).empty());
  EXPECT_TRUE(c.cache.check().ok());
  c.cache.insert(tokens_of({1}), held, 1);  // and they may come back
  EXPECT_EQ(c.match(tokens_of({1})), held);
}

// With one page the cache has four buckets: of 200 different pages some fifty share each.
TEST(PrefixCache, AFullBucketIsNoHit) {
  Cache c(1);
  for (int32_t token = 0; token < 200; ++token) {
    const std::vector<PageId> page = c.fill(tokens_of({token}));
    c.release(page);
    for (int32_t other = 0; other < 200; ++other) {
      const std::vector<PageId> hit = c.match(tokens_of({other}));
      ASSERT_EQ(hit.empty(), other != token) << token << " " << other;
      c.release(hit);
    }
  }
}

// Two different pages whose 64-bit hashes are equal (the FNV-1a of prefix_cache.cpp, over words). The prime is 2^40 + 435: two
// first words that are 151 * 2^24 - 1 apart mostly leave states with equal high halves, and the second word makes up for the
// low.
std::pair<Tokens, Tokens> colliding_pages() {
  constexpr uint64_t kPrime = 0x100000001b3ull;
  constexpr uint64_t kStart = 0xcbf29ce484222325ull ^ static_cast<uint32_t>(kNoPage);
  Tokens a(kPageTokens, 5), b(kPageTokens, 5);
  for (uint32_t word = 0; word < 1000; ++word) {
    const uint32_t other = word + 151u * (1u << 24) - 1;
    const uint64_t state_a = (kStart >> 32 << 32 | word) * kPrime, state_b = (kStart >> 32 << 32 | other) * kPrime;
    if (state_a >> 32 != state_b >> 32) continue;
    a[0] = static_cast<int32_t>(static_cast<uint32_t>(kStart) ^ word);
    b[0] = static_cast<int32_t>(static_cast<uint32_t>(kStart) ^ other);
    b[1] = static_cast<int32_t>(static_cast<uint32_t>(a[1]) ^ static_cast<uint32_t>(state_a ^ state_b));
    break;
  }
  return {a, b};
}

TEST(PrefixCache, EqualHashesAreToldApartByTheirTokens) {
  const auto [a, b] = colliding_pages();
  ASSERT_NE(a, b);
  Cache c(4);
  const std::vector<PageId> page_a = c.fill(a);
  EXPECT_TRUE(c.match(b).empty());
  const std::vector<PageId> page_b = c.fill(b);
  EXPECT_EQ(c.match(a), page_a);
  EXPECT_EQ(c.match(b), page_b);
  EXPECT_TRUE(c.cache.check().ok());
}

}  // namespace
}  // namespace otr
