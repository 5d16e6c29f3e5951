// What the parts of sm90_bench share: random operands in 2 GB of the device's memory, a copy's bandwidth, medians of CUDA
// events.
#pragma once

#include <algorithm>
#include <cstdio>
#include <vector>

#include "bench/shapes.h"
#include "kernels/base/element.h"
#include "tests/cuda/device_buffer.h"

namespace otr::bench {

using namespace testing_util;

inline constexpr int64_t kArena = int64_t{1} << 30;  // elements: 2 GB, many times L2, and the largest lm_head

// Element i of the arena, uniform in (-1, 1), on host and device.
OTR_HOST_DEVICE inline Element arena_value(int64_t i) {
  uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ static_cast<uint32_t>(i >> 32) * 40503u;
  h = (h ^ h >> 15) * 2246822519u;
  h ^= h >> 13;
  return to_element((static_cast<float>(h >> 8) - 8388607.5f) * (1.0f / 8388608.0f));
}

// Microseconds of body(i), the median over 9 series of `count` calls each.
template <typename Body>
double time_us(int count, const Body& body) {
  std::vector<double> times;
  for (int repeat = 0; repeat < 11; ++repeat) {
    const float ms = elapsed_ms([&] {
      for (int i = 0; i < count; ++i) body(i);
    });
    if (repeat > 1) times.push_back(1e3 * static_cast<double>(ms) / count);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

struct Arena {
  DeviceBuffer<Element> elements{static_cast<size_t>(kArena)};
  double copy_rate = 0.0;  // bytes read and written a microsecond

  Arena();  // sm90_bench.cu
};

// Print their tables; false: a case is wrong.
bool bench_experts(const Arena& arena);                              // sm90_experts_bench.cu
bool bench_w4(const Arena& arena, const ModelShape& model);          // sm90_drafter_bench.cu
bool bench_sample(const Arena& arena, const ModelShape& model);      // sm90_drafter_bench.cu
bool bench_candidates(const Arena& arena, const ModelShape& model);  // sm90_drafter_bench.cu

}  // namespace otr::bench
