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
  // One worker is everybody's home, and needs no table.
  explicit HomeTable(int32_t num_workers) : entries_(num_workers > 1 ? kSize : 1) {}

  void note(const NoiseStream& key, int32_t worker) { entries_[place_of(key)] = {.key = key, .worker = worker}; }
  // Placement::kNobody: none is known.
  int32_t find(const NoiseStream& key) const {
    const Entry& e = entries_[place_of(key)];
    return std::memcmp(&e.key, &key, sizeof key) == 0 ? e.worker : Placement::kNobody;
  }

 private:
  static constexpr size_t kSize = 65536;  // 1.3 MB; of 8,192 conversations at once 94 % are found
  struct Entry {
    NoiseStream key = {};
    int32_t worker = Placement::kNobody;
  };
  // Noise keys are random words.
  size_t place_of(const NoiseStream& key) const { return key.r[0] % entries_.size(); }

  std::vector<Entry> entries_;
};

}  // namespace otr
