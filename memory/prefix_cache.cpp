#include "memory/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <string>

namespace otr {

PrefixCache::PrefixCache(PagePool* pool)
    : pool_(pool),
      nodes_(static_cast<size_t>(pool->num_pages())),
      buckets_(std::bit_ceil(static_cast<size_t>(pool->num_pages()) * 2 + 1), kNoPage) {}

size_t PrefixCache::bucket_of(PageId parent, const int32_t* tokens) const {
  // FNV-1a over words; it only has to spread, a hit is decided by comparison.
  uint64_t h = 0xcbf29ce484222325ull ^ static_cast<uint32_t>(parent);
  for (int i = 0; i < kPageTokens; ++i) h = (h ^ static_cast<uint32_t>(tokens[i])) * 0x100000001b3ull;
  return (h ^ (h >> 32)) & (buckets_.size() - 1);
}

PageId PrefixCache::find(PageId parent, const int32_t* tokens) const {
  for (PageId p = buckets_[bucket_of(parent, tokens)]; p != kNoPage; p = node(p).next_in_bucket) {
    if (node(p).parent == parent && std::memcmp(node(p).tokens, tokens, sizeof node(p).tokens) == 0) return p;
  }
  return kNoPage;
}

void PrefixCache::match(std::span<const int32_t> tokens, int32_t max_pages, std::vector<PageId>* pages) {
  PageId parent = kNoPage;
  const int32_t full = std::min(max_pages, static_cast<int32_t>(tokens.size() / kPageTokens));
  for (int32_t i = 0; i < full; ++i) {
    const PageId page = find(parent, tokens.data() + size_t{kPageTokens} * static_cast<size_t>(i));
    if (page == kNoPage) return;
    pool_->retain(page);
    pages->push_back(page);
    parent = page;
  }
}

int32_t PrefixCache::match_length(std::span<const int32_t> tokens, int32_t max_pages) const {
  PageId parent = kNoPage;
  const int32_t full = std::min(max_pages, static_cast<int32_t>(tokens.size() / kPageTokens));
  for (int32_t i = 0; i < full; ++i) {
    parent = find(parent, tokens.data() + size_t{kPageTokens} * static_cast<size_t>(i));
    if (parent == kNoPage) return i;
  }
  return full;
}

// The page that is cached under this key, which is `page` unless another one was there before.
PageId PrefixCache::find_or_add(PageId parent, const int32_t* tokens, PageId page) {
  const PageId known = find(parent, tokens);
  if (known != kNoPage) return known;
  assert(pool_->refcount(page) > 0 && !pool_->cached(page));
  const size_t bucket = bucket_of(parent, tokens);
  Node& n = node(page);
  n.parent = parent;
  n.num_children = 0;
  std::memcpy(n.tokens, tokens, sizeof n.tokens);
  n.next_in_bucket = buckets_[bucket];
  buckets_[bucket] = page;
  if (parent != kNoPage) ++node(parent).num_children;
  pool_->set_cached(page, true);
  return page;
}

void PrefixCache::insert(std::span<const int32_t> tokens, std::span<const PageId> pages, int32_t num_full_pages) {
  PageId parent = kNoPage;
  for (int32_t i = 0; i < num_full_pages; ++i) {
    const PageId page = pages[static_cast<size_t>(i)];
    parent = find_or_add(parent, tokens.data() + size_t{kPageTokens} * static_cast<size_t>(i), page);
    if (parent != page) return;
  }
}

void PrefixCache::insert_or_adopt(std::span<const int32_t> tokens, std::span<PageId> pages) {
  PageId parent = kNoPage;
  bool adopted = false;
  for (size_t i = 0; i < pages.size(); ++i) {
    const int32_t* page_tokens = tokens.data() + kPageTokens * i;
    // Whoever else holds a page behind an adopted one does not hold the parent that it would get.
    if (adopted && pool_->refcount(pages[i]) > 1 && find(parent, page_tokens) == kNoPage) return;
    parent = find_or_add(parent, page_tokens, pages[i]);
    if (parent == pages[i]) continue;
    adopted = true;
    pool_->retain(parent);
    pool_->release(pages[i]);
    pages[i] = parent;
  }
}

PageId PrefixCache::allocate() {
  if (pool_->num_free() == 0) {
    const PageId victim = pool_->oldest_evictable();
    if (victim == kNoPage) return kNoPage;
    forget(victim);
  }
  return pool_->take_free();
}

void PrefixCache::forget(PageId page) {
  Node& n = node(page);
  assert(n.num_children == 0);
  PageId* link = &buckets_[bucket_of(n.parent, n.tokens)];
  while (*link != page) link = &node(*link).next_in_bucket;
  *link = n.next_in_bucket;
  if (n.parent != kNoPage) --node(n.parent).num_children;
  pool_->set_cached(page, false);
}

void PrefixCache::clear() {
  std::fill(buckets_.begin(), buckets_.end(), kNoPage);
  for (PageId page = 0; page < pool_->num_pages(); ++page) {
    if (pool_->cached(page)) pool_->set_cached(page, false);
  }
}

Status PrefixCache::check() const {
  auto broken = [](PageId page, const char* what) {
    return Status(StatusCode::kInternal, "cached page " + std::to_string(page) + ": " + what);
  };
  std::vector<int32_t> children(nodes_.size(), 0);
  for (PageId page = 0; page < pool_->num_pages(); ++page) {
    if (!pool_->cached(page)) continue;
    if (find(node(page).parent, node(page).tokens) != page) return broken(page, "is not the one its own key finds");
    if (node(page).parent == kNoPage) continue;
    if (!pool_->cached(node(page).parent)) return broken(page, "has a parent that is not cached");
    if (pool_->refcount(page) > 0 && pool_->refcount(node(page).parent) == 0)
      return broken(page, "is held and its parent is not");
    ++children[static_cast<size_t>(node(page).parent)];
  }
  for (PageId page = 0; page < pool_->num_pages(); ++page) {
    if (pool_->cached(page) && children[static_cast<size_t>(page)] != node(page).num_children) {
      return broken(page, "miscounts its children");
    }
  }
  return {};
}

}  // namespace otr
