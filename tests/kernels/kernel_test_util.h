// What the tests of the matrix kernels share: buffers between inaccessible memory, and a comparison with a tolerance per
// element.
#pragma once

#include <sys/mman.h>

#include <cstdlib>

#include "tests/kernels/vector_test_util.h"

namespace otr::testing_util {

inline std::vector<Element> random_elements(size_t n, float scale, uint32_t seed) {
  const std::vector<float> x = random_normal(n, scale, seed);
  std::vector<Element> e(n);
  for (size_t i = 0; i < n; ++i) e[i] = to_element(x[i]);
  return e;
}

inline Element nan_element() { return to_element(__builtin_nanf("")); }

// `size` elements with inaccessible memory directly before the first (kAtStart) or directly after the last one (kAtEnd): an
// access beyond that side crashes the test. Sanitizers do not see tile loads; the memory management unit does.
enum class Guard { kAtStart, kAtEnd };

template <typename T>
class GuardedBuffer {
 public:
  GuardedBuffer(size_t size, Guard guard) : size_(size) {
    constexpr size_t kPage = 4096;
    const size_t bytes = (size * sizeof(T) + kPage - 1) / kPage * kPage;
    mapped_ = bytes + 2 * kPage;
    base_ = static_cast<char*>(mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + kPage, bytes, PROT_READ | PROT_WRITE) != 0) std::abort();
    data_ = reinterpret_cast<T*>(base_ + kPage + (guard == Guard::kAtEnd ? bytes - size * sizeof(T) : 0));
  }
  GuardedBuffer(const std::vector<T>& values, Guard guard) : GuardedBuffer(values.size(), guard) {
    for (size_t i = 0; i < size_; ++i) data_[i] = values[i];
  }
  ~GuardedBuffer() { munmap(base_, mapped_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::vector<T> values() const { return std::vector<T>(data_, data_ + size_); }

 private:
  char* base_;
  size_t mapped_, size_;
  T* data_;
};

// |actual - expected| <= tolerance for every element; names the worst. NaN and Inf are never near anything.
template <typename T>
::testing::AssertionResult within(const std::vector<T>& actual, const std::vector<double>& expected,
                                  const std::vector<double>& tolerance) {
  if (actual.size() != expected.size() || actual.size() != tolerance.size()) {
    return ::testing::AssertionFailure() << "sizes " << actual.size() << ", " << expected.size() << ", " << tolerance.size();
  }
  double worst = 0.0;
  size_t at = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double value = to_float(actual[i]);
    const double difference = value < expected[i] ? expected[i] - value : value - expected[i];
    const double error = is_finite_bits(to_float(actual[i])) ? difference / tolerance[i] : __builtin_inf();
    if (!(error <= worst)) {
      worst = error;
      at = i;
    }
  }
  if (worst <= 1.0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "index " << at << ": " << to_float(actual[at]) << " instead of " << expected[at]
                                       << ", " << worst << " times the tolerance " << tolerance[at];
}

}  // namespace otr::testing_util
