// PagePool: who holds which KV page. Bookkeeping only; the bytes live in the worker's page arena.
//
// A page is free, in use (refcount > 0), leased (in use, but by leases alone), or evictable (refcount 0, but its content is in
// the prefix cache). A lease is a reference of somebody who only reads: a worker that copies the pages of a sequence that was
// given to it. Evictable pages are kept in the order they became so, oldest first. Whoever takes references releases a
// sequence's pages deepest first, and everyone who holds a cached page holds its parents: so a page always becomes evictable
// before its parent does, and evicting the oldest never strands a child.
//
// Invariants (check()): free + evictable + in use + leased = total; each page is in exactly one of the four.
// Single-threaded. Nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/row_batch.h"
#include "kernels/base/status.h"

namespace otr {

inline constexpr PageId kNoPage = -1;

class PagePool {
 public:
  explicit PagePool(int32_t num_pages);

  int32_t num_pages() const { return static_cast<int32_t>(entries_.size()); }
  int32_t num_free() const { return num_free_; }
  int32_t num_evictable() const { return num_evictable_; }
  int32_t num_leased() const { return num_leased_; }
  int32_t num_in_use() const { return num_pages() - num_free_ - num_evictable_ - num_leased_; }
  int32_t refcount(PageId page) const { return entry(page).refcount; }
  bool cached(PageId page) const { return entry(page).cached; }
  // REQUIRES for every write: nobody else can see the page.
  bool writable(PageId page) const { return entry(page).refcount == 1 && !entry(page).cached; }

  // A free page with refcount 1; kNoPage if there is none. Its content is whatever was left there.
  PageId take_free();
  // The page that has been evictable longest, or kNoPage.
  PageId oldest_evictable() const { return lru_head_; }

  void retain(PageId page);
  // At refcount 0 the page becomes evictable if cached, else free.
  void release(PageId page);
  // Likewise, of a lease.
  void lease(PageId page);
  void end_lease(PageId page);

  // Marks a page in use as cached, or takes the mark away; an evictable page that loses it becomes free.
  void set_cached(PageId page, bool cached);

  // The class invariants, and for every page refcount == references[page], of which leases[page] are leases (empty: none are).
  // REQUIRES: references has num_pages() entries, and leases none or as many.
  Status check(const std::vector<int32_t>& references, const std::vector<int32_t>& leases = {}) const;

 private:
  struct Entry {
    int32_t refcount = 0;
    int32_t leases = 0;  // of these
    bool cached = false;
    PageId previous = kNoPage, next = kNoPage;  // links of the free stack (next only) or of the evictable list
  };
  Entry& entry(PageId page) { return entries_[static_cast<size_t>(page)]; }
  const Entry& entry(PageId page) const { return entries_[static_cast<size_t>(page)]; }
  static bool only_leased(const Entry& e) { return e.refcount > 0 && e.refcount == e.leases; }
  void push_free(PageId page);
  void append_evictable(PageId page);
  void unlink_evictable(PageId page);

  std::vector<Entry> entries_;
  PageId free_head_ = kNoPage;
  PageId lru_head_ = kNoPage, lru_tail_ = kNoPage;
  int32_t num_free_ = 0;
  int32_t num_evictable_ = 0;
  int32_t num_leased_ = 0;
};

}  // namespace otr
