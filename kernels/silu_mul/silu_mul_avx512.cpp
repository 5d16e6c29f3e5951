#include "kernels/silu_mul/silu_mul_vec.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {

void silu_mul_avx512(const SiluMulParams& params, ThreadPool& pool) { silu_mul_vec<VecAvx512>(params, pool); }

}  // namespace otr
