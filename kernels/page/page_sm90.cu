// Page moves, sm_90a. Shapes and layouts: page.h, page_transfer.h.
//
// Copy and zero: 16 bytes a thread and step, a page's bytes dealt out to kBlocks blocks. Gather and scatter: a block for a
// layer's head; K as it is, V transposed through shared memory, rows of which lie an odd number of words apart, so that a
// column meets all banks.
//
// Roofline: memory; page_bytes written, and but for zero read, a page. No reduction; one barrier, between the halves of a
// transpose.
#include "kernels/base/launch_status.h"
#include "kernels/page/page_sm90.h"

namespace otr {
namespace {

constexpr int kThreads = 256, kBlocks = 16;  // of a page: 3.7 MB at Qwen2.5-7B's shape
constexpr int32_t kMaxPages = 65535;         // of a grid

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
  for (int32_t first = 0; first < count; first += kMaxPages) {
    const unsigned n = static_cast<unsigned>(count - first < kMaxPages ? count - first : kMaxPages);
    move_kernel<<<dim3(kBlocks, n), kThreads, 0, stream>>>(reinterpret_cast<uint4*>(pages), layout.page_bytes() / 16,
                                                           from != nullptr ? from + first : nullptr, to + first);
    OTR_RETURN_IF_ERROR(launch_status(op));
  }
  return {};
}

// V is [rows][columns] in `from`. Both sides multiples of 8.
__global__ void __launch_bounds__(kThreads)
    transfer_kernel(const Element* from, Element* to, const PageId* from_ids, const PageId* to_ids, int64_t page_elements,
                    int rows, int columns) {
  extern __shared__ __align__(16) uint8_t raw[];
  auto* tile = reinterpret_cast<uint32_t*>(raw);  // pairs of a row's elements
  const int thread = static_cast<int>(threadIdx.x), half = rows * columns, pitch = columns / 2 + 1;
  const int64_t head = int64_t{blockIdx.x} * 2 * half, page = blockIdx.y;
  from += (from_ids != nullptr ? from_ids[page] : page) * page_elements + head;
  to += (to_ids != nullptr ? to_ids[page] : page) * page_elements + head;
  for (int i = thread * 8; i < half; i += kThreads * 8) {
    *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
    const uint4 v = *reinterpret_cast<const uint4*>(from + half + i);
    uint32_t* at = tile + i / columns * pitch + i % columns / 2;
    at[0] = v.x, at[1] = v.y, at[2] = v.z, at[3] = v.w;
  }
  __syncthreads();
  for (int i = thread * 8; i < half; i += kThreads * 8) {  // 8 rows of a column
    const uint32_t* at = tile + i % rows * pitch + i / rows / 2;
    const int shift = i / rows % 2 * 16;
    uint32_t pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      pairs[j] = (at[2 * j * pitch] >> shift & 0xffffu) | (at[(2 * j + 1) * pitch] >> shift & 0xffffu) << 16;
    *reinterpret_cast<uint4*>(to + half + i) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

Status transfer(const char* op, const KvLayout& layout, const Element* from, Element* to, const PageId* from_ids,
                const PageId* to_ids, int32_t count, cudaStream_t stream) {
  const int rows = from_ids != nullptr ? layout.head_dim : kPageTokens,
            columns = from_ids != nullptr ? kPageTokens : layout.head_dim;
  const size_t bytes = static_cast<size_t>(rows) * static_cast<size_t>(columns / 2 + 1) * 4;  // at most 33 KB
  for (int32_t first = 0; first < count; first += kMaxPages) {
    const dim3 grid(static_cast<unsigned>(layout.num_layers * layout.num_kv_heads),
                    static_cast<unsigned>(count - first < kMaxPages ? count - first : kMaxPages));
    const int64_t skip = first * layout.page_elements();
    transfer_kernel<<<grid, kThreads, bytes, stream>>>(
        from_ids != nullptr ? from : from + skip, to_ids != nullptr ? to : to + skip,
        from_ids != nullptr ? from_ids + first : nullptr, to_ids != nullptr ? to_ids + first : nullptr, layout.page_elements(),
        rows, columns);
    OTR_RETURN_IF_ERROR(launch_status(op));
  }
  return {};
}

}  // namespace

Status page_gather_sm90(const PageGatherParams& p, cudaStream_t stream) {
  return transfer("page_gather", p.layout, p.pages, p.transfer, p.ids, nullptr, p.num_ids, stream);
}

Status page_scatter_sm90(const PageScatterParams& p, cudaStream_t stream) {
  return transfer("page_scatter", p.layout, p.transfer, p.pages, nullptr, p.ids, p.num_ids, stream);
}

Status page_copy_sm90(const PageCopyParams& p, cudaStream_t stream) {
  return move("page_copy", p.pages, p.layout, p.from, p.to, p.num_copies, stream);
}

Status page_zero_sm90(const PageZeroParams& p, cudaStream_t stream) {
  return move("page_zero", p.pages, p.layout, nullptr, p.ids, p.num_ids, stream);
}

Status load_page_sm90() { return load_kernels("pages", move_kernel, transfer_kernel); }

}  // namespace otr
