// What a draw has beside its logits, on every CPU path.
#pragma once

#include "kernels/sample/sample.h"

namespace otr {

// One thread's part of SampleParams::scaled and ::order.
struct SampleWorkspace {
  float* scaled;   // [vocab_size]
  float* maxima;   // [blocks of kSampleMaxBlock]
  float* scratch;  // [blocks of kSampleMaxBlock]
  int32_t* order;  // [vocab_size]
  int32_t* ids;    // [sample_row_stride(vocab_size)]
};

OTR_INLINE SampleWorkspace sample_workspace(float* scaled, int32_t* order, int32_t vocab_size, int thread) {
  const int64_t half = sample_row_stride(vocab_size), offset = thread * sample_workspace_stride(vocab_size);
  scaled += offset;
  order += offset;
  return {scaled, scaled + half, scaled + half + (vocab_size + kSampleMaxBlock - 1) / kSampleMaxBlock, order, order + half};
}

}  // namespace otr
