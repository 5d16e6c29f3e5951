// What the system has really given of a range of memory.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // as in memory/buffer.cpp
#endif

namespace otr {

// Whether all pages of `data`, which begins on one, are there.
inline bool is_resident(const void* data, size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> there((bytes + page - 1) / page);
  if (mincore(const_cast<void*>(data), bytes, there.data()) != 0) return false;
  return std::all_of(there.begin(), there.end(), [](unsigned char flags) { return (flags & 1) != 0; });
}

// Whether this system populates when it is asked to: Linux does since 5.14. `data` as above; its first page may come.
inline bool system_populates(void* data) { return madvise(data, 1, MADV_POPULATE_WRITE) == 0; }

}  // namespace otr
