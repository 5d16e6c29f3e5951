#include "kernels/sample/sample_vec.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {

void sample_avx512(const SampleParams& params, ThreadPool& pool) { sample_rows<VecSampleOps<VecAvx512>>(params, pool); }
void candidates_avx512(const CandidateParams& params, ThreadPool& pool) {
  candidates_rows<VecSampleOps<VecAvx512>>(params, pool);
}

}  // namespace otr
