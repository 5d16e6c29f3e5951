// embed, sm_90a: out[r] = float(table[token_ids[r]]).
//
// Shapes and layouts: embed.h, with rows table_stride apart. One block a row; a thread widens 8 elements with one 16-byte load
// and two 16-byte stores when the row is aligned to that, else one element at a time. No shared memory, no barrier, no
// reduction.
// Roofline: memory; num_rows * hidden_size * 6 bytes.
#include "kernels/base/launch_status.h"
#include "kernels/embed/embed_sm90.h"
#include "kernels/linear/linear_sm90.h"

namespace otr {
namespace {

constexpr int kThreads = 128;
constexpr int kVector = 8;

__global__ void __launch_bounds__(kThreads)
    embed_kernel(int32_t hidden_size, const int32_t* OTR_RESTRICT token_ids, const Element* OTR_RESTRICT table,
                 int64_t table_stride, float* OTR_RESTRICT out) {
  const int64_t row = blockIdx.x;
  const Element* src = table + token_ids[row] * table_stride;
  float* dst = out + row * hidden_size;
  if (hidden_size % kVector == 0) {  // both bases are aligned to 256 bytes, so every row is aligned to 16
    for (int i = static_cast<int>(threadIdx.x) * kVector; i < hidden_size; i += kThreads * kVector) {
      const uint4 packed = *reinterpret_cast<const uint4*>(src + i);
      const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
      float4 lo, hi;
      lo.x = __uint_as_float(words[0] << 16), lo.y = __uint_as_float(words[0] & 0xffff0000u);
      lo.z = __uint_as_float(words[1] << 16), lo.w = __uint_as_float(words[1] & 0xffff0000u);
      hi.x = __uint_as_float(words[2] << 16), hi.y = __uint_as_float(words[2] & 0xffff0000u);
      hi.z = __uint_as_float(words[3] << 16), hi.w = __uint_as_float(words[3] & 0xffff0000u);
      *reinterpret_cast<float4*>(dst + i) = lo;
      *reinterpret_cast<float4*>(dst + i + 4) = hi;
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < hidden_size; i += kThreads) dst[i] = to_float(src[i]);
  }
}

}  // namespace

Status embed_sm90(const EmbedParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return {};
  const Element* table = p.packed != nullptr ? p.packed : p.table;
  const int64_t stride = p.packed != nullptr ? linear_sm90_stride(p.hidden_size) : p.hidden_size;
  embed_kernel<<<static_cast<unsigned>(p.num_rows), kThreads, 0, stream>>>(p.hidden_size, p.token_ids, table, stride, p.out);
  return launch_status("embed");
}

Status load_embed_sm90() { return load_kernels("embed", embed_kernel); }

}  // namespace otr
