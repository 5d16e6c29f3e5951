// take_tokens, sm_90a: token_ids[row] = drawn[from[row]].tokens[0], or 0 where there is no candidate.
//
// One thread a row; no shared memory, no barrier, no reduction. A row reads 12 bytes and writes 4: what counts is the launch.
#include "kernels/base/launch_status.h"
#include "kernels/sample/sample_sm90.h"

namespace otr {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) take_tokens_kernel(TakeTokensParams p) {
  const int32_t row = static_cast<int32_t>(blockIdx.x) * kThreads + static_cast<int32_t>(threadIdx.x);
  if (row >= p.num_rows) return;
  const Candidates& c = p.drawn[p.from[row]];
  p.token_ids[row] = c.count > 0 ? c.tokens[0] : 0;
}

}  // namespace

Status take_tokens_sm90(const TakeTokensParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return {};
  take_tokens_kernel<<<static_cast<unsigned>((p.num_rows + kThreads - 1) / kThreads), kThreads, 0, stream>>>(p);
  return launch_status("take_tokens");
}

Status load_take_tokens_sm90() { return load_kernels("take_tokens", take_tokens_kernel); }

}  // namespace otr
