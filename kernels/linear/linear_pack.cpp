#include <emmintrin.h>

#include <algorithm>

#include "kernels/linear/linear.h"

namespace otr {
namespace {

// One tile [16 pairs][16 lanes][2], element by element: for edges, and for float32.
void pack_tile_edge(const Element* rows, int num_rows, int num_k, int64_t stride, Element* dst) {
  for (int k = 0; k < kLinearStepK; k += 2) {
    for (int lane = 0; lane < kLinearTileN; ++lane) {
      for (int half = 0; half < 2; ++half)
        *dst++ = lane < num_rows && k + half < num_k ? rows[lane * stride + k + half] : Element{};
    }
  }
}

// A transpose of 16 x 16 words (pairs of bf16), rows of the source `from` and of the result `to` elements apart, in squares of
// 4 x 4. SSE2, which every x86-64 has.
void transpose_words(const Element* src, int64_t from, Element* dst, int64_t to) {
  const auto load = [](const Element* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
  for (int column = 0; column < 16; column += 4) {
    for (int row = 0; row < 16; row += 4) {
      const Element* p = src + row * from + 2 * column;
      const __m128i a = load(p), b = load(p + from), c = load(p + 2 * from), d = load(p + 3 * from);
      const __m128i ab01 = _mm_unpacklo_epi32(a, b), cd01 = _mm_unpacklo_epi32(c, d);
      const __m128i ab23 = _mm_unpackhi_epi32(a, b), cd23 = _mm_unpackhi_epi32(c, d);
      const __m128i out[4] = {_mm_unpacklo_epi64(ab01, cd01), _mm_unpackhi_epi64(ab01, cd01), _mm_unpacklo_epi64(ab23, cd23),
                              _mm_unpackhi_epi64(ab23, cd23)};
      for (int i = 0; i < 4; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + (column + i) * to + 2 * row), out[i]);
    }
  }
}

// Inputs k … k + 31 of a tile: of `num_rows` rows, those beyond 16 left out.
void pack_tile(const Element* rows, int32_t num_rows, int32_t k, int32_t in_features, Element* dst) {
  const bool whole = num_rows >= kLinearTileN && in_features - k >= kLinearStepK;
  if (sizeof(Element) == 2 && whole) transpose_words(rows + k, in_features, dst, 2 * kLinearTileN);
  else pack_tile_edge(rows + k, num_rows, in_features - k, in_features, dst);
}

void pack_tiles(const Element* first, int32_t num_first, const Element* last, int32_t num_last, int32_t in_features,
                Element* block) {
  for (int32_t k = 0; k < in_features; k += kLinearStepK, block += kLinearBlockN * kLinearStepK) {
    pack_tile(first, num_first, k, in_features, block);
    pack_tile(last, num_last, k, in_features, block + kLinearTileN * kLinearStepK);
  }
}

}  // namespace

void linear_pack_block(const Element* rows, int32_t num_rows, int32_t in_features, Element* block) {
  pack_tiles(rows, num_rows, rows + int64_t{kLinearTileN} * in_features, num_rows - kLinearTileN, in_features, block);
}

void linear_pack_halves(const Element* first, const Element* last, int32_t num_rows, int32_t in_features, Element* block) {
  pack_tiles(first, num_rows, last, num_rows, in_features, block);
}

void linear_unpack_rows(const Element* packed, int64_t first_row, int32_t num_rows, int32_t in_features, Element* rows) {
  for (int32_t k = 0; k < in_features; k += kLinearStepK) {
    const Element* const tile = packed + linear_packed_index(first_row, k, in_features);
    if (sizeof(Element) == 2 && num_rows == kLinearTileN && in_features - k >= kLinearStepK) {
      transpose_words(tile, 2 * kLinearTileN, rows + k, in_features);
      continue;
    }
    for (int32_t row = 0; row < num_rows; ++row) {
      for (int32_t i = k; i < in_features && i < k + kLinearStepK; ++i)
        rows[int64_t{row} * in_features + i] = packed[linear_packed_index(first_row + row, i, in_features)];
    }
  }
}

void linear_pack_rows(const Element* rows, int32_t first_row, int32_t num_rows, int32_t out_features, int32_t in_features,
                      Element* packed) {
  for (int32_t count; num_rows > 0; rows += int64_t{count} * in_features, first_row += count, num_rows -= count) {
    count = std::min(kLinearBlockN - first_row % kLinearBlockN, num_rows);
    const bool whole = count == kLinearBlockN || (first_row % kLinearBlockN == 0 && first_row + count == out_features);
    if (whole) {
      linear_pack_block(rows, count, in_features, packed + linear_packed_index(first_row, 0, in_features));
      continue;
    }
    if (first_row % kLinearTileN == 0 && count == kLinearTileN) {
      Element* dst = packed + linear_packed_index(first_row, 0, in_features);
      for (int32_t k = 0; k < in_features; k += kLinearStepK, dst += kLinearBlockN * kLinearStepK) {
        pack_tile(rows, count, k, in_features, dst);
      }
      continue;
    }
    for (int32_t row = 0; row < count; ++row) {
      for (int32_t k = 0; k < in_features; ++k) {
        packed[linear_packed_index(first_row + row, k, in_features)] = rows[int64_t{row} * in_features + k];
      }
    }
  }
}

}  // namespace otr
