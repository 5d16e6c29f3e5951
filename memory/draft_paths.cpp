#include "memory/draft_paths.h"

namespace otr {

DraftPaths::DraftPaths(int32_t max_paths, int32_t max_pages) {
  paths_.reserve(static_cast<size_t>(max_paths));
  pages_.reserve(static_cast<size_t>(max_pages));
}

int32_t DraftPaths::add(const PageTable& table, int32_t from, int32_t begin, int32_t filled, int32_t end, PrefixCache* cache,
                        PageWork* work) {
  const int32_t first = begin / kPageTokens, count = (end + kPageTokens - 1) / kPageTokens - first;
  if (count > cache->num_available()) return kNoPath;
  const int32_t start = static_cast<int32_t>(pages_.size());
  for (int32_t i = 0; i < count; ++i) {
    const PageId page = cache->allocate();
    pages_.push_back(page);
    if ((first + i) * kPageTokens < filled) {
      const size_t source = static_cast<size_t>(i);
      work->copy_from.push_back(from == kNoPath ? table.pages()[static_cast<size_t>(first) + source] : pages(from)[source]);
      work->copy_to.push_back(page);
    } else {
      work->zero.push_back(page);
    }
  }
  paths_.push_back({first, start, start + count, false});
  return size() - 1;
}

std::span<const PageId> DraftPaths::pages(int32_t path) const {
  const Path& p = paths_[static_cast<size_t>(path)];
  return std::span(pages_).subspan(static_cast<size_t>(p.begin), static_cast<size_t>(p.end - p.begin));
}

void DraftPaths::keep(int32_t path, PageTable* table, PagePool* pool) {
  Path& p = paths_[static_cast<size_t>(path)];
  assert(!p.kept);
  p.kept = true;
  table->replace_from(p.first_page, pages(path), pool);
}

void DraftPaths::clear(PagePool* pool) {
  for (const Path& p : paths_) {
    for (int32_t i = p.begin; i < p.end && !p.kept; ++i) pool->release(pages_[static_cast<size_t>(i)]);
  }
  paths_.clear();
  pages_.clear();
}

}  // namespace otr
