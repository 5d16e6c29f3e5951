#include "memory/page_table.h"

namespace otr {

int32_t PageTable::pages_to_write(const PagePool& pool, int32_t begin, int32_t end) const {
  if (begin >= end) return 0;
  const int32_t needed = (end + kPageTokens - 1) / kPageTokens;
  int32_t count = needed > num_pages() ? needed - num_pages() : 0;
  const int32_t first = begin / kPageTokens;
  if (first < num_pages() && !pool.writable(pages_[static_cast<size_t>(first)])) ++count;
  return count;
}

void PageTable::prepare_write(PrefixCache* cache, PagePool* pool, int32_t begin, int32_t end, PageWork* work) {
  const int32_t first = begin / kPageTokens;
  if (begin < end && first < num_pages() && !pool->writable(pages_[static_cast<size_t>(first)])) {
    const PageId shared = pages_[static_cast<size_t>(first)];
    const PageId copy = cache->allocate();
    assert(copy != kNoPage);
    work->copy_from.push_back(shared);
    work->copy_to.push_back(copy);
    pages_[static_cast<size_t>(first)] = copy;
    pool->release(shared);
  }
  while (num_pages() * kPageTokens < end) {
    const PageId page = cache->allocate();
    assert(page != kNoPage);
    work->zero.push_back(page);
    pages_.push_back(page);
  }
}

int32_t PageTable::num_private(const PagePool& pool) const {
  int32_t count = 0;
  for (PageId page : pages_) count += pool.refcount(page) == 1;
  return count;
}

int32_t PageTable::attach_prefix(PrefixCache* cache, std::span<const int32_t> tokens) {
  assert(pages_.empty());
  const int32_t most = static_cast<int32_t>((tokens.size() - 1) / kPageTokens);
  cache->match(tokens, most, &pages_);
  return num_pages() * kPageTokens;
}

void PageTable::publish(PrefixCache* cache, std::span<const int32_t> tokens, int32_t num_full_pages) {
  cache->insert_or_adopt(tokens, std::span(pages_).first(static_cast<size_t>(num_full_pages)));
}

void PageTable::share_from(const PageTable& other, PagePool* pool) {
  assert(pages_.empty());
  for (PageId page : other.pages_) {
    pool->retain(page);
    pages_.push_back(page);
  }
}

void PageTable::replace_from(int32_t first, std::span<const PageId> pages, PagePool* pool) {
  truncate(pool, first * kPageTokens);
  pages_.insert(pages_.end(), pages.begin(), pages.end());
}

void PageTable::truncate(PagePool* pool, int32_t num_positions) {
  while ((num_pages() - 1) * kPageTokens >= num_positions) {
    pool->release(pages_.back());
    pages_.pop_back();
  }
}

void PageTable::release_all(PagePool* pool) { truncate(pool, 0); }

}  // namespace otr
