// What this machine can do at the moment: bytes and operations per second of all threads of the pool, measured in slices of
// half a millisecond that alternate with a case's own. On a shared machine both swing by half within minutes; their ratio does
// not.
//
// Bytes are those of 512 MB of its own, in pieces of 256 KB that threads take in turn: what a case reads was not fetched by its
// ceiling just before, nor the other way round.
//
//   read         vector loads over all of it
//   copy         memcpy from its lower to its upper half, read and written bytes counted
//   write        memset of all of it
//   matrix       the path's product instruction on registers: TDPBF16PS, VDPBF16PS, FMA of 256 bits, or SSE2's multiply and add
//   byte_matrix  its instruction for bytes: TDPBSSD, VPDPBUSD, or VPMADDUBSW and VPADDW of 256 bits; cpu-scalar: as matrix
//
// Single-threaded.
#pragma once

#include <atomic>

#include "bench/random_arena.h"
#include "bench/slices.h"
#include "memory/buffer.h"

namespace otr::bench {

enum class Bound { kRead, kCopy, kWrite, kMatrix, kByteMatrix };
inline constexpr int kNumBounds = 5;

constexpr const char* bound_name(Bound bound) {
  constexpr const char* kNames[kNumBounds] = {"read", "copy", "write", "matrix", "byte_matrix"};
  return kNames[static_cast<int>(bound)];
}

class Ceiling {
 public:
  Ceiling(const KernelTable& kernels, ThreadPool& pool, RandomArena& arena);

  // Bytes or operations per second, from a slice of about `seconds`; and its share of processor time (slices.h).
  struct Rate {
    double per_second, share;
  };
  Rate measure(Bound bound, double seconds, const ThreadClocks& threads);

  // Where the bytes are, made and touched when first asked for: kRotationBytes.
  const char* memory();

 private:
  using Products = double (*)(const Element* data, int rounds);  // returns its operations
  Products products(Bound bound) const { return bound == Bound::kByteMatrix ? byte_matrix_ : matrix_; }
  void run(Bound bound, int tasks);

  ThreadPool& pool_;
  RandomArena& arena_;
  Buffer<char> memory_;
  Products matrix_ = nullptr, byte_matrix_ = nullptr;
  uint64_t (*read_)(const void* data) = nullptr;              // one piece
  double rate_[kNumBounds] = {1e10, 1e10, 1e10, 1e11, 1e11};  // as last measured
  int64_t next_piece_ = 0;
  std::atomic<uint64_t> sink_{0};  // keeps the loops from being optimised away
};

}  // namespace otr::bench
