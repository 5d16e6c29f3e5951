// linear_w4 on sm_90a: its weight's layout, its fragments played through mma's definition, and the choice of tiles.
#include "kernels/linear_w4/linear_w4_sm90_config.h"

#include "kernels/linear_w4/linear_w4_wide_sm90_config.h"
#include "tests/kernels/kernel_test_util.h"

namespace otr::linear_w4_sm90_config_test {
namespace {

using namespace testing_util;

static_assert(kW4Sm90GroupBytes == 4352 && kW4Sm90GroupBytes * 8.0 / (64 * 128) == 4.25);
static_assert(w4_magic_pair(0x00050000u, 0) == 0x43054300u && w4_magic_pair(0x000500a0u, 1) == 0x4300430au);
static_assert(w4_magic_zero(0x3f80000fu) == 0x430f430fu);
static_assert(w4_sm90_packed_bytes(65, 129) == 4 * 4352);

TEST(W4FragmentsLayout, CoversEveryNibbleOnce) {
  for (const auto& [n, k] : {std::pair(1, 1), {64, 128}, {65, 129}, {130, 1000}}) {
    std::vector<int> uses(static_cast<size_t>(w4_sm90_packed_bytes(n, k)) * 2);
    for (int64_t row = 0; row < w4_sm90_blocks(n) * kW4Sm90BlockM; ++row) {
      for (int64_t i = 0; i < w4_sm90_groups(k) * kW4Sm90GroupK; ++i)
        ++uses.at(static_cast<size_t>(w4_sm90_nibble_index(row, i, k)));
      for (int64_t g = 0; g < w4_sm90_groups(k); ++g) {
        for (int64_t i = 0; i < 8; ++i) ++uses.at(static_cast<size_t>(w4_sm90_word_offset(row, g, k) * 2 + i));
      }
    }
    EXPECT_EQ(uses, std::vector<int>(uses.size(), 1)) << n << " x " << k;
  }
}

TEST(W4FragmentsLayout, GatesAndUpsTakeTurns) {
  for (const int n : {16, 48, 208}) {
    for (const bool paired : {false, true}) {
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(w4_sm90_output(w4_sm90_row(i, n, paired), n, paired), i) << n;
      for (int64_t row = n; row < n + 64; ++row) EXPECT_GE(w4_sm90_output(row, n, paired), n) << row;
    }
    for (int64_t i = 0; i < n / 2; ++i) {
      EXPECT_EQ(w4_sm90_row(i, n, true) + 8, w4_sm90_row(n / 2 + i, n, true)) << i;
      EXPECT_EQ(linear_paired_output(0, static_cast<int>(w4_sm90_row(i, n, true))), i);  // what the epilogue takes it for
    }
  }
}

// A group of a fragment by 8 tokens: every lane takes its registers as the kernel does, and the product of mma.m16n8k16, from
// the instruction set's definition, is that of the matrices. Small integers, so that every order of the sum is exact.
TEST(W4FragmentsLayout, RegistersMultiplyToTheProduct) {
  std::mt19937 bits(3);
  constexpr int kN = 80, kK = 200;  // of the second block and group
  std::vector<uint8_t> packed(static_cast<size_t>(w4_sm90_packed_bytes(kN, kK)));
  for (uint8_t& byte : packed) byte = static_cast<uint8_t>(bits());
  std::vector<int> x(8 * kW4Sm90GroupK);
  for (int& v : x) v = static_cast<int>(bits() % 9) - 4;
  const uint8_t* fragment = packed.data() + w4_sm90_group_offset(1, 1, kK) + kW4Sm90FragmentBytes;  // rows 80 … 95
  std::vector<int> product(16 * 8);
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < 4; ++i) {  // the kernel's half steps
      int a[16][16], b[16][8];
      for (int lane = 0; lane < 32; ++lane) {
        const int g = lane / 4, q = lane % 4;
        uint32_t w[4];
        std::memcpy(w, fragment + w4_sm90_lane_offset(h, lane), sizeof w);
        for (int r = 0; r < 4; ++r) {
          const uint32_t pair = w4_magic_pair(w[i / 2 * 2 + r % 2], i % 2 * 2 + r / 2);
          for (int half = 0; half < 2; ++half) {
            const float value = to_float(Bf16{static_cast<uint16_t>(pair >> (16 * half))});
            a[g + r % 2 * 8][r / 2 * 8 + 2 * q + half] = static_cast<int>(value) - 128;
          }
        }
        for (int r = 0; r < 2; ++r) {  // of the 16 bytes of token g: words 0, 1 or 2, 3
          for (int half = 0; half < 2; ++half)
            b[r * 8 + 2 * q + half][g] =
                x[static_cast<size_t>(g * kW4Sm90GroupK + (2 * h + i / 2) * kW4Sm90StepK + 8 * q + (i % 2 * 2 + r) * 2 + half)];
        }
      }
      for (int m = 0; m < 16; ++m) {
        for (int n = 0; n < 8; ++n) {
          for (int k = 0; k < 16; ++k) product[static_cast<size_t>(m * 8 + n)] += a[m][k] * b[k][n];
        }
      }
    }
  }
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 8; ++n) {
      int expected = 0;
      for (int k = 0; k < kW4Sm90GroupK; ++k) {
        const int64_t at = w4_sm90_nibble_index(80 + m, kW4Sm90GroupK + k, kK);
        expected += (packed[static_cast<size_t>(at / 2)] >> (at % 2 * 4) & 15) * x[static_cast<size_t>(n * kW4Sm90GroupK + k)];
      }
      ASSERT_EQ(product[static_cast<size_t>(m * 8 + n)], expected) << m << " " << n;
    }
  }
}

// Eight lanes of a 128-bit load cover every bank once: of weights, and of tokens in rows of 64 bytes.
TEST(W4FragmentsLayout, LoadsHaveNoBankConflicts) {
  for (int first = 0; first < 32; first += 8) {
    std::vector<int> weights(32), tokens(32);
    for (int lane = first; lane < first + 8; ++lane) {
      for (int word = 0; word < 4; ++word) {
        ++weights[static_cast<size_t>((w4_sm90_lane_offset(1, lane) / 4 + word) % 32)];
        ++tokens[static_cast<size_t>((lane / 4 * kW4Sm90StepK * 2 / 4 + lane % 4 * 4 + word) % 32)];
      }
    }
    EXPECT_EQ(weights, std::vector<int>(32, 1));
    EXPECT_EQ(tokens, std::vector<int>(32, 1));
  }
}

TEST(LinearW4Sm90Config, EveryChoiceFitsTheDevice) {
  for (const auto& [n, k] :
       {std::pair(4608, 3584), {3584, 3584}, {37888, 3584}, {3584, 18944}, {152064, 3584}, {1152, 896}, {33, 1}}) {
    for (const int rows : {1, 8, 9, 16, 17, 32, 33, 256, 1000}) {
      const LinearW4Sm90Config c = choose_linear_w4_sm90({rows, n, k, false}, DeviceLimits{});
      const std::string what =
          to_string(c) + " for " + std::to_string(rows) + " x " + std::to_string(n) + " x " + std::to_string(k);
      EXPECT_LE(c.shared_bytes, DeviceLimits{}.shared_per_block) << what;
      EXPECT_TRUE(c.num_slots >= 2 && c.num_slots <= kW4Sm90MaxSlots) << what;
      EXPECT_TRUE(c.cluster == 1 || c.cluster == 2 || c.cluster == 4) << what;
      EXPECT_TRUE(c.num_clusters >= 1 && c.num_clusters <= c.tiles() &&
                  c.num_clusters <= DeviceLimits{}.resident_clusters(c.cluster, 1))
          << what;
      EXPECT_TRUE(c.tiles_m * kW4Sm90BlockM >= n && c.tiles_n * c.tile_n >= rows) << what;
      EXPECT_EQ(c.cluster * kW4Sm90Warps, w4_sm90_splits(n, k)) << what;  // whatever the rows
      EXPECT_TRUE(c.cluster == 1 || w4_sm90_groups(k) >= c.cluster * kW4Sm90Warps) << what << ": a warp has nothing to do";
      // Weights on the way: latency (1 us) times what a multiprocessor's share of 3.35 TB/s is, 25 KB.
      EXPECT_GE(c.num_slots * kW4Sm90Warps * kW4Sm90GroupBytes, 2 * 25000) << what;
    }
  }
}

TEST(LinearW4Sm90Config, ReadsWell) {
  const auto text = [](int rows, int n, int k) {
    return to_string(choose_linear_w4_sm90({rows, n, k, false}, DeviceLimits{}));
  };
  EXPECT_EQ(text(1, 37888, 3584), "tile 64 x 8, 8 warps with 4 slots of 6400 bytes, 132 clusters of 1 for 592 tiles");
  EXPECT_EQ(text(16, 3584, 18944), "tile 64 x 16, 8 warps with 3 slots of 8448 bytes, 56 clusters of 2 for 56 tiles");
  EXPECT_EQ(text(256, 37888, 3584), "tile 64 x 32, 8 warps with 2 slots of 12544 bytes, 132 clusters of 1 for 4736 tiles");
}

// ---- The wide form ----------------------------------------------------------------------------------------------------------

// What the lanes of four warps write is the operand tile of both halves of a group: every place once, with the weight that
// belongs there.
TEST(LinearW4WideLayout, ExpandsEveryWeightToItsPlace) {
  std::mt19937 bits(5);
  std::vector<uint8_t> packed(static_cast<size_t>(w4_sm90_packed_bytes(64, 128)));
  for (uint8_t& byte : packed) byte = static_cast<uint8_t>(bits());
  std::vector<int> tile(2 * kW4WideOperandBytes / 2, -1);
  for (int fragment = 0; fragment < 4; ++fragment) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int h = 0; h < 2; ++h) {
        uint32_t w[4];
        std::memcpy(w, packed.data() + fragment * kW4Sm90FragmentBytes + w4_sm90_lane_offset(h, lane), sizeof w);
        for (int turn = 0; turn < 2; ++turn) {
          const int step = w4_wide_step(lane, turn);
          for (const bool upper : {false, true}) {
            const uint32_t word = w[step * 2 + (upper ? 1 : 0)],
                           at = static_cast<uint32_t>(h * kW4WideOperandBytes) + w4_wide_offset(fragment, lane, step, upper);
            ASSERT_EQ(at % 16, 0u);
            for (int i = 0; i < 8; ++i) {
              int& place = tile.at(at / 2 + static_cast<size_t>(i));
              ASSERT_EQ(place, -1) << fragment << " " << lane;
              place = static_cast<int>(w4_magic_pair(word, i / 2) >> (16 * (i % 2)) & 0x7f);
            }
          }
        }
      }
    }
  }
  for (uint32_t row = 0; row < 64; ++row) {
    for (uint32_t k = 0; k < 128; ++k) {
      const int64_t nibble = w4_sm90_nibble_index(row, k, 128);
      const size_t at = (k / 64 * kW4WideOperandBytes + operand_offset(row, k % 64)) / 2;
      ASSERT_EQ(tile[at], packed[static_cast<size_t>(nibble / 2)] >> (nibble % 2 * 4) & 15) << row << " " << k;
    }
  }
}

// Eight lanes of a 128-bit store cover every bank once; without the odd lanes' other order they do not.
TEST(LinearW4WideLayout, StoresHaveNoBankConflicts) {
  const auto most = [](bool in_turns) {
    int worst = 0;
    for (int first = 0; first < 32; first += 8) {
      for (int turn = 0; turn < 2; ++turn) {
        std::vector<int> banks(32);
        for (int lane = first; lane < first + 8; ++lane) {
          const uint32_t at = w4_wide_offset(1, lane, in_turns ? w4_wide_step(lane, turn) : turn, true);
          for (uint32_t word = 0; word < 4; ++word) worst = std::max(worst, ++banks[(at / 4 + word) % 32]);
        }
      }
    }
    return worst;
  };
  EXPECT_EQ(most(true), 1);
  EXPECT_EQ(most(false), 2);
}

TEST(LinearW4WideConfig, EveryChoiceFitsTheDevice) {
  for (const auto& [n, k] :
       {std::pair(4608, 3584), {3584, 3584}, {37888, 3584}, {3584, 18944}, {152064, 3584}, {1152, 896}, {33, 1}}) {
    for (const int rows : {33, 64, 65, 128, 129, 256, 1000}) {
      const LinearW4WideSm90Config c = choose_linear_w4_wide_sm90({rows, n, k, false}, DeviceLimits{});
      const std::string what =
          to_string(c) + " for " + std::to_string(rows) + " x " + std::to_string(n) + " x " + std::to_string(k);
      EXPECT_LE(c.shared_bytes, DeviceLimits{}.shared_per_block) << what;
      EXPECT_TRUE(c.num_slots >= 3 && c.num_slots <= kW4WideMaxSlots) << what;
      EXPECT_EQ(c.splits, w4_wide_splits(n, k)) << what;  // whatever the rows
      EXPECT_TRUE(c.splits == 1 || w4_sm90_groups(k) / c.splits >= 4) << what;
      EXPECT_TRUE(c.num_clusters >= 1 && c.num_clusters <= c.tiles() &&
                  c.num_clusters <= DeviceLimits{}.resident_clusters(c.splits, 1))
          << what;
      EXPECT_TRUE(c.tiles_m * kW4WideBlockM >= n && c.tiles_n * c.tile_n >= rows) << what;
      EXPECT_GE(c.num_slots * kW4WideConsumers * kW4Sm90GroupBytes, 25000)
          << what;  // weights on the way, as in the narrow form
    }
  }
  for (const int splits : {1, 2, 4}) {
    EXPECT_EQ(w4_wide_split_begin(0, splits, 33), 0);
    EXPECT_EQ(w4_wide_split_begin(splits, splits, 33), 33);
  }
}

TEST(LinearW4WideConfig, ReadsWell) {
  const auto text = [](int rows, int n, int k) {
    return to_string(choose_linear_w4_wide_sm90({rows, n, k, false}, DeviceLimits{}));
  };
  EXPECT_EQ(text(64, 4608, 3584), "tile 128 x 64, 5 slots of 25 KB, 36 clusters of 2 for 36 tiles");
  EXPECT_EQ(text(256, 3584, 18944), "tile 128 x 128, 3 slots of 41 KB, 32 clusters of 4 for 56 tiles");
  EXPECT_EQ(text(512, 37888, 3584), "tile 128 x 128, 3 slots of 41 KB, 132 clusters of 1 for 1184 tiles");
}

}  // namespace
}  // namespace otr::linear_w4_sm90_config_test
