// A tensor in global memory as the copy engine sees it, and the box that one instruction moves: what a CUtensorMap is made from
// (kernels/ptx/tensor_map.h), here without CUDA so that it can be checked and modelled anywhere. Elements are bf16; the swizzle
// is that of wgmma_layout.h, or none.
//
// A box lands in shared memory as rows of box[0] elements, one after another in the order of dimensions 1, 2, …; elements
// outside the tensor are zeros and count as bytes moved.
#pragma once

#include <cstdint>

#include "kernels/base/macros.h"
#include "kernels/layouts/wgmma_layout.h"

namespace otr {

inline constexpr int kMaxBoxRank = 5;

struct TensorBox {
  int rank = 0;
  uint64_t dims[kMaxBoxRank] = {};     // elements, fastest first
  uint64_t strides[kMaxBoxRank] = {};  // bytes; strides[0] = 2
  uint32_t box[kMaxBoxRank] = {};      // elements
  bool swizzled = true;

  OTR_HOST_DEVICE constexpr uint32_t bytes() const {
    uint32_t n = 2;
    for (int i = 0; i < rank; ++i) n *= box[i];
    return n;
  }
};

// Why the hardware would refuse it, or by its documentation may, or null.
constexpr const char* tensor_box_error(const TensorBox& t, uint64_t base) {
  if (base % 16 != 0) return "the tensor is not aligned to 16 bytes";
  if (t.rank < 2 || t.rank > kMaxBoxRank) return "rank";
  if (t.strides[0] != 2) return "the fastest dimension is not contiguous";
  if (t.swizzled && t.box[0] * 2 != kOperandRowBytes) return "a row of the box is not the swizzle's span";
  if (t.box[0] * 2 % 16 != 0) return "a row of the box is not a multiple of 16 bytes";
  for (int i = 0; i < t.rank; ++i) {
    if (t.dims[i] == 0 || t.dims[i] > uint64_t{1} << 32) return "a dimension is 0 or above 2^32";
    if (t.box[i] == 0 || t.box[i] > 256) return "a side of the box is not 1 to 256";
    if (i > 0 && (t.strides[i] % 16 != 0 || t.strides[i] >= uint64_t{1} << 40))
      return "a stride is not a multiple of 16 bytes below 2^40";
    if (i > 0 && t.strides[i] < t.strides[i - 1] * t.dims[i - 1])
      return "a dimension's stride does not cover the dimension before it";
    if (i > 0 && t.strides[i] % t.strides[i - 1] != 0) return "a stride is no multiple of the one before it";
  }
  return nullptr;
}

// Rows of a matrix [num_rows][num_k], row_stride elements apart; a box is box_rows rows of 64 elements.
constexpr TensorBox matrix_box(int64_t num_rows, int64_t num_k, int64_t row_stride, int box_rows) {
  TensorBox t;
  t.rank = 2;
  t.dims[0] = static_cast<uint64_t>(num_k), t.dims[1] = static_cast<uint64_t>(num_rows);
  t.strides[0] = 2, t.strides[1] = static_cast<uint64_t>(row_stride) * 2;
  t.box[0] = kOperandK, t.box[1] = static_cast<uint32_t>(box_rows);
  return t;
}

// The same in boxes of box_rows rows of box_k elements that lie in shared memory as they are.
constexpr TensorBox plain_box(int64_t num_rows, int64_t num_k, int64_t row_stride, int box_rows, int box_k) {
  TensorBox t = matrix_box(num_rows, num_k, row_stride, box_rows);
  t.box[0] = static_cast<uint32_t>(box_k);
  t.swizzled = false;
  return t;
}

// Two matrices of half_rows rows each, one below the other (gate and up): a box is 8 rows of the first, then the same 8 rows of
// the second, so that accumulator registers i and i + 2 of a thread hold row j of both. A tile is several boxes: one box of all
// its rows would have to count the halves before the rows / 8, and strides that do not ascend are none that CUDA documents.
// REQUIRES: half_rows % 8 == 0. Coordinates: (k, 0, row / 8, 0).
inline constexpr int kPairedBoxRows = 16;
constexpr TensorBox paired_box(int64_t half_rows, int64_t num_k, int64_t row_stride) {
  TensorBox t;
  t.rank = 4;
  const uint64_t row_bytes = static_cast<uint64_t>(row_stride) * 2, half = static_cast<uint64_t>(half_rows);
  t.dims[0] = static_cast<uint64_t>(num_k), t.dims[1] = 8, t.dims[2] = half / 8, t.dims[3] = 2;
  t.strides[0] = 2, t.strides[1] = row_bytes, t.strides[2] = 8 * row_bytes, t.strides[3] = half * row_bytes;
  t.box[0] = kOperandK, t.box[1] = 8, t.box[2] = 1, t.box[3] = 2;
  return t;
}

// `count` tensors like t, `stride` elements from one to the next, of which a box takes a piece of one: the last coordinate says
// of which.
constexpr TensorBox stacked(TensorBox t, int64_t count, int64_t stride) {
  t.dims[t.rank] = static_cast<uint64_t>(count);
  t.strides[t.rank] = static_cast<uint64_t>(stride) * 2;
  t.box[t.rank] = 1;
  ++t.rank;
  return t;
}

}  // namespace otr
