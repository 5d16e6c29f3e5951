#include "memory/page_pool.h"

#include <cassert>
#include <string>

namespace otr {

PagePool::PagePool(int32_t num_pages) : entries_(static_cast<size_t>(num_pages)) {
  for (PageId page = num_pages - 1; page >= 0; --page) push_free(page);
}

PageId PagePool::take_free() {
  const PageId page = free_head_;
  if (page == kNoPage) return kNoPage;
  Entry& e = entry(page);
  free_head_ = e.next;
  e.next = kNoPage;
  e.refcount = 1;
  --num_free_;
  return page;
}

void PagePool::retain(PageId page) {
  Entry& e = entry(page);
  assert(e.refcount > 0 || e.cached);
  num_leased_ -= only_leased(e);
  if (e.refcount++ == 0) unlink_evictable(page);
}

void PagePool::lease(PageId page) {
  retain(page);
  Entry& e = entry(page);
  ++e.leases;
  num_leased_ += only_leased(e);
}

void PagePool::end_lease(PageId page) {
  Entry& e = entry(page);
  assert(e.leases > 0);
  num_leased_ -= only_leased(e);
  --e.leases;
  release(page);
}

void PagePool::release(PageId page) {
  Entry& e = entry(page);
  assert(e.refcount > e.leases);
  if (--e.refcount > 0) {
    num_leased_ += only_leased(e);
    return;
  }
  if (e.cached) append_evictable(page);
  else push_free(page);
}

void PagePool::set_cached(PageId page, bool cached) {
  Entry& e = entry(page);
  assert(e.refcount > 0 || e.cached);
  if (e.cached && !cached && e.refcount == 0) {
    unlink_evictable(page);
    push_free(page);
  }
  e.cached = cached;
}

void PagePool::push_free(PageId page) {
  entry(page).next = free_head_;
  free_head_ = page;
  ++num_free_;
}

void PagePool::append_evictable(PageId page) {
  Entry& e = entry(page);
  e.previous = lru_tail_;
  e.next = kNoPage;
  if (lru_tail_ != kNoPage) entry(lru_tail_).next = page;
  else lru_head_ = page;
  lru_tail_ = page;
  ++num_evictable_;
}

void PagePool::unlink_evictable(PageId page) {
  Entry& e = entry(page);
  if (e.previous != kNoPage) entry(e.previous).next = e.next;
  else lru_head_ = e.next;
  if (e.next != kNoPage) entry(e.next).previous = e.previous;
  else lru_tail_ = e.previous;
  e.previous = e.next = kNoPage;
  --num_evictable_;
}

Status PagePool::check(const std::vector<int32_t>& references, const std::vector<int32_t>& leases) const {
  auto broken = [](PageId page, const char* what) {
    return Status(StatusCode::kInternal, "page " + std::to_string(page) + ": " + what);
  };
  std::vector<char> listed(entries_.size(), 0);
  int32_t free = 0, evictable = 0, in_use = 0, leased = 0;
  for (PageId page = free_head_; page != kNoPage; page = entry(page).next, ++free) {
    if (entry(page).refcount != 0 || entry(page).cached) return broken(page, "is free but referenced or cached");
    if (listed[static_cast<size_t>(page)]++) return broken(page, "is listed twice");
  }
  for (PageId page = lru_head_; page != kNoPage; page = entry(page).next, ++evictable) {
    if (entry(page).refcount != 0 || !entry(page).cached) return broken(page, "is evictable but referenced or not cached");
    if (listed[static_cast<size_t>(page)]++) return broken(page, "is listed twice");
  }
  for (PageId page = 0; page < num_pages(); ++page) {
    if (refcount(page) != references[static_cast<size_t>(page)]) {
      return broken(page, ("has refcount " + std::to_string(refcount(page)) + " and " +
                           std::to_string(references[static_cast<size_t>(page)]) + " references")
                              .c_str());
    }
    const int32_t lent = leases.empty() ? 0 : leases[static_cast<size_t>(page)];
    if (entry(page).leases != lent) {
      return broken(
          page, ("has " + std::to_string(entry(page).leases) + " leases where " + std::to_string(lent) + " are known").c_str());
    }
    if ((refcount(page) > 0) == (listed[static_cast<size_t>(page)] != 0))
      return broken(page, "is in no list, or in use and listed");
    leased += only_leased(entry(page));
    in_use += refcount(page) > 0 && !only_leased(entry(page));
  }
  if (free != num_free_ || evictable != num_evictable_ || leased != num_leased_ ||
      free + evictable + in_use + leased != num_pages()) {
    return broken(kNoPage, "counts do not add up");
  }
  return {};
}

}  // namespace otr
