// cpu-avx512 and cpu-amx. About 17 operations for 32 weights, in less time than those take to come from memory: bound by memory
// (one Zen 4 core, 7B shapes: 0.75 to 1 of memcpy's bandwidth, bytes read and written).
#include "kernels/quantize_w4/quantize_w4_vec.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {
namespace {

struct Avx512 {
  using V = VecAvx512;
  using Uint = UintAvx512;
  OTR_INLINE Uint max_signed(Uint a, Uint b) { return {_mm512_max_epi16(a.v, b.v)}; }
  OTR_INLINE Uint max_unsigned(Uint a, Uint b) { return {_mm512_max_epu16(a.v, b.v)}; }
  OTR_INLINE Uint and_(Uint a, Uint b) { return {_mm512_and_si512(a.v, b.v)}; }
  template <int kBits>
  OTR_INLINE Uint shift_left(Uint a) {
    return {_mm512_slli_epi32(a.v, kBits)};
  }
  OTR_INLINE Uint bits(V a) { return {_mm512_castps_si512(a.v)}; }
  OTR_INLINE V as_float(Uint a) { return {_mm512_castsi512_ps(a.v)}; }
  OTR_INLINE V min(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
};

}  // namespace

void quantize_w4_avx512(const QuantizeW4Params& params, ThreadPool& pool) { QuantizeW4<Avx512>::run(params, pool); }

}  // namespace otr
