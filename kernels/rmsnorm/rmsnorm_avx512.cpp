#include "kernels/rmsnorm/rmsnorm_vec.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {

void rmsnorm_avx512(const RmsNormParams& params, ThreadPool& pool) { rmsnorm_vec<VecAvx512>(params, pool); }

}  // namespace otr
