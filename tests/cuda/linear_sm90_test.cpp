// linear on sm_90a beyond what the CPU's tests ask of every path: many rows, every form of the kernel, silu_mul behind it, and
// what another number of splits may and may not change.
#include "kernels/linear/linear_sm90.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "kernels/base/elementary.h"
#include "kernels/rmsnorm/rmsnorm_sm90.h"
#include "tests/cuda/device_buffer.h"
#include "tests/kernels/kernel_test_util.h"

namespace otr::linear_sm90_test {
namespace {

using namespace testing_util;

class LinearSm90 : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (sm90_table(&why) == nullptr) GTEST_SKIP() << why;
  }
};

// Operands on the device; NaN wherever the kernel must not look: the weight's and x's gaps.
struct Operands {
  int rows, k, n;
  int64_t w_stride, x_stride;
  std::vector<Element> w, x;
  DeviceBuffer<Element> device_w, device_x;
  DeviceBuffer<float> bias;

  Operands(int num_rows, int in_features, int out_features, uint32_t seed = 1)
      : rows(num_rows),
        k(in_features),
        n(out_features),
        w_stride(linear_sm90_stride(in_features)),
        x_stride(linear_padded(in_features) + 32),
        w(with_gaps(out_features, w_stride, seed)),
        x(with_gaps(num_rows, x_stride, seed + 1)),
        device_w(w),
        device_x(x),
        bias(random_normal(static_cast<size_t>(out_features), 1.0f, 3)) {}

  std::vector<Element> with_gaps(int64_t count, int64_t stride, uint32_t seed) const {
    std::vector<Element> m = random_elements(static_cast<size_t>(count * stride), 1.0f, seed);
    for (int64_t i = 0; i < count * stride; ++i) {
      if (i % stride >= k) m[static_cast<size_t>(i)] = nan_element();
    }
    return m;
  }

  LinearWeight weight() const { return {k, n, device_w.data(), bias.data()}; }

  // Rows [first, first + count), without a residual.
  std::vector<float> run(int first, int count, const LinearSm90Config* config = nullptr) const {
    DeviceBuffer<float> out(static_cast<size_t>(count) * n);
    const LinearParams p = {count, weight(), device_x.data() + first * x_stride, x_stride, nullptr, out.data(), n};
    check_status(config != nullptr ? linear_sm90(p, *config, nullptr) : linear_sm90(p, nullptr));
    return out.read();
  }

  std::vector<float> part(const std::vector<float>& all, int first, int count) const {
    return std::vector<float>(all.begin() + int64_t{first} * n, all.begin() + int64_t{first + count} * n);
  }
};

// Weights of one split, of two, of eight, and with edges in both directions. On the emulated device smaller ones, and fewer
// rows.
#if defined(OUTRIDER_TEST_EMULATED)
constexpr int kManyRows = 300, kWeights[][2] = {{260, 70}, {24, 1100}};
constexpr int kCounts[] = {1, 17, 65, 257};
constexpr std::array<int, 3> kFused[] = {
    {1, 224, 40}, {9, 1030, 40}, {150, 72, 72}, {300, 80, 104}};  // rows, inputs, intermediate
#else
constexpr int kManyRows = 4500, kWeights[][2] = {{6200, 200}, {4608, 3584}, {100, 8200}, {3584, 1030}, {72, 33}};
constexpr int kCounts[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100, 128, 129, 191, 255, 256, 257, 383, 385, 512, 1000};
constexpr std::array<int, 3> kFused[] = {{1, 224, 608},     {9, 1030, 40},    {64, 3584, 4864}, {150, 72, 72},
                                         {256, 2048, 1000}, {300, 896, 4864}, {700, 1100, 104}};  // rows, inputs, intermediate
#endif

TEST_F(LinearSm90, ARowIsTheSameAmongOneAndThousands) {
  for (const auto& [n, k] : kWeights) {
    const Operands o(kManyRows, k, n);
    const std::vector<float> all = o.run(0, o.rows);
    for (const int count : kCounts) {
      for (const int first : {0, 131 * count % (o.rows - count), o.rows - count}) {
        EXPECT_TRUE(same_bits(o.run(first, count), o.part(all, first, count)))
            << n << " x " << k << ", " << count << " from " << first;
      }
    }
  }
}

TEST_F(LinearSm90, RunsAreRepeatable) {
  for (const int rows : {1, 64, 200, 1024}) {
    const Operands o(rows, 3584, 4608);
    const std::vector<float> once = o.run(0, rows);
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(same_bits(o.run(0, rows), once)) << rows;
  }
}

TEST_F(LinearSm90, EveryNumberOfSplitsIsNearTheFloat64Product) {
  for (const int rows : {5, 40, 150, 300}) {
    const Operands o(rows, 2100, 200);
    for (const int splits : {1, 2, 4, 8}) {
      LinearSm90Config config = choose_linear_sm90({rows, o.n, o.k, false}, DeviceLimits{}, splits);
      const std::vector<float> out = o.run(0, rows, &config);
      const std::vector<float> bias = o.bias.read();
      for (int r = 0; r < rows; r += 7) {
        for (int i = 0; i < o.n; ++i) {
          double sum = bias[static_cast<size_t>(i)];
          for (int k = 0; k < o.k; ++k) {
            sum += static_cast<double>(to_float(o.x[static_cast<size_t>(r * o.x_stride + k)])) *
                   static_cast<double>(to_float(o.w[static_cast<size_t>(i * o.w_stride + k)]));
          }
          ASSERT_NEAR(static_cast<double>(out[static_cast<size_t>(r * o.n + i)]), sum, 4e-3)
              << config.tile_n << " " << splits << " at " << r << " " << i;
        }
      }
    }
  }
}

// The inverse: the order of sums is part of the bits, so a kernel that chose its splits by rows would be seen.
TEST_F(LinearSm90, AnotherNumberOfSplitsHasOtherBits) {
  const Operands o(16, 4096, 512);
  const LinearSm90Config one = choose_linear_sm90({16, o.n, o.k, false}, DeviceLimits{}, 1);
  const LinearSm90Config four = choose_linear_sm90({16, o.n, o.k, false}, DeviceLimits{}, 4);
  EXPECT_FALSE(same_bits(o.run(0, 16, &one), o.run(0, 16, &four)));
}

TEST_F(LinearSm90, SiluMulBehindItHasTheBitsOfTheFormulaOnItsSums) {
  for (const auto& [rows, k, intermediate] : kFused) {
    const Operands o(rows, k, 2 * intermediate);
    const int64_t stride = linear_padded(intermediate) + 32;
    DeviceBuffer<float> gate_up(static_cast<size_t>(rows) * o.n);
    DeviceBuffer<Element> together(static_cast<size_t>(rows * stride));
    check_status(linear_sm90({rows, o.weight(), o.device_x.data(), o.x_stride, nullptr, gate_up.data(), o.n}, nullptr));
    check_status(linear_silu_mul_sm90({rows, o.weight(), o.device_x.data(), o.x_stride, together.data(), stride}, nullptr));
    const std::vector<float> sums = gate_up.read();
    const std::vector<Element> b = together.read();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < stride; ++i) {
        const size_t at = static_cast<size_t>(r * stride + i);
        const float* sum = sums.data() + r * o.n + i;
        ASSERT_EQ(bits_of(b[at]),
                  i < intermediate ? bits_of(to_element(*sum / (1.0f + exp32(-*sum)) * sum[intermediate])) : 0x7f7fu)
            << rows << " x " << k << " x " << intermediate << " at " << r << " " << i;
      }
    }
  }
}

// A product that begins before the launch ahead has ended reads what that one writes, and nothing older.
TEST_F(LinearSm90, WeightsThatAreFetchedEarlyChangeNothing) {
  const cudaStream_t stream = side_stream();
  for (const auto& [n, k] : kWeights) {
    for (const int rows : {1, 40, 150, 300}) {
      Operands o(rows, k, n);
      const DeviceBuffer<float> source(random_normal(static_cast<size_t>(rows) * static_cast<size_t>(k), 1.0f, 5)),
          scale(random_normal(static_cast<size_t>(k), 1.0f, 6));
      LinearSm90Config config = choose_linear_sm90({rows, n, k, false}, device_limits_sm90().value());
      std::vector<float> outputs[2];
      for (const bool prefetch : {false, true}) {
        DeviceBuffer<float> out(static_cast<size_t>(rows) * static_cast<size_t>(n));
        config.prefetch = prefetch;
        o.device_x.poison();
        check_status(rmsnorm_sm90({.num_rows = rows,
                                   .hidden_size = k,
                                   .eps = 1e-6f,
                                   .x = source.data(),
                                   .row_index = nullptr,
                                   .weight = scale.data(),
                                   .out = o.device_x.data(),
                                   .out_stride = o.x_stride},
                                  stream));
        check_status(linear_sm90({rows, o.weight(), o.device_x.data(), o.x_stride, nullptr, out.data(), n}, config, stream));
        wait_for(stream);
        outputs[prefetch] = out.read();
      }
      EXPECT_TRUE(same_bits(outputs[1], outputs[0])) << rows << " x " << k << " x " << n;
    }
  }
}

TEST_F(LinearSm90, WhatTheCopyEngineRefusesIsAnError) {
  const Operands o(4, 64, 64);
  DeviceBuffer<float> out(4 * 64);
  const LinearParams odd_x = {4, o.weight(), o.device_x.data() + 1, o.x_stride, nullptr, out.data(), 64};
  EXPECT_EQ(linear_sm90(odd_x, nullptr).code(), StatusCode::kInvalidArgument);
  const LinearParams odd_stride = {3, o.weight(), o.device_x.data(), o.x_stride + 4, nullptr, out.data(), 64};
  EXPECT_EQ(linear_sm90(odd_stride, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(linear_silu_mul_sm90({4, {64, 40, o.device_w.data(), nullptr}, o.device_x.data(), o.x_stride, nullptr, 64}, nullptr)
                .code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace otr::linear_sm90_test
