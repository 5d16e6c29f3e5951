// Random numbers in memory, made once and shared by all cases: weights, keys and values, activations are pieces of it.
//
// bf16 values of a bell curve of variance 1, from Philox, equal on every machine. The values repeat after a prime number of
// elements (2 MB), their addresses do not: what is rotated over the arena is read from memory. Read as float32 it holds the
// same curve. It grows as cases ask for more, and costs what was asked for.
//
// Single-threaded. Pointers stay valid.
#pragma once

#include <new>
#include <utility>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "kernels/dispatch.h"
#include "memory/buffer.h"

namespace otr::bench {

// Cases address copies of their operands in turn, this many bytes in all: caches hold a small part of it.
inline constexpr int64_t kRotationBytes = int64_t{512} << 20;

// How many copies of `bytes` make up a rotation.
constexpr int64_t copies_in_rotation(int64_t bytes) { return (kRotationBytes + bytes - 1) / bytes; }

// Memory for operands, or bad_alloc, which ends the case.
template <typename T>
Buffer<T> make_buffer(int64_t count, const char* what) {
  Result<Buffer<T>> buffer = Buffer<T>::create(count, what);
  if (!buffer.ok()) throw std::bad_alloc();
  return std::move(buffer.value());
}

class RandomArena {
 public:
  RandomArena(const KernelTable& kernels, ThreadPool& pool);

  // The first `count` elements; 64-byte aligned.
  const Element* elements(int64_t count);
  const float* floats(int64_t count) { return reinterpret_cast<const float*>(elements(2 * count)); }
  int64_t num_elements() const { return num_elements_; }  // so far
  // The first `bytes` of a stream of quantised groups: any weight of linear_w4 whose in_features are a multiple of 128.
  const uint8_t* quantized(int64_t bytes);
  // Memory to write to, `bytes` of it touched: pages are there before anything is timed.
  void* scratch(int64_t bytes);

 private:
  const KernelTable& kernels_;
  ThreadPool& pool_;
  std::vector<Element> period_;
  Buffer<Element> elements_;
  Buffer<uint8_t> quantized_, scratch_;
  int64_t num_elements_ = 0, quantized_bytes_ = 0, scratch_bytes_ = 0;
};

}  // namespace otr::bench
