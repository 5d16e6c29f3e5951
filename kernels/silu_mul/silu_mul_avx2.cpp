#include "kernels/silu_mul/silu_mul_vec.h"
#include "kernels/simd/vec_avx2.h"

namespace otr {

void silu_mul_avx2(const SiluMulParams& params, ThreadPool& pool) { silu_mul_vec<VecAvx2>(params, pool); }

}  // namespace otr
