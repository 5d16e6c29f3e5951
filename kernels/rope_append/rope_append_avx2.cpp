#include "kernels/rope_append/rope_append_vec.h"
#include "kernels/simd/vec_avx2.h"

namespace otr {

void rope_append_avx2(const RopeAppendParams& params, ThreadPool& pool) { rope_append_vec<VecAvx2>(params, pool); }

}  // namespace otr
