// attention on sm_90a: the contract of attention.h over device pointers, launched on `stream`. RowBatch itself is read on the
// host; its arrays are the device's.
//
// head_dim 32, 64 or 128; a group of at most 64 query heads; a bundle's rows x group at most 64 (attention_sm90_tile_rows).
// The splits are attention.h's. Inside one: q . k_j by wgmma over steps of 16 of head_dim, the maximum of all keys, exp32, l
// over the keys of a lane ascending (j % 8 / 2 is the lane's place among four), then lanes by halves of their distance; o by
// wgmma over steps of 16 keys. None of it depends on how many rows there are, who shares a tile, or how many blocks take the
// splits.
//
// Few tasks and long contexts: blocks take a task's splits in turn and leave (m, l, o) of each in the workspace, and a second
// kernel merges them in the same order and arithmetic. max_keys bounds every row's position + 1; a workspace of
// attention_sm90_workspace floats always suffices, with a smaller one (or none) each task stays in one block.
//
// Errors: kUnsupported for another head_dim or group; else the launch's own (kInternal with CUDA's text), or the driver's.
// Thread safety: as CUDA streams; the workspace belongs to the launch until it is done.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_sm90_config.h"
#include "kernels/base/status.h"

namespace otr {

struct AttentionWorkspace {
  float* partials = nullptr;  // [size], aligned to 16 bytes, may be null
  int64_t size = 0;           // floats
  int32_t max_keys = 0;
};

Status attention_sm90(const AttentionParams& params, const AttentionWorkspace& workspace, cudaStream_t stream);

Status load_attention_sm90();  // see load_kernels

}  // namespace otr
