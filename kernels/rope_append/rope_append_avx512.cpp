#include "kernels/rope_append/rope_append_vec.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {

void rope_append_avx512(const RopeAppendParams& params, ThreadPool& pool) { rope_append_vec<VecAvx512>(params, pool); }

}  // namespace otr
