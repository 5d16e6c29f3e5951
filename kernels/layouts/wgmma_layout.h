// How wgmma reads its operands from shared memory and where it leaves its results. Constant expressions of host and device.
//
// An operand tile is [rows][64 elements of bf16], its contraction index contiguous: rows of 128 bytes in groups of 8 (1,024
// bytes, at addresses that are multiples of 1,024), each group swizzled: the 16-byte piece c of row r lies in place c ^ (r %
// 8). So a column of 8 pieces, which the tensor cores read at a time, covers all banks. The copy engine writes tiles in this
// form (tensor_box.h).
#pragma once

#include <cstdint>

#include "kernels/base/macros.h"

namespace otr {

inline constexpr int kOperandK = 64;  // elements of a tile row: one swizzle span of 128 bytes
inline constexpr int kOperandRowBytes = 128;
inline constexpr int kSwizzleGroupBytes = 1024;  // 8 rows
inline constexpr int kWgmmaM = 64;
inline constexpr int kWgmmaK = 16;

// The place of a byte in a swizzled tile: an involution on the offsets of a 1,024-byte group.
OTR_HOST_DEVICE constexpr uint32_t swizzle128(uint32_t offset) { return offset ^ (offset >> 3 & 0x70u); }

OTR_HOST_DEVICE constexpr uint32_t operand_offset(uint32_t row, uint32_t k) {
  return swizzle128(row * kOperandRowBytes + k * 2);
}

// The 64-bit descriptor of a tile at shared address `address`, or of its step of 16 elements at address + 32 * step. Fields:
//   bits  0–13  address / 16
//   bits 16–29  leading byte offset / 16: not used by a swizzled tile with contiguous k, 1
//   bits 32–45  stride byte offset / 16: from a group of 8 rows to the next
//   bits 49–51  base offset: 0, as groups lie at multiples of 1,024
//   bits 62–63  1: swizzle of 128 bytes
OTR_HOST_DEVICE constexpr uint64_t operand_descriptor(uint32_t address) {
  return (uint64_t{address & 0x3ffffu} >> 4) | (uint64_t{1} << 16) | (uint64_t{kSwizzleGroupBytes >> 4} << 32) |
         (uint64_t{1} << 62);
}

// The descriptor `step` steps of 16 elements further along k: 32 bytes, in units of 16. Inside a span of 128 bytes this never
// carries.
OTR_HOST_DEVICE constexpr uint64_t descriptor_at_step(uint64_t descriptor, int step) {
  return descriptor + static_cast<uint64_t>(step * (kWgmmaK * 2 >> 4));
}

// Register i of thread t (0 … 127) of the warpgroup holds D[accumulator_row(t, i)][accumulator_column(t, i)].
OTR_HOST_DEVICE constexpr int accumulator_row(int thread, int i) { return thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8; }
OTR_HOST_DEVICE constexpr int accumulator_column(int thread, int i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

// A left operand in registers, [64][16]: the lower (half 0) and upper half of register r of thread t hold
// A[operand_a_row][operand_a_k]. They are the places of accumulator registers 2 r and 2 r + 1 of 16 columns, so that a
// product's result becomes the next one's operand.
OTR_HOST_DEVICE constexpr int operand_a_row(int thread, int r) { return thread / 32 * 16 + thread % 32 / 4 + r % 2 * 8; }
OTR_HOST_DEVICE constexpr int operand_a_k(int thread, int r, int half) { return r / 2 * 8 + thread % 4 * 2 + half; }

}  // namespace otr
