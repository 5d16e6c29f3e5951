// A model, on the CPU, of the parts of sm_90a that the kernels' layouts talk to: boxes that the copy engine lays down in shared
// memory and operands that wgmma reads through a descriptor. Written from their definitions, element by element, without the
// layouts' own functions, so that the two can be compared.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/base/element.h"
#include "kernels/layouts/tensor_box.h"

namespace otr::testing_util {

// The copy of one box at `coordinates` to `shared` + offset, byte after byte or swizzled over 128 bytes: 16-byte piece c of the
// 128-byte row r (both counted by address) then lies in place c ^ (r % 8). Elements outside the tensor are zeros. Returns the
// bytes counted.
inline uint32_t model_tma(const Element* base, const TensorBox& t, const int64_t* coordinates, std::vector<uint8_t>* shared,
                          uint32_t offset) {
  uint32_t bytes = 0;
  std::vector<uint32_t> at(static_cast<size_t>(t.rank), 0);
  for (bool more = true; more;) {
    bool inside = true;
    int64_t source = 0;
    for (int i = 0; i < t.rank; ++i) {
      const int64_t c = coordinates[i] + at[static_cast<size_t>(i)];
      inside = inside && c >= 0 && c < static_cast<int64_t>(t.dims[i]);
      source += c * static_cast<int64_t>(t.strides[i]);
    }
    const Element value = inside ? base[source / 2] : Element{};
    const uint32_t linear = offset + bytes, row = linear / 128, piece = linear % 128 / 16;
    std::memcpy(shared->data() + row * 128 + (t.swizzled ? piece ^ (row % 8) : piece) * 16 + linear % 16, &value, 2);
    bytes += 2;
    more = false;
    for (int i = 0; i < t.rank && !more; ++i) {
      if (++at[static_cast<size_t>(i)] < t.box[i]) more = true;
      else at[static_cast<size_t>(i)] = 0;
    }
  }
  return bytes;
}

// Element (row, k) of the operand, k < 16, that a descriptor with contiguous k and 128-byte swizzle names: rows 128 bytes apart
// in groups of 8, groups one stride apart, and the address's bits 4–6 exchanged by its bits 7–9.
inline uint64_t model_operand_address(uint64_t descriptor, int row, int k) {
  const uint64_t start = (descriptor & 0x3fff) * 16, stride = (descriptor >> 32 & 0x3fff) * 16;
  const uint64_t address =
      start + static_cast<uint64_t>(row / 8) * stride + static_cast<uint64_t>(row % 8) * 128 + static_cast<uint64_t>(k) * 2;
  const uint64_t piece = (address / 16 % 8) ^ (address / 128 % 8);
  return address / 128 * 128 + piece * 16 + address % 16;
}
inline float model_operand(const uint8_t* shared, uint64_t descriptor, int row, int k) {
  Element e;
  std::memcpy(&e, shared + model_operand_address(descriptor, row, k), 2);
  return to_float(e);
}

// d[m][n] (+)= sum of 16 products, for 64 rows m and `columns` columns n.
inline void model_wgmma(const std::vector<uint8_t>& shared, uint64_t a, uint64_t b, int columns, bool accumulate,
                        std::vector<float>* d) {
  for (int m = 0; m < 64; ++m) {
    for (int n = 0; n < columns; ++n) {
      float sum = accumulate ? (*d)[static_cast<size_t>(m * columns + n)] : 0.0f;
      for (int k = 0; k < 16; ++k) sum += model_operand(shared.data(), a, m, k) * model_operand(shared.data(), b, n, k);
      (*d)[static_cast<size_t>(m * columns + n)] = sum;
    }
  }
}

}  // namespace otr::testing_util
