// DraftPaths: the pages of a tick's draft paths. Sibling nodes share a position, so every path of a forest but the first gets
// pages of its own from the first drafted position's page on; before it, all paths read the sequence's pages. The keys of a
// path then lie in slots of their absolute positions, as plain decoding would have put them, and attention needs to know
// nothing of trees. Keeping a path means putting its pages into the sequence's table: nothing moves.
//
// Pages are taken from the free ones and those that are only cached, and counted by the pool like all others. Single-threaded;
// nothing is allocated within the limits given at construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/page_table.h"

namespace otr {

class DraftPaths {
 public:
  static constexpr int32_t kNoPath = -1;

  // REQUIRES: `max_paths` paths of at most `max_pages` pages in all between two clear()s.
  DraftPaths(int32_t max_paths, int32_t max_pages);

  // A new path of the sequence with this table, for drafted positions [begin, end). Up to position `filled` it is a copy of
  // path `from` (kNoPath: of the sequence itself). Returns its number, or kNoPath if there are too few pages, free or
  // evictable.
  int32_t add(const PageTable& table, int32_t from, int32_t begin, int32_t filled, int32_t end, PrefixCache* cache,
              PageWork* work);

  int32_t size() const { return static_cast<int32_t>(paths_.size()); }
  // The path's pages, from page begin / 64 of the sequence on.
  std::span<const PageId> pages(int32_t path) const;
  // The sequence continues on this path: its table takes the path's pages for its own from there on.
  void keep(int32_t path, PageTable* table, PagePool* pool);

  // Gives back the pages of the paths that were not kept.
  void clear(PagePool* pool);

 private:
  struct Path {
    int32_t first_page;  // in the sequence's table
    int32_t begin, end;  // in pages_
    bool kept;
  };
  std::vector<Path> paths_;
  std::vector<PageId> pages_;
};

}  // namespace otr
