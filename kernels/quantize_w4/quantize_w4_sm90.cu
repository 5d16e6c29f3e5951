// quantize_w4, sm_90a: scale and zero of every group of 128 inputs of an output, and its codes of 4 bits.
//
// Shapes, layouts, bits: quantize_w4_sm90.h. A warp takes a group of a fragment of 16 outputs, and a lane of it what it will
// multiply by: outputs g and g + 8 at inputs 8 q … 8 q + 7 of each of four steps of 32 (g = lane / 4, q = lane % 4). So the
// weights are read once, 16 bytes a lane and 64 side by side, stay in registers between the extremes and the codes, and the
// codes leave as 16 bytes a lane, 512 side by side. A block's 8 warps take neighbouring groups: 2 KB of each row.
//
// Reductions: extremes over the four lanes of an output, which have no order. No shared memory, no barrier.
//
// Roofline: memory, 2 bytes read and 17 / 32 written a weight.
#include "kernels/base/launch_status.h"
#include "kernels/layouts/w4_fragments.h"
#include "kernels/linear/linear_sm90.h"
#include "kernels/quantize_w4/quantize_w4_group.h"
#include "kernels/quantize_w4/quantize_w4_sm90.h"

namespace otr {
namespace {

constexpr int kWarps = 8, kSteps = kW4Sm90GroupK / kW4Sm90StepK;
static_assert(kW4Sm90GroupK == kW4GroupK);

struct KernelParams {
  const Element* weight;
  uint8_t* packed;
  int64_t stride;
  int32_t out_features, in_features, num_groups;
  bool paired;
};

// 8 weights from input k on; zeros outside the matrix, whose gaps are not read.
OTR_DEVICE uint4 load_weights(const KernelParams& p, int64_t output, int32_t k) {
  if (output >= p.out_features || k >= p.in_features) return make_uint4(0, 0, 0, 0);
  const Element* at = p.weight + output * p.stride + k;
  if (k + 8 <= p.in_features) return *reinterpret_cast<const uint4*>(at);
  uint32_t pairs[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < p.in_features - k) pairs[i / 2] |= static_cast<uint32_t>(at[i].bits) << (i % 2 * 16);
  }
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

OTR_DEVICE void widen(uint4 weights, float (&w)[8]) {
  const uint32_t pairs[4] = {weights.x, weights.y, weights.z, weights.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    w[2 * i] = float_from_bits(pairs[i] << 16);
    w[2 * i + 1] = float_from_bits(pairs[i] & 0xffff0000u);
  }
}

OTR_DEVICE W4Scale scale_of(const uint4 (&weights)[kSteps]) {
  float max = 0.0f, min = 0.0f;
  int finite = 1;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    float w[8];
    widen(weights[step], w);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      max = fmaxf(max, w[i]);
      min = fminf(min, w[i]);
      finite &= is_finite_bits(w[i]) ? 1 : 0;
    }
  }
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, distance));
    min = fminf(min, __shfl_xor_sync(0xffffffffu, min, distance));
    finite &= __shfl_xor_sync(0xffffffffu, finite, distance);
  }
  return w4_scale(max, min, finite != 0);
}

// 8 codes in the order of w4_fragments.h.
OTR_DEVICE uint32_t codes_of(uint4 weights, const W4Scale& scale) {
  float w[8];
  widen(weights, w);
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) word |= w4_quantize(w[i], scale) << (i % 2 * 16 + i / 2 * 4);
  return word;
}

__global__ void __launch_bounds__(kWarps * 32) quantize_kernel(const KernelParams p) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4;
  const int32_t group = static_cast<int32_t>(blockIdx.x) * kWarps + static_cast<int32_t>(threadIdx.x) / 32;
  if (group >= p.num_groups) return;
  const int64_t fragment = blockIdx.y;
  uint4 weights[2][kSteps];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t output = w4_sm90_output(fragment * kW4Sm90FragmentM + h * 8 + g, p.out_features, p.paired);
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      weights[h][step] = load_weights(p, output, group * kW4Sm90GroupK + step * kW4Sm90StepK + lane % 4 * 8);
  }
  const W4Scale scale[2] = {scale_of(weights[0]), scale_of(weights[1])};

  constexpr int kFragments = kW4Sm90BlockM / kW4Sm90FragmentM;
  uint8_t* out = p.packed + (fragment / kFragments * p.num_groups + group) * kW4Sm90GroupBytes;
  const int inside = static_cast<int>(fragment % kFragments);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    *reinterpret_cast<uint4*>(out + inside * kW4Sm90FragmentBytes + w4_sm90_lane_offset(h, lane)) =
        make_uint4(codes_of(weights[0][2 * h], scale[0]), codes_of(weights[1][2 * h], scale[1]),
                   codes_of(weights[0][2 * h + 1], scale[0]), codes_of(weights[1][2 * h + 1], scale[1]));
    if (lane % 4 == h)
      reinterpret_cast<uint32_t*>(out + kW4Sm90WordsOffset)[inside * kW4Sm90FragmentM + h * 8 + g] = scale[h].word;
  }
}

}  // namespace

Status quantize_w4_sm90(const QuantizeW4Params& p, bool paired, cudaStream_t stream) {
  const LinearWeight& w = p.weight;
  if (paired && w.out_features % 16 != 0) return invalid_argument("quantize_w4: the intermediate size is not a multiple of 8");
  if (reinterpret_cast<uintptr_t>(w.packed) % 16 != 0 || reinterpret_cast<uintptr_t>(p.packed) % 16 != 0)
    return invalid_argument("quantize_w4: a weight is not aligned to 16 bytes");
  const int32_t num_groups = w4_sm90_groups(w.in_features);
  const dim3 grid(static_cast<unsigned>((num_groups + kWarps - 1) / kWarps),
                  static_cast<unsigned>(w4_sm90_blocks(w.out_features) * (kW4Sm90BlockM / kW4Sm90FragmentM)));
  quantize_kernel<<<grid, kWarps * 32, 0, stream>>>(
      {w.packed, p.packed, linear_sm90_stride(w.in_features), w.out_features, w.in_features, num_groups, paired});
  return launch_status("quantize_w4");
}

Status load_quantize_w4_sm90() { return load_kernels("quantize_w4", quantize_kernel); }

}  // namespace otr
