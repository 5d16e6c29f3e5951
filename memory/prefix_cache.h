// PrefixCache: finds pages that already hold the keys and values of a prompt's beginning: another prompt's, or those of a
// sample that has ended.
//
// A tree of full pages: a node is (parent page, its 64 token ids). Lookups hash, but a hit is decided by comparing token ids,
// and the whole cache belongs to one version of the weights. Nodes live in arrays indexed by page id, so nothing is allocated
// after construction.
//
// Invariants (check()): a cached page's parent is cached; a page's node is reachable from its bucket.
// Single-threaded; shares the pool with its owner.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/page/page.h"
#include "memory/page_pool.h"

namespace otr {

class PrefixCache {
 public:
  // `pool` outlives the cache.
  explicit PrefixCache(PagePool* pool);

  // Takes references on the pages of the longest cached prefix of `tokens`, at most `max_pages`, and appends them to `pages`.
  void match(std::span<const int32_t> tokens, int32_t max_pages, std::vector<PageId>* pages);

  // How many pages match() would find.
  int32_t match_length(std::span<const int32_t> tokens, int32_t max_pages) const;

  // Offers a sequence's first `num_full_pages` pages, whose tokens begin `tokens`. Stops at the first page whose content is
  // already cached under another id: its children would have a parent that their holder does not hold. REQUIRES: the pages are
  // in use and will not be written again.
  void insert(std::span<const int32_t> tokens, std::span<const PageId> pages, int32_t num_full_pages);

  // Likewise of all of `pages`, for a holder to whom equal contents are equal: it goes on with the pages that are cached, and
  // its own copies are released; stops behind these at the first page that is new and that others hold, since they do not hold
  // its parent. REQUIRES: nobody is about to use its pages by their old ids.
  void insert_or_adopt(std::span<const int32_t> tokens, std::span<PageId> pages);

  // A page to write on: free, or else the oldest evictable one, forgotten here. kNoPage if there is neither.
  PageId allocate();
  int32_t num_available() const { return pool_->num_free() + pool_->num_evictable(); }

  // Forgets everything: the weights have changed.
  void clear();

  Status check() const;

 private:
  struct Node {
    PageId parent = kNoPage;
    PageId next_in_bucket = kNoPage;
    int32_t num_children = 0;
    int32_t tokens[kPageTokens] = {};
  };
  Node& node(PageId page) { return nodes_[static_cast<size_t>(page)]; }
  const Node& node(PageId page) const { return nodes_[static_cast<size_t>(page)]; }
  size_t bucket_of(PageId parent, const int32_t* tokens) const;
  PageId find(PageId parent, const int32_t* tokens) const;
  PageId find_or_add(PageId parent, const int32_t* tokens, PageId page);
  void forget(PageId page);

  PagePool* pool_;
  std::vector<Node> nodes_;
  std::vector<PageId> buckets_;  // heads of chains; a power of two of them
};

}  // namespace otr
