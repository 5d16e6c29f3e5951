#include "bench/random_arena.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "kernels/base/philox.h"

namespace otr::bench {
namespace {

constexpr int64_t kPeriod = 1048573;                  // a prime
constexpr int64_t kCapacityBytes = int64_t{8} << 30;  // of addresses, not of memory
constexpr int64_t kPiece = int64_t{1} << 20;          // elements or bytes of a task
constexpr int64_t kUnitGroups = 8192;                 // groups quantised once, then repeated: 17.8 MB

template <typename T>
Buffer<T> reserve(const char* what) {
  Result<Buffer<T>> buffer = Buffer<T>::create(kCapacityBytes / static_cast<int64_t>(sizeof(T)), what);
  if (!buffer.ok()) throw std::bad_alloc();
  return std::move(buffer.value());
}

// Eight uniform numbers of 16 bits added up: a bell curve, here of variance 1, that ends at +-4.9.
float bell_curve(const PhiloxBlock& block) {
  int64_t sum = 0;
  for (const uint32_t w : block.w) sum += (w & 0xffff) + (w >> 16);
  const double deviation = 65536.0 * std::sqrt(8.0 / 12.0);
  return static_cast<float>((static_cast<double>(sum) - 4.0 * 65535.0) / deviation);
}

}  // namespace

RandomArena::RandomArena(const KernelTable& kernels, ThreadPool& pool)
    : kernels_(kernels),
      pool_(pool),
      period_(kPeriod),
      elements_(reserve<Element>("random numbers")),
      quantized_(reserve<uint8_t>("quantised weights")),
      scratch_(reserve<uint8_t>("scratch memory")) {
  for (int64_t i = 0; i < kPeriod; ++i) {
    const PhiloxBlock counter = {{static_cast<uint32_t>(i), 0, 0, 0}};
    period_[static_cast<size_t>(i)] = to_element(bell_curve(philox4x32(PhiloxKey{20, 26}, counter)));
  }
}

const Element* RandomArena::elements(int64_t count) {
  count = (count + kPiece - 1) / kPiece * kPiece;
  if (count > num_elements_) {
    const int64_t first = num_elements_;
    pool_.parallel_for(static_cast<int>((count - first) / kPiece), [&](int task, int) {
      for (int64_t i = first + task * kPiece, end = i + kPiece; i < end;) {
        const int64_t at = i % kPeriod, n = std::min(end - i, kPeriod - at);
        std::memcpy(elements_.data() + i, period_.data() + at, static_cast<size_t>(n) * sizeof(Element));
        i += n;
      }
    });
    num_elements_ = count;
  }
  return elements_.data();
}

const uint8_t* RandomArena::quantized(int64_t bytes) {
  constexpr int64_t kUnit = kUnitGroups * kW4GroupBytes;
  if (quantized_bytes_ == 0) {
    const Element* weight = elements(kUnitGroups * kLinearBlockN * kW4GroupK);
    kernels_.quantize_w4({{kW4GroupK, kUnitGroups * kLinearBlockN, weight, nullptr}, quantized_.data()}, pool_);
    quantized_bytes_ = kUnit;
  }
  if (bytes > quantized_bytes_) {
    const int64_t first = quantized_bytes_ / kUnit, units = (bytes + kUnit - 1) / kUnit;
    pool_.parallel_for(static_cast<int>(units - first), [&](int task, int) {
      std::memcpy(quantized_.data() + (first + task) * kUnit, quantized_.data(), static_cast<size_t>(kUnit));
    });
    quantized_bytes_ = units * kUnit;
  }
  return quantized_.data();
}

void* RandomArena::scratch(int64_t bytes) {
  bytes = (bytes + kPiece - 1) / kPiece * kPiece;
  if (bytes > scratch_bytes_) {
    pool_.parallel_for(static_cast<int>((bytes - scratch_bytes_) / kPiece), [&](int task, int) {
      std::memset(scratch_.data() + scratch_bytes_ + task * kPiece, 0, static_cast<size_t>(kPiece));
    });
    scratch_bytes_ = bytes;
  }
  return scratch_.data();
}

}  // namespace otr::bench
