// HomeTable: at which worker a sample has ended, whose pages the next turn of its conversation finds there.
//
// A sample goes by its noise key, which it keeps from turn to turn. One that ends takes the entry of another with the same
// place in the table: what is forgotten costs a worker that computes again, and no sample. Allocates in the constructor only.
// Single-threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/base/noise.h"
#include "sched/placement.h"

namespace otr {

class HomeTable {
 public:
  HomeTable() : entries_(kSize) {}

  void note(const NoiseStream& key, int32_t worker) { entries_[place_of(key)] = {.key = key, .worker = worker}; }
  // Placement::kNobody: none is known.
  int32_t find(const NoiseStream& key) const {
    const Entry& e = entries_[place_of(key)];
    return std::memcmp(&e.key, &key, sizeof key) == 0 ? e.worker : Placement::kNobody;
  }

 private:
  static constexpr size_t kSize = 4096;  // 80 KB; more than samples of which caches still have the pages
  struct Entry {
    NoiseStream key = {};
    int32_t worker = Placement::kNobody;
  };
  // Noise keys are random words.
  static size_t place_of(const NoiseStream& key) { return key.r[0] % kSize; }

  std::vector<Entry> entries_;
};

}  // namespace otr
