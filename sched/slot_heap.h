// SlotHeap: waiting sequences, the oldest on top, of which any may be taken out: each in logarithmic time, since requests may
// queue by the hundred thousand and be cancelled together.
//
// Thread safety: single-threaded.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace otr {

class SlotHeap {
 public:
  struct Entry {
    int32_t slot;
    uint64_t age;  // smaller is older; unique
  };

  // Until there are more than `size`, or slots from `num_slots` on, push() does not allocate.
  void reserve(size_t size, size_t num_slots) {
    if (heap_.capacity() < size) heap_.reserve(std::max(size, 2 * heap_.capacity()));
    if (place_.size() < num_slots) place_.resize(std::max(num_slots, 2 * place_.size()), kNowhere);
  }

  void push(const Entry& e) {
    reserve(heap_.size() + 1, static_cast<size_t>(e.slot) + 1);
    heap_.push_back(e);
    rise(heap_.size() - 1);
  }

  // REQUIRES: contains(slot).
  void remove(int32_t slot) {
    const size_t at = static_cast<size_t>(place(slot));
    place(slot) = kNowhere;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (last.slot == slot) return;
    heap_[at] = last;
    rise(at);
    sink(static_cast<size_t>(place(last.slot)));
  }

  bool contains(int32_t slot) const {
    return static_cast<size_t>(slot) < place_.size() && place_[static_cast<size_t>(slot)] != kNowhere;
  }
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  const Entry& oldest() const { return heap_.front(); }     // REQUIRES: !empty()
  std::span<const Entry> entries() const { return heap_; }  // in no order

 private:
  static constexpr int32_t kNowhere = -1;

  int32_t& place(int32_t slot) { return place_[static_cast<size_t>(slot)]; }
  void put(size_t at, const Entry& e) {
    heap_[at] = e;
    place(e.slot) = static_cast<int32_t>(at);
  }
  void rise(size_t at) {
    const Entry e = heap_[at];
    for (; at > 0 && e.age < heap_[(at - 1) / 2].age; at = (at - 1) / 2) put(at, heap_[(at - 1) / 2]);
    put(at, e);
  }
  void sink(size_t at) {
    const Entry e = heap_[at];
    for (size_t next = 2 * at + 1; next < heap_.size(); next = 2 * at + 1) {
      if (next + 1 < heap_.size() && heap_[next + 1].age < heap_[next].age) ++next;
      if (e.age < heap_[next].age) break;
      put(at, heap_[next]);
      at = next;
    }
    put(at, e);
  }

  std::vector<Entry> heap_;
  std::vector<int32_t> place_;  // by slot: in heap_
};

}  // namespace otr
