// What the tests of the vector kernels share: one instance a path, random inputs, comparison by bits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/element.h"
#include "kernels/base/thread_pool.h"
#include "kernels/dispatch.h"
#include "kernels/linear/linear.h"
#if defined(OUTRIDER_TEST_SM90)
#include "tests/cuda/sm90_table.h"
#endif

namespace otr::testing_util {

// With OUTRIDER_TEST_SM90 the same tests run on the GPU's kernels instead.
#if defined(OUTRIDER_TEST_SM90)
inline constexpr bool kOnSm90 = true;
#else
inline constexpr bool kOnSm90 = false;
#endif

// Runs a test on every path; one that is missing here is skipped with its reason.
class PathTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
#if defined(OUTRIDER_TEST_SM90)
    std::string why;
    kernels = sm90_table(&why);
    if (kernels == nullptr) GTEST_SKIP() << why;
    return;
#endif
    for (const PathInfo& path : list_paths()) {
      if (std::string(GetParam()) != path.table->path) continue;
      if (!path.available) GTEST_SKIP() << path.reason;
      kernels = path.table;
    }
    ASSERT_NE(kernels, nullptr);
  }

  const KernelTable* kernels = nullptr;
};

inline std::string path_name(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

#if defined(OUTRIDER_TEST_SM90)
#define OTR_TEST_ALL_PATHS(suite) INSTANTIATE_TEST_SUITE_P(, suite, ::testing::Values("cuda-sm90a"), path_name)
#define OTR_TEST_VECTOR_PATHS(suite) OTR_TEST_ALL_PATHS(suite)
#else
#define OTR_TEST_ALL_PATHS(suite) \
  INSTANTIATE_TEST_SUITE_P(, suite, ::testing::Values("cpu-amx", "cpu-avx512", "cpu-avx2", "cpu-scalar"), path_name)
// For comparisons with the scalar definition.
#define OTR_TEST_VECTOR_PATHS(suite) \
  INSTANTIATE_TEST_SUITE_P(, suite, ::testing::Values("cpu-amx", "cpu-avx512", "cpu-avx2"), path_name)
#endif

// The table of a path, or null if it is missing here.
inline const KernelTable* find_path(const char* name) {
  Result<const KernelTable*> table = select_kernels(name);
  return table.ok() ? table.value() : nullptr;
}

inline std::vector<float> random_normal(size_t n, float scale, uint32_t seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(bits);
  return x;
}

// Packs w [out_features][in_features] row-major as linear.h says, padding included.
inline void pack_linear(const Element* w, int32_t out_features, int32_t in_features, Element* packed) {
  for (int32_t row = 0; row < out_features; row += kLinearBlockN) {
    linear_pack_block(w + int64_t{row} * in_features, std::min(kLinearBlockN, out_features - row), in_features,
                      packed + linear_packed_index(row, 0, in_features));
  }
}

// Elements that no kernel writes by accident: -1.9e-25 in bf16.
inline std::vector<Element> untouched(size_t n) { return std::vector<Element>(n, to_element(-1.9e-25f)); }

inline uint32_t bits_of(float x) { return bits_from_float(x); }
inline uint32_t bits_of(Bf16 x) { return x.bits; }
inline bool is_nan(float x) { return x != x; }

// Equal bits, or both NaN: which NaN an operation returns is not part of any contract.
template <typename T>
::testing::AssertionResult same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes " << a.size() << " and " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (bits_of(a[i]) == bits_of(b[i]) || (is_nan(to_float(a[i])) && is_nan(to_float(b[i])))) continue;
    return ::testing::AssertionFailure() << "index " << i << ": " << to_float(a[i]) << " and " << to_float(b[i]);
  }
  return ::testing::AssertionSuccess();
}

inline constexpr double kBf16Rounding = 0x1p-8;  // half an ulp of 8 significant bits, relative

// |actual - expected| <= relative * |expected| + absolute for every element; names the worst.
inline ::testing::AssertionResult all_near(const std::vector<Element>& actual, const std::vector<double>& expected,
                                           double relative, double absolute) {
  if (actual.size() != expected.size()) return ::testing::AssertionFailure() << "sizes differ";
  double worst = 0.0;
  size_t at = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double magnitude = expected[i] < 0 ? -expected[i] : expected[i];
    const double difference = static_cast<double>(to_float(actual[i])) - expected[i];
    const double error = (difference < 0 ? -difference : difference) / (relative * magnitude + absolute);
    if (error <= worst) continue;  // NaN goes on
    worst = error;
    at = i;
    if (is_nan(static_cast<float>(error))) break;
  }
  if (worst <= 1.0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "index " << at << ": " << to_float(actual[at]) << " instead of " << expected[at]
                                       << ", " << worst << " times the tolerance";
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;  // long statistics are scaled down
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace otr::testing_util
