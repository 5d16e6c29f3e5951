#include "loader/tensor_data.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace otr {
namespace {

float float_from_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return float_from_bits(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return float_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
  // Subnormal: an integer times 2^-24, and every such product is a normal float.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

template <typename Stored, typename Out, typename Widen>
void convert_values(const std::byte* stored, size_t count, Widen widen, Out* out) {
  for (size_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, stored + i * sizeof value, sizeof value);
    if constexpr (std::is_same_v<Out, float>) out[i] = widen(value);
    else out[i] = bf16_from_float(widen(value));
  }
}

template <typename Out>
void convert(Dtype dtype, const std::byte* stored, size_t count, Out* out) {
  switch (dtype) {
    case Dtype::kBf16:
      if constexpr (std::is_same_v<Out, Bf16>) {
        std::memcpy(out, stored, count * sizeof *out);
        return;
      } else {
        return convert_values<uint16_t>(
            stored, count, [](uint16_t b) { return to_float(Bf16{b}); }, out);
      }
    case Dtype::kF16: return convert_values<uint16_t>(stored, count, float_from_f16, out);
    default:
      return convert_values<float>(
          stored, count, [](float f) { return f; }, out);
  }
}

}  // namespace

void convert_tensor(Dtype dtype, const std::byte* stored, size_t count, Bf16* out) { convert(dtype, stored, count, out); }
void convert_tensor(Dtype dtype, const std::byte* stored, size_t count, float* out) { convert(dtype, stored, count, out); }

}  // namespace otr
