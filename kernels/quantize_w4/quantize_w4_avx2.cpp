#include "kernels/quantize_w4/quantize_w4_vec.h"
#include "kernels/simd/vec_avx2.h"

namespace otr {
namespace {

struct Avx2 {
  using V = VecAvx2;
  using Uint = UintAvx2;
  OTR_INLINE Uint max_signed(Uint a, Uint b) { return {_mm256_max_epi16(a.lo, b.lo), _mm256_max_epi16(a.hi, b.hi)}; }
  OTR_INLINE Uint max_unsigned(Uint a, Uint b) { return {_mm256_max_epu16(a.lo, b.lo), _mm256_max_epu16(a.hi, b.hi)}; }
  OTR_INLINE Uint and_(Uint a, Uint b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
  template <int kBits>
  OTR_INLINE Uint shift_left(Uint a) {
    return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
  }
  OTR_INLINE Uint bits(V a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
  OTR_INLINE V as_float(Uint a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
  OTR_INLINE V min(V a, V b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
};

}  // namespace

void quantize_w4_avx2(const QuantizeW4Params& params, ThreadPool& pool) { QuantizeW4<Avx2>::run(params, pool); }

}  // namespace otr
