#include "kernels/rmsnorm/rmsnorm_vec.h"
#include "kernels/simd/vec_avx2.h"

namespace otr {

void rmsnorm_avx2(const RmsNormParams& params, ThreadPool& pool) { rmsnorm_vec<VecAvx2>(params, pool); }

}  // namespace otr
