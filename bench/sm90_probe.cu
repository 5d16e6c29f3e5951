// What the sm_90a kernels rest on and no document states, asked of the device:
//
//   1. Does a column of wgmma's result have the same bits at every N and in every place among the columns? linear rests on it: tokens are its
//      columns.
//   2. Does a row have the same bits in every place among the 64, of operands in shared memory (n64: attention's scores) and with A in
//      registers (n32, n64, n128: weights times values)? attention rests on it: its rows are queries, whose places change with chunk and bundle.
//   3. Do zeros in A leave the sum's bits alone, whatever stands in B there, and whether their steps are done at all? So keys are masked.
//   4. Is there more freedom: the same bits from registers as from shared memory, with the operands' roles exchanged? Nothing needs it.
//   5. Does a weight of few tiles (Qwen2.5-7B's qkv, o and down: 56 to 72) reach memory's speed without splits?
//
// Prints a table. Exit codes: 0, 1 one of the first three answers is no: the kernels' results would depend on the batch; or
// there is no GPU.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <string>

#include "kernels/layouts/wgmma_layout.h"
#include "kernels/linear/linear_sm90.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/wgmma.h"
#include "tests/cuda/device_buffer.h"

namespace otr {
namespace {

using namespace testing_util;

constexpr int kRows = 64, kColumns = 256, kInputs = 1024;

// Register `r` of wgmma's A at a step of 16 inputs.
__device__ uint32_t fragment_of(const Element* a, int thread, int step, int r) {
  return *reinterpret_cast<const uint32_t*>(a + operand_a_row(thread, r) * kInputs + step * kWgmmaK +
                                            operand_a_k(thread, r, 0));
}

// One warpgroup: d[64][N] = a[64][inputs] b[N][inputs]^T, plainly: operands are laid down by ordinary stores, one piece of 64
// inputs at a time. kFragments: a's go to registers instead.
template <int kN, bool kFragments>
__global__ void __launch_bounds__(128)
    product_kernel(const Element* a, const Element* b, int inputs, float* d, int64_t d_row_stride, int64_t d_column_stride) {
  __shared__ __align__(1024) uint8_t a_tile[kRows * kOperandRowBytes];
  __shared__ __align__(1024) uint8_t b_tile[kN * kOperandRowBytes];
  const int thread = static_cast<int>(threadIdx.x);
  float acc[kN / 2];
  for (int k = 0; k < inputs; k += kOperandK) {
    for (int i = thread; i < kRows * kOperandK; i += 128) {
      *reinterpret_cast<Element*>(a_tile + operand_offset(i / kOperandK, i % kOperandK)) =
          a[i / kOperandK * kInputs + k + i % kOperandK];
    }
    for (int i = thread; i < kN * kOperandK; i += 128) {
      *reinterpret_cast<Element*>(b_tile + operand_offset(i / kOperandK, i % kOperandK)) =
          b[i / kOperandK * kInputs + k + i % kOperandK];
    }
    uint32_t fragments[kOperandK / kWgmmaK][4];
#pragma unroll
    for (int i = 0; i < kOperandK / kWgmmaK * 4; ++i) fragments[i / 4][i % 4] = fragment_of(a + k, thread, i / 4, i % 4);
    ptx::fence_async_shared();
    __syncthreads();
    ptx::pin_registers(acc);
    ptx::wgmma_fence();
    const uint64_t a_descriptor = operand_descriptor(ptx::shared_address(a_tile)),
                   b_descriptor = operand_descriptor(ptx::shared_address(b_tile));
#pragma unroll
    for (int step = 0; step < kOperandK / kWgmmaK; ++step) {
      if constexpr (kFragments) {
        ptx::wgmma_bf16(acc, fragments[step], descriptor_at_step(b_descriptor, step), k > 0 || step > 0);
      } else {
        ptx::wgmma_bf16(acc, descriptor_at_step(a_descriptor, step), descriptor_at_step(b_descriptor, step), k > 0 || step > 0);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(acc);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kN / 2; ++i)
    d[accumulator_row(thread, i) * d_row_stride + accumulator_column(thread, i) * d_column_stride] = acc[i];
}

using Matrix = std::vector<float>;

// All kColumns columns, kN at a time; by [row][column].
template <int kN, bool kFragments = false>
Matrix product(const DeviceBuffer<Element>& a, const DeviceBuffer<Element>& b, int inputs = kInputs) {
  DeviceBuffer<float> d(kRows * kColumns);
  for (int n = 0; n < kColumns; n += kN) {
    product_kernel<kN, kFragments><<<1, 128>>>(a.data(), b.data() + n * kInputs, inputs, d.data() + n, kColumns, 1);
    check_cuda(cudaGetLastError(), "product");
  }
  return d.read();
}

std::vector<Element> random_matrix(int rows, uint32_t seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal;
  std::vector<Element> m(static_cast<size_t>(rows) * kInputs);
  for (Element& e : m) e = to_element(normal(bits));
  return m;
}

// Row r of the result is row (r + by) % rows.
std::vector<Element> rolled(const std::vector<Element>& m, int by) {
  std::vector<Element> out(m.size());
  const size_t shift = static_cast<size_t>(by) * kInputs;
  for (size_t i = 0; i < m.size(); ++i) out[i] = m[(i + shift) % m.size()];
  return out;
}

int differing(const Matrix& a, const Matrix& b, int roll_rows, int roll_columns) {
  int count = 0;
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kColumns; ++n) {
      const float x = a[static_cast<size_t>(m * kColumns + n)];
      const float y =
          b[static_cast<size_t>((m + kRows - roll_rows) % kRows * kColumns + (n + kColumns - roll_columns) % kColumns)];
      count += bits_from_float(x) != bits_from_float(y);
    }
  }
  return count;
}

int report(const std::string& what, int count) {
  std::printf("| %-58s | %-6s | %6d of %d |\n", what.c_str(), count == 0 ? "equal" : "NO", count, kRows * kColumns);
  return count;
}

// The largest difference from float64.
double error_of(const std::vector<Element>& a, const std::vector<Element>& b, const Matrix& product) {
  double worst = 0.0;
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kColumns; ++n) {
      double sum = 0.0;
      for (int k = 0; k < kInputs; ++k) {
        sum += double{to_float(a[static_cast<size_t>(m * kInputs + k)])} *
               double{to_float(b[static_cast<size_t>(n * kInputs + k)])};
      }
      const double error = std::fabs(sum - double{product[static_cast<size_t>(m * kColumns + n)]});
      worst = error <= worst ? worst : error;  // a NaN is the worst
    }
  }
  return worst;
}

// As attention multiplies, at one N: a row's bits by place, and those of sums over zeros of A.
template <int kN, bool kFragments>
int probe_attention(const std::vector<Element>& a, const std::vector<Element>& b) {
  const std::string name = (kFragments ? "A in registers, n" : "A in shared memory, n") + std::to_string(kN);
  const DeviceBuffer<Element> device_a(a), device_b(b);
  const Matrix base = product<kN, kFragments>(device_a, device_b);
  const double error = error_of(a, b, base);
  std::printf("| %-58s | %.2g | |\n", (name + ", largest difference from float64").c_str(), error);
  int broken = error < 1e-2 ? 0 : kRows * kColumns;
  for (const int by : {1, 8, 16, 33}) {
    const DeviceBuffer<Element> moved(rolled(a, by));
    broken += report(name + ", rows moved by " + std::to_string(by),
                     differing(base, product<kN, kFragments>(moved, device_b), by, 0));
  }
  // Weights of 0 from a key inside a step on, and values there as large as bf16's: were a factor of 0 taken for one with the
  // least exponent when products are aligned, values of 2^67 or less would not show it.
  constexpr int kVisible = 520, kWhole = 576;  // and in whole pieces
  std::vector<Element> masked = a, other = b;
  for (size_t i = 0; i < masked.size(); ++i) {
    if (static_cast<int>(i % kInputs) >= kVisible) masked[i] = Element{0};
  }
  for (size_t i = 0; i < other.size(); ++i) {
    if (static_cast<int>(i % kInputs) >= kVisible) other[i] = to_element(i % 3 == 0 ? -3e38f : 3e38f);
  }
  const DeviceBuffer<Element> device_masked(masked), device_other(other);
  const Matrix sums = product<kN, kFragments>(device_masked, device_b);
  broken +=
      report(name + ", zeros times other values", differing(sums, product<kN, kFragments>(device_masked, device_other), 0, 0));
  broken += report(name + ", steps of zeros left out",
                   differing(sums, product<kN, kFragments>(device_masked, device_b, kWhole), 0, 0));
  return broken;
}

// How many elements break what the kernels rely on.
int probe_bits() {
  const std::vector<Element> a = random_matrix(kRows, 1), b = random_matrix(kColumns, 2);
  const DeviceBuffer<Element> device_a(a), device_b(b);
  const Matrix base = product<8>(device_a, device_b);
  const double worst = error_of(a, b, base);
  std::printf("n8 against float64: largest difference %.3g (sums of %d products of deviation 1)\n\n", worst, kInputs);
  std::printf("| bits of a result, against n8 | | differing |\n|---|---|---|\n");
  int broken = worst < 1e-2 ? 0 : kRows * kColumns;
  broken += report("n16", differing(base, product<16>(device_a, device_b), 0, 0));
  broken += report("n32", differing(base, product<32>(device_a, device_b), 0, 0));
  broken += report("n64", differing(base, product<64>(device_a, device_b), 0, 0));
  broken += report("n128", differing(base, product<128>(device_a, device_b), 0, 0));
  const auto differing_192 = [&](const DeviceBuffer<Element>& rows, const Matrix& expected) {  // of its first columns
    DeviceBuffer<float> d(expected);
    product_kernel<192, false><<<1, 128>>>(rows.data(), device_b.data(), kInputs, d.data(), kColumns, 1);
    check_cuda(cudaGetLastError(), "product");
    return differing(expected, d.read(), 0, 0);
  };
  broken += report("n192, its first columns", differing_192(device_a, base));
  broken += report("n256", differing(base, product<256>(device_a, device_b), 0, 0));
  for (const int by : {1, 3, 8, 100}) {
    const DeviceBuffer<Element> moved(rolled(b, by));
    broken += report("n256, columns moved by " + std::to_string(by), differing(base, product<256>(device_a, moved), 0, by));
  }
  // silu_mul has gates and ups in other rows than linear has them.
  for (const int by : {1, 8, 16, 33}) {
    const DeviceBuffer<Element> moved(rolled(a, by));
    broken += report("n192, its first columns, rows moved by " + std::to_string(by),
                     differing_192(moved, product<64>(moved, device_b)));
  }
  broken += probe_attention<8, false>(a, b) + probe_attention<16, false>(a, b) + probe_attention<32, false>(a, b);
  broken += probe_attention<64, false>(a, b) + probe_attention<128, false>(a, b) + probe_attention<256, false>(a, b);
  broken += probe_attention<32, true>(a, b) + probe_attention<64, true>(a, b) + probe_attention<128, true>(a, b);
  int freedom = report("A in registers, n64, against n8", differing(base, product<64, true>(device_a, device_b), 0, 0));
  DeviceBuffer<float> swapped(kRows * kColumns);
  for (int n = 0; n < kColumns; n += kRows) {  // 64 columns become the 64 rows
    product_kernel<64, false>
        <<<1, 128>>>(device_b.data() + n * kInputs, device_a.data(), kInputs, swapped.data() + n, 1, kColumns);
    check_cuda(cudaGetLastError(), "product");
  }
  freedom += report("roles exchanged: the columns as rows, n64", differing(base, swapped.read(), 0, 0));
  std::printf("\nRow invariance over n, places and masked keys: %s. Registers and roles: %s.\n\n",
              broken == 0 ? "holds" : "DOES NOT HOLD", freedom == 0 ? "free" : "part of the bits");
  return broken;
}

// ---- Splits -----------------------------------------------------------------------------------------------------------------

double median_of(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

__global__ void fill_kernel(Element* out, int64_t size) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u;
    h ^= h >> 15;
    out[i] = to_element((static_cast<float>(h & 0xffff) - 32768.0f) * 1e-6f);
  }
}

void probe_splits() {
  constexpr size_t kArena = size_t{1} << 30;  // rotated through: many times L2
  DeviceBuffer<Element> arena(kArena / 2), other(kArena / 2);
  fill_kernel<<<1024, 256>>>(arena.data(), static_cast<int64_t>(kArena / 2));
  check_cuda(cudaDeviceSynchronize(), "fill");
  std::vector<double> copies;
  for (int i = 0; i < 9; ++i) {
    const float ms = elapsed_ms([&] { cudaMemcpyAsync(other.data(), arena.data(), kArena, cudaMemcpyDeviceToDevice); });
    copies.push_back(2.0 * kArena / ms / 1e6);
  }
  const double ceiling = median_of(copies);
  std::printf("copy: %.0f GB/s read and written\n\n", ceiling);
  std::printf("| weight | rows | splits | us | GB/s | of copy | kernel |\n|---|---|---|---|---|---|---|\n");

  Result<DeviceLimits> device = device_limits_sm90();
  check_status(device.status());
  constexpr struct {
    const char* name;
    int n, k;
  } kWeights[] = {{"qkv", 4608, 3584}, {"o", 3584, 3584}, {"down", 3584, 18944}, {"gate_up", 37888, 3584}};
  DeviceBuffer<float> out(size_t{256} * 37888);
  DeviceBuffer<Element> x(size_t{256} * 18944);
  fill_kernel<<<256, 256>>>(x.data(), static_cast<int64_t>(x.size()));
  for (const auto& w : kWeights) {
    const int64_t elements = int64_t{w.n} * w.k;
    const int places = static_cast<int>(static_cast<int64_t>(kArena / 2) / elements);
    for (const int rows : {1, 16, 64, 256}) {
      for (const int splits : {1, 2, 4}) {
        const LinearSm90Config config = choose_linear_sm90({rows, w.n, w.k, false}, device.value(), splits);
        std::vector<double> times;
        for (int repeat = 0; repeat < 11; ++repeat) {
          const float ms = elapsed_ms([&] {
            for (int i = 0; i < places; ++i) {
              const LinearWeight weight = {w.k, w.n, arena.data() + i * elements, nullptr};
              check_status(linear_sm90({rows, weight, x.data(), w.k, nullptr, out.data(), w.n}, config, nullptr));
            }
          });
          if (repeat > 1) times.push_back(1e3 * ms / places);
        }
        const double us = median_of(times), rate = 2.0 * static_cast<double>(elements) / us / 1e3;
        std::printf("| %s | %d | %d | %.1f | %.0f | %.0f %% | %s |\n", w.name, rows, splits, us, rate, 100.0 * rate / ceiling,
                    to_string(config).c_str());
      }
    }
  }
}

}  // namespace
}  // namespace otr

int main() {
  cudaDeviceProp device = {};
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess || device.major != 9) {
    std::fprintf(stderr, "sm90_probe: no device of compute capability 9.0\n");
    return 1;
  }
  std::printf("%s, %d multiprocessors\n\n", device.name, device.multiProcessorCount);
  const int broken = otr::probe_bits();
  otr::probe_splits();
  return broken == 0 ? 0 : 1;
}
