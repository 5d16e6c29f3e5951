// PageTable: the pages of one sequence, position p in page p / 64. Pages are shared between the samples of a group and with the
// prefix cache; a shared page is copied before its holder's first write into it (copy-on-write), and the last holder writes in
// place.
//
// Single-threaded. A table's pages must be returned with release_all() before it is destroyed (asserted).
#pragma once

#include <cassert>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/prefix_cache.h"

namespace otr {

// What has to happen to page contents before the next launch may write: new pages are zeroed, shared ones copied.
struct PageWork {
  std::vector<PageId> zero;
  std::vector<PageId> copy_from, copy_to;

  void clear() {
    zero.clear();
    copy_from.clear();
    copy_to.clear();
  }
};

class PageTable {
 public:
  PageTable() = default;
  PageTable(PageTable&&) = default;
  PageTable(const PageTable&) = delete;
  ~PageTable() { assert(pages_.empty()); }

  void reserve(int32_t max_pages) { pages_.reserve(static_cast<size_t>(max_pages)); }
  const std::vector<PageId>& pages() const { return pages_; }
  int32_t num_pages() const { return static_cast<int32_t>(pages_.size()); }

  // Pages that writing positions [begin, end) would take from the pool: new ones, and a copy if the first is shared.
  // REQUIRES: begin <= num_pages() * 64.
  int32_t pages_to_write(const PagePool& pool, int32_t begin, int32_t end) const;

  // Makes positions [begin, end) writable and adds the work to `work`. REQUIRES: pages_to_write() pages are available.
  void prepare_write(PrefixCache* cache, PagePool* pool, int32_t begin, int32_t end, PageWork* work);

  // Pages only this table holds and that giving up would make free: what preempting the sequence wins.
  int32_t num_private(const PagePool& pool) const;

  // Starts the table with the cached prefix of `tokens`, at most floor((n - 1) / 64) pages so that the last token is always
  // run. REQUIRES: the table is empty. Returns the number of tokens covered.
  int32_t attach_prefix(PrefixCache* cache, std::span<const int32_t> tokens);

  // Offers the first `num_full_pages` pages, whose tokens begin `tokens`, and goes on with the cached ones of the same content.
  // REQUIRES: as PrefixCache::insert_or_adopt.
  void publish(PrefixCache* cache, std::span<const int32_t> tokens, int32_t num_full_pages);

  // Shares every page of `other`. REQUIRES: the table is empty.
  void share_from(const PageTable& other, PagePool* pool);

  // The pages from number `first` on become `pages`, whose references the table takes over.
  void replace_from(int32_t first, std::span<const PageId> pages, PagePool* pool);

  // The table goes on with `pages`, whose references it takes over.
  void append(std::span<const PageId> pages) { pages_.insert(pages_.end(), pages.begin(), pages.end()); }

  // Gives back the pages behind the first `num_positions` positions: what a draft took and did not need.
  void truncate(PagePool* pool, int32_t num_positions);

  // Gives all pages back, deepest first (see PagePool).
  void release_all(PagePool* pool);

 private:
  std::vector<PageId> pages_;
};

}  // namespace otr
