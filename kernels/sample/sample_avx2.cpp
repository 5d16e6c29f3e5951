#include "kernels/sample/sample_vec.h"
#include "kernels/simd/vec_avx2.h"

namespace otr {

void sample_avx2(const SampleParams& params, ThreadPool& pool) { sample_rows<VecSampleOps<VecAvx2>>(params, pool); }
void candidates_avx2(const CandidateParams& params, ThreadPool& pool) { candidates_rows<VecSampleOps<VecAvx2>>(params, pool); }

}  // namespace otr
