// Page copy and zero, sm_90a: 16 bytes a thread and step, a page's bytes dealt out to kBlocks blocks. Shapes and layouts:
// page.h.
//
// Roofline: memory; page_bytes written, and for copies read, a page. No reduction, no barrier.
#include "kernels/base/launch_status.h"
#include "kernels/page/page_sm90.h"

namespace otr {
namespace {

constexpr int kThreads = 256, kBlocks = 16;  // of a page: 3.7 MB at Qwen2.5-7B's shape

// from: null to write zeros. A page is a multiple of 256 bytes (64 tokens of an even head_dim).
__global__ void __launch_bounds__(kThreads)
    move_kernel(uint4* pages, int64_t page_vectors, const PageId* from, const PageId* to) {
  uint4* target = pages + to[blockIdx.y] * page_vectors;
  const uint4* source = from != nullptr ? pages + from[blockIdx.y] * page_vectors : nullptr;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < page_vectors; i += kBlocks * kThreads) {
    target[i] = source != nullptr ? source[i] : make_uint4(0, 0, 0, 0);
  }
}

Status move(const char* op, Element* pages, const KvLayout& layout, const PageId* from, const PageId* to, int32_t count,
            cudaStream_t stream) {
  constexpr int32_t kMaxPages = 65535;  // of a grid
  for (int32_t first = 0; first < count; first += kMaxPages) {
    const unsigned n = static_cast<unsigned>(count - first < kMaxPages ? count - first : kMaxPages);
    move_kernel<<<dim3(kBlocks, n), kThreads, 0, stream>>>(reinterpret_cast<uint4*>(pages), layout.page_bytes() / 16,
                                                           from != nullptr ? from + first : nullptr, to + first);
    OTR_RETURN_IF_ERROR(launch_status(op));
  }
  return {};
}

}  // namespace

Status page_copy_sm90(const PageCopyParams& p, cudaStream_t stream) {
  return move("page_copy", p.pages, p.layout, p.from, p.to, p.num_copies, stream);
}

Status page_zero_sm90(const PageZeroParams& p, cudaStream_t stream) {
  return move("page_zero", p.pages, p.layout, nullptr, p.ids, p.num_ids, stream);
}

}  // namespace otr
