#include "kernels/base/thread_pool.h"
#include "kernels/linear/linear.h"

namespace otr {

void linear_pack(const Element* w, int32_t out_features, int32_t in_features, Element* packed, ThreadPool& pool) {
  const int64_t padded_k = linear_padded(in_features);
  const int blocks = static_cast<int>(linear_padded(out_features) / kLinearBlockN);
  pool.parallel_for(blocks, [&](int block, int) {
    Element* dst = packed + int64_t{block} * kLinearBlockN * padded_k;
    for (int64_t step = 0; step < padded_k / kLinearStepK; ++step) {
      for (int tile = 0; tile < 2; ++tile) {
        for (int pair = 0; pair < 16; ++pair) {
          for (int lane = 0; lane < kLinearTileN; ++lane) {
            const int64_t n = int64_t{block} * kLinearBlockN + tile * kLinearTileN + lane;
            const int64_t k = step * kLinearStepK + pair * 2;
            for (int half = 0; half < 2; ++half) {
              const bool inside = n < out_features && k + half < in_features;
              *dst++ = inside ? w[n * in_features + k + half] : Element{};
            }
          }
        }
      }
    }
  });
}

}  // namespace otr
