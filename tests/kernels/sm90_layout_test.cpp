// The layouts of sm_90a against a model written from the hardware's definitions (sm90_model.h).
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <utility>

#include "kernels/layouts/slot_ring.h"
#include "kernels/layouts/split_schedule.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/sm90_model.h"

namespace otr::sm90_layout_test {
namespace {

using namespace testing_util;

static_assert(swizzle128(0) == 0 && swizzle128(128) == 128 + 16 && swizzle128(1023) == 1023 - 112);
static_assert(operand_descriptor(0x400) == 0x4000004000010040u);

TEST(Sm90Layout, ASwizzledTileIsWhatTheCopyEngineLaysDown) {
  const int rows = 40, k = 200, stride = 208;
  const std::vector<Element> w = random_elements(rows * stride, 1.0f, 1);
  const TensorBox box = matrix_box(rows, k, stride, 16);
  ASSERT_EQ(tensor_box_error(box, 0), nullptr);
  std::vector<uint8_t> shared(4096);
  for (const auto& [row0, k0] : {std::pair(0, 0), std::pair(16, 64), std::pair(32, 192)}) {  // the last hangs over both edges
    const int64_t at[] = {k0, row0};
    EXPECT_EQ(model_tma(w.data(), box, at, &shared, 1024), box.bytes());
    for (int r = 0; r < 16; ++r) {
      for (int i = 0; i < kOperandK; ++i) {
        Element e;
        std::memcpy(&e, shared.data() + 1024 + operand_offset(static_cast<uint32_t>(r), static_cast<uint32_t>(i)), 2);
        const bool inside = row0 + r < rows && k0 + i < k;
        ASSERT_EQ(e.bits, inside ? w[static_cast<size_t>((row0 + r) * stride + k0 + i)].bits : 0) << r << " " << i;
      }
    }
  }
}

TEST(Sm90Layout, DescriptorsReadWhatTheCopyEngineWrote) {
  const int rows = 64;
  const std::vector<Element> w = random_elements(rows * kOperandK, 1.0f, 2);
  std::vector<uint8_t> shared(65536);
  const int64_t at[] = {0, 0};
  for (const uint32_t offset : {0u, 1024u, 9u * 1024, 40u * 1024}) {
    model_tma(w.data(), matrix_box(rows, kOperandK, kOperandK, rows), at, &shared, offset);
    for (int step = 0; step < kOperandK / kWgmmaK; ++step) {
      for (int r = 0; r < rows; ++r) {
        for (int k = 0; k < kWgmmaK; ++k) {
          ASSERT_EQ(model_operand(shared.data(), descriptor_at_step(operand_descriptor(offset), step), r, k),
                    to_float(w[static_cast<size_t>(r * kOperandK + step * kWgmmaK + k)]));
        }
      }
    }
  }
}

TEST(Sm90Layout, TheModelSeesAWrongSwizzleStrideOrStep) {
  const std::vector<Element> w = random_elements(64 * kOperandK, 1.0f, 2);
  std::vector<uint8_t> shared(65536);
  const int64_t at[] = {0, 0};
  model_tma(w.data(), matrix_box(64, kOperandK, kOperandK, 64), at, &shared, 0);
  const uint64_t right = operand_descriptor(0);
  for (const uint64_t wrong : {right + 1, right + 8, right ^ uint64_t{32} << 32, descriptor_at_step(right, 1)}) {
    bool same = true;
    for (int r = 0; r < 64; ++r)
      same = same && model_operand(shared.data(), wrong, r, 3) == to_float(w[static_cast<size_t>(r * kOperandK + 3)]);
    EXPECT_FALSE(same);
  }
}

TEST(Sm90Layout, APairedBoxAlternatesEightRowsOfBothHalves) {
  const int half = 48, k = 72;
  const std::vector<Element> w = random_elements(2 * half * k, 1.0f, 3);
  const TensorBox box = paired_box(half, k, k);
  ASSERT_EQ(tensor_box_error(box, 0), nullptr);
  std::vector<uint8_t> shared(8192);
  for (int tile = 0; tile < 2; ++tile) {
    for (int part = 0; part < 4; ++part) {
      const int64_t at[] = {64, 0, tile * 4 + part, 0};
      ASSERT_EQ(model_tma(w.data(), box, at, &shared, static_cast<uint32_t>(part) * 2048), 2048u);
    }
    for (int r = 0; r < 64; ++r) {
      const int j = tile * 32 + r / 16 * 8 + r % 8, row = j + (r % 16 >= 8 ? half : 0);
      for (int i = 0; i < kOperandK; ++i) {
        Element e;
        std::memcpy(&e, shared.data() + operand_offset(static_cast<uint32_t>(r), static_cast<uint32_t>(i)), 2);
        ASSERT_EQ(e.bits, j < half && 64 + i < k ? w[static_cast<size_t>(row * k + 64 + i)].bits : 0) << r << " " << i;
      }
    }
  }
}

// Rows beyond one of them are zeros, not the next one's.
TEST(Sm90Layout, ABoxOfStackedTensorsIsOfOneOfThem) {
  const int half = 16, k = 72, count = 3, stride = 3 * half * k;
  const std::vector<Element> w = random_elements(count * stride, 1.0f, 4);
  const TensorBox paired = stacked(paired_box(half, k, k), count, stride),
                  rows = stacked(matrix_box(2 * half, k, k, 64), count, stride);
  ASSERT_EQ(tensor_box_error(paired, 0), nullptr);
  ASSERT_EQ(tensor_box_error(rows, 0), nullptr);
  std::vector<uint8_t> shared(8192);
  for (int which = 0; which < count; ++which) {
    const auto expect = [&](int row, int weight_row, bool inside) {
      for (int i = 0; i < kOperandK; ++i) {
        Element e;
        std::memcpy(&e, shared.data() + operand_offset(static_cast<uint32_t>(row), static_cast<uint32_t>(i)), 2);
        ASSERT_EQ(e.bits, inside ? w[static_cast<size_t>(which * stride + weight_row * k + i)].bits : 0) << row << " " << i;
      }
    };
    const int64_t at_rows[] = {0, 0, which};
    ASSERT_EQ(model_tma(w.data(), rows, at_rows, &shared, 0), 8192u);
    for (int row = 0; row < 64; ++row) expect(row, row, row < 2 * half);
    const int64_t at_pair[] = {0, 0, 1, 0, which};
    ASSERT_EQ(model_tma(w.data(), paired, at_pair, &shared, 0), 2048u);
    for (int row = 0; row < 16; ++row) expect(row, 8 + row % 8 + (row < 8 ? 0 : half), true);
  }
}

TEST(Sm90Layout, BoxesThatTheHardwareRefusesAreNamed) {
  EXPECT_EQ(tensor_box_error(matrix_box(10, 10, 16, 64), 64), nullptr);
  EXPECT_NE(tensor_box_error(matrix_box(10, 10, 16, 64), 8), nullptr);   // base
  EXPECT_NE(tensor_box_error(matrix_box(10, 10, 10, 64), 0), nullptr);   // stride of 20 bytes
  EXPECT_NE(tensor_box_error(matrix_box(10, 10, 16, 257), 0), nullptr);  // side
  EXPECT_NE(tensor_box_error(matrix_box(0, 10, 16, 64), 0), nullptr);    // empty
  EXPECT_NE(tensor_box_error(matrix_box(10, 10, int64_t{1} << 39, 64), 0), nullptr);
  EXPECT_NE(tensor_box_error(matrix_box(10, 24, 16, 64), 0), nullptr);  // rows that overlap
  TensorBox halves_first = paired_box(48, 64, 64);
  std::swap(halves_first.dims[2], halves_first.dims[3]), std::swap(halves_first.strides[2], halves_first.strides[3]);
  EXPECT_NE(tensor_box_error(halves_first, 0), nullptr);
  EXPECT_NE(tensor_box_error(stacked(matrix_box(10, 16, 16, 64), 3, 168), 0), nullptr);  // no multiple of a row
  EXPECT_NE(tensor_box_error(stacked(matrix_box(10, 16, 16, 64), 3, 144), 0), nullptr);  // overlapping
  TensorBox wide = matrix_box(10, 10, 16, 64);
  wide.box[0] = 32;
  EXPECT_NE(tensor_box_error(wide, 0), nullptr);
}

// The fragment of m64nN: row groups of 8 and pairs of columns, as the instruction set defines it, written out from the other
// side: who holds element (m, n), and in which register.
TEST(Sm90Layout, EveryAccumulatorElementHasOneThreadAndRegister) {
  for (const int columns : {8, 16, 32, 64, 128, 192, 256}) {
    std::vector<int> seen(static_cast<size_t>(64 * columns), 0);
    for (int thread = 0; thread < 128; ++thread) {
      for (int i = 0; i < columns / 2; ++i) {
        const int m = accumulator_row(thread, i), n = accumulator_column(thread, i);
        ASSERT_TRUE(m >= 0 && m < 64 && n >= 0 && n < columns);
        ++seen[static_cast<size_t>(m * columns + n)];
        EXPECT_EQ(thread, m / 16 * 32 + m % 8 * 4 + n % 8 / 2);
        EXPECT_EQ(i, n / 8 * 4 + m % 16 / 8 * 2 + n % 2);
      }
    }
    for (const int count : seen) ASSERT_EQ(count, 1);
  }
}

TEST(SplitSchedule, SplitsCoverTheBlocksInOrder) {
  for (const int blocks : {8, 14, 16, 56, 76, 297, 464}) {
    for (const int splits : {1, 2, 4, 8}) {
      EXPECT_EQ(split_begin(0, splits, blocks), 0);
      EXPECT_EQ(split_begin(splits, splits, blocks), blocks);
      for (int s = 0; s < splits; ++s) {
        const int size = split_begin(s + 1, splits, blocks) - split_begin(s, splits, blocks);
        EXPECT_TRUE(size >= blocks / splits && size <= blocks / splits + 1) << blocks << " " << splits;
      }
    }
  }
}

TEST(SplitSchedule, TheWeightsShapeDecides) {
  // Qwen2.5-7B, Qwen2.5-32B, Qwen3-8B and Qwen2.5-0.5B: qkv, o, gate_up, down, lm_head.
  constexpr int kShapes[][3] = {{4608, 3584, 2}, {3584, 3584, 2},  {37888, 3584, 1}, {3584, 18944, 2}, {152064, 3584, 1},
                                {7168, 5120, 1}, {5120, 5120, 2},  {55296, 5120, 1}, {5120, 27648, 2}, {6144, 4096, 1},
                                {4096, 4096, 2}, {24576, 4096, 1}, {4096, 12288, 2}, {1152, 896, 1},   {896, 4864, 8},
                                {9728, 896, 1},  {151936, 896, 1}, {64, 64, 1},      {1, 100000, 8}};
  for (const auto& [n, k, splits] : kShapes) EXPECT_EQ(weight_splits(n, k), splits) << n << " x " << k;
  for (int n = 1; n < 20000; n += 61) {
    for (int k = 1; k < 30000; k += 997) {
      const int s = weight_splits(n, k);
      EXPECT_TRUE(s == 1 || num_k_blocks(k) / s >= 8);
    }
  }
}

TEST(SplitSchedule, EveryPieceOfTheExchangeHasItsPlace) {
  for (const int splits : {2, 4, 8}) {
    for (const int groups : {1, 2, 4, 8, 16}) {
      for (int owner = 0; owner < splits; ++owner) {
        std::set<int> places;
        int received = 0;
        for (int source = 0; source < splits; ++source) {
          for (int group = 0; group < groups; ++group) {
            if (source == owner || group_owner(group, splits) != owner) continue;
            for (const int thread : {0, 77, 255})
              places.insert(exchange_piece(source, group, thread, splits, groups, 256)), ++received;
          }
        }
        EXPECT_EQ(received, 3 * (splits - 1) * owned_groups(owner, splits, groups));
        EXPECT_EQ(static_cast<int>(places.size()), received);
        if (!places.empty()) {
          EXPECT_GE(*places.begin(), 0);
          EXPECT_LT(*places.rbegin() * 16, exchange_bytes(splits, groups, 256));
        }
      }
    }
  }
}

// An mbarrier: a phase ends when all arrivals and all announced bytes have come.
struct ModelBarrier {
  int count, pending, bytes = 0;
  uint32_t phase = 0;
  explicit ModelBarrier(int arrivals) : count(arrivals), pending(arrivals) {}
  void settle() {
    if (pending == 0 && bytes == 0) pending = count, phase ^= 1;
  }
  void arrive(int announced) { --pending, bytes += announced, settle(); }
  void complete(int n) { bytes -= n, settle(); }
  bool passed(uint32_t parity) const { return phase != parity; }  // the phase of `parity` is not the current one: it has ended
};

// One loader, a copy engine that finishes whenever it likes, two consumers; random interleavings. A slot must hold the item
// that a consumer expects, and must not be filled while somebody reads it.
TEST(RingTurn, NobodyReadsOrFillsASlotOutOfTurn) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const uint32_t slots = static_cast<uint32_t>(1 + random() % 5);
    const int items = 40, consumers = 2;
    std::vector<ModelBarrier> full(slots, ModelBarrier(1)), empty(slots, ModelBarrier(consumers));
    std::vector<int> content(slots, -1), in_flight(slots, -1), readers(slots, 0);
    struct Walker {
      RingTurn turn;
      int item = 0;
      bool reading = false;
    };
    Walker loader;
    std::array<Walker, 2> readers_of;
    int idle = 0;
    while (readers_of[0].item < items || readers_of[1].item < items) {
      ASSERT_LT(++idle, 100000) << "stuck, seed " << seed;
      const uint32_t who = static_cast<uint32_t>(random() % 4);
      if (who == 0 && loader.item < items && empty[loader.turn.slot].passed(loader.turn.phase ^ 1)) {
        const uint32_t slot = loader.turn.slot;
        ASSERT_EQ(readers[slot], 0);
        ASSERT_EQ(in_flight[slot], -1);
        full[slot].arrive(1);
        in_flight[slot] = loader.item++;
        content[slot] = -1;
        loader.turn.advance(slots);
      } else if (who == 1) {
        const uint32_t slot = static_cast<uint32_t>(random() % slots);
        if (in_flight[slot] < 0) continue;
        content[slot] = in_flight[slot];
        in_flight[slot] = -1;
        full[slot].complete(1);
      } else if (who >= 2) {
        Walker& w = readers_of[who - 2];
        const uint32_t slot = w.turn.slot;
        if (w.item >= items || !full[slot].passed(w.turn.phase)) continue;
        ASSERT_EQ(content[slot], w.item);
        if (!w.reading) {
          w.reading = true, ++readers[slot];
        } else {
          w.reading = false, --readers[slot];
          empty[slot].arrive(0);
          ++w.item;
          w.turn.advance(slots);
        }
      }
    }
  }
}

}  // namespace
}  // namespace otr::sm90_layout_test
