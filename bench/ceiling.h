// What this machine can do at the moment: bytes and operations per second of all threads of the pool, measured in slices of
// milliseconds that alternate with a case's own. On a shared machine both swing by half within minutes; their ratio does not.
//
//   read         vector loads over the arena, in pieces of 256 KB
//   copy         memcpy from the arena to scratch memory, read and written bytes counted
//   write        memset of scratch memory
//   matrix       the path's product instruction on registers: TDPBF16PS, VDPBF16PS, FMA of 256 bits, or SSE2's multiply and add
//   byte_matrix  its instruction for bytes: TDPBSSD, VPDPBUSD, or VPMADDUBSW and VPADDW of 256 bits; cpu-scalar: as matrix
//
// Single-threaded.
#pragma once

#include <atomic>

#include "bench/random_arena.h"

namespace otr::bench {

// Times a slice and tells whether it was undisturbed: whether the process got as much processor time for its wall time as in
// the best slice so far. If not, another program had a core for a while; with two threads the slice then takes up to twice its
// time.
class SliceClock {
 public:
  void start();
  bool stop(double* seconds);  // true: undisturbed

 private:
  double wall_ = 0, cpu_ = 0;
  double best_share_ = 0;
};

enum class Bound { kRead, kCopy, kWrite, kMatrix, kByteMatrix };
inline constexpr int kNumBounds = 5;

constexpr const char* bound_name(Bound bound) {
  constexpr const char* kNames[kNumBounds] = {"read", "copy", "write", "matrix", "byte_matrix"};
  return kNames[static_cast<int>(bound)];
}

class Ceiling {
 public:
  Ceiling(const KernelTable& kernels, ThreadPool& pool, RandomArena& arena);

  // Bytes or operations per second, from a slice of about `seconds`. Returns whether it was undisturbed.
  bool measure(Bound bound, double seconds, double* rate);

 private:
  using Products = double (*)(const Element* data, int rounds);  // returns its operations
  Products products(Bound bound) const { return bound == Bound::kByteMatrix ? byte_matrix_ : matrix_; }
  void run(Bound bound, int tasks);

  ThreadPool& pool_;
  RandomArena& arena_;
  Products matrix_ = nullptr, byte_matrix_ = nullptr;
  uint64_t (*read_)(const void* data) = nullptr;              // one piece
  double rate_[kNumBounds] = {1e10, 1e10, 1e10, 1e11, 1e11};  // as last measured
  SliceClock clocks_[kNumBounds];
  int64_t next_piece_ = 0;
  std::atomic<uint64_t> sink_{0};  // keeps the loops from being optimised away
};

}  // namespace otr::bench
