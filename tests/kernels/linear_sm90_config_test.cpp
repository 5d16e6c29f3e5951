// The choice of kernels for linear on sm_90a, and a play of the whole kernel on the CPU: the same boxes, descriptors,
// fragments, exchange and stores, with the hardware of sm90_model.h.
#include "kernels/linear/linear_sm90_config.h"

#include <map>
#include <tuple>

#include "kernels/layouts/slot_ring.h"
#include "kernels/route/expert_rows.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/sm90_model.h"

namespace otr::linear_sm90_config_test {
namespace {

using namespace testing_util;

constexpr int kRows[] = {1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 128, 129, 200, 256, 257, 300, 512, 1000, 4096, 8192};
constexpr int kShapes[][2] = {{4608, 3584}, {3584, 3584}, {37888, 3584}, {3584, 18944}, {152064, 3584},
                              {1152, 896},  {896, 4864},  {64, 64},      {33, 1}};

// 132 multiprocessors, 18 a GPC at most: clusters of 4 leave four of them idle where one block fills one.
TEST(LinearSm90Config, ClustersThatRunAtOnce) {
  constexpr DeviceLimits kH100;
  EXPECT_EQ(kH100.resident_clusters(1, 1), 132);
  EXPECT_EQ(kH100.resident_clusters(2, 1), 66);
  EXPECT_EQ(kH100.resident_clusters(4, 1), 32);
  EXPECT_EQ(kH100.resident_clusters(8, 1), 16);
  EXPECT_EQ(kH100.resident_clusters(4, 2), 66);
  EXPECT_EQ(kH100.resident_clusters(1, 2), 264);
  EXPECT_EQ((DeviceLimits{.num_sms = 5}.resident_clusters(8, 1)), 1);
}

TEST(LinearSm90Config, EveryChoiceFitsTheDevice) {
  for (const auto& [n, k] : kShapes) {
    for (const int rows : kRows) {
      const LinearSm90Config c = choose_linear_sm90({rows, n, k, false}, DeviceLimits{});
      const std::string what =
          to_string(c) + " for " + std::to_string(rows) + " x " + std::to_string(n) + " x " + std::to_string(k);
      const int blocks = c.consumers == 1 ? 2 : 1;
      EXPECT_LE(c.shared_bytes, DeviceLimits{}.shared_per_block) << what;
      EXPECT_LE(blocks * (c.shared_bytes + 1024), DeviceLimits{}.shared_per_sm) << what;
      EXPECT_GE(c.num_slots, 4) << what;
      EXPECT_LE(c.num_slots, kLinearMaxSlots) << what;
      EXPECT_LE(static_cast<int>(sizeof(uint64_t)) * (2 * c.num_slots + 2), kLinearBarrierBytes) << what;
      EXPECT_GE(c.num_clusters, 1) << what;
      EXPECT_LE(c.num_clusters * c.cluster, 132 * blocks) << what;
      EXPECT_LE(c.num_clusters, c.tiles()) << what;
      EXPECT_GE(c.tiles_m * c.tile_m(), n) << what;
      EXPECT_GE(c.tiles_n * c.tile_n, rows) << what;
      EXPECT_TRUE(c.cluster == 1 || c.cluster == 2 || c.cluster == 4 || c.cluster == 8) << what;
      EXPECT_EQ(c.splits, weight_splits(n, k)) << what;
      EXPECT_TRUE(c.side_by_side || c.splits == 1 || c.tile_n == 192)
          << what;  // a second set of accumulators: 2 x 96 registers
    }
  }
}

TEST(LinearSm90Config, ReadsWell) {
  const auto text = [](int rows, int n, int k) { return to_string(choose_linear_sm90({rows, n, k, false}, DeviceLimits{})); };
  EXPECT_EQ(text(1, 4608, 3584), "tile 64 x 8, 12 slots of 9 KB, 2 splits side by side, 72 clusters of 2 for 72 tiles");
  EXPECT_EQ(text(64, 37888, 3584), "tile 64 x 64, 6 slots of 16 KB, 1 split, 264 clusters of 1 for 592 tiles");
  EXPECT_EQ(text(256, 3584, 18944), "tile 128 x 128, 6 slots of 32 KB, 2 splits side by side, 56 clusters of 2 for 56 tiles");
  EXPECT_EQ(text(4096, 3584, 18944), "tile 128 x 192, 5 slots of 40 KB, 2 splits in turn, 66 clusters of 2 for 308 tiles");
  EXPECT_EQ(text(4096, 37888, 3584), "tile 128 x 256, 4 slots of 48 KB, 1 split, 66 clusters of 2 for 2368 tiles");
}

TEST(LinearSm90Config, EveryTileIsTakenOnce) {
  for (const auto& [columns, tiles_n] :
       {std::pair(1, 1), std::pair(7, 3), std::pair(8, 2), std::pair(20, 5), std::pair(148, 16), std::pair(72, 1)}) {
    std::map<std::pair<int, int>, int> seen;
    for (int i = 0; i < columns * tiles_n; ++i) {
      const TileCoordinates at = linear_tile(i, columns, tiles_n);
      ASSERT_TRUE(at.m >= 0 && at.m < columns && at.n >= 0 && at.n < tiles_n) << i;
      ++seen[{at.m, at.n}];
    }
    EXPECT_EQ(static_cast<int>(seen.size()), columns * tiles_n);
  }
}

// Of experts: any tile of any of its lists fits, and splits are never asked for.
TEST(LinearSm90Config, TilesOfExpertsFitTheDevice) {
  for (const auto& [rows, experts, taken] :
       {std::tuple(1, 128, 8), {4, 128, 8}, {64, 128, 8}, {256, 128, 8}, {4096, 128, 8}, {3, 2, 2}, {500, 8, 2}}) {
    for (const int32_t most : {32, kLinearExpertsRows}) {
      const int32_t tile_rows = expert_tile_rows(rows, experts, taken, most);
      EXPECT_TRUE(tile_rows >= 8 && tile_rows <= most && (tile_rows & (tile_rows - 1)) == 0) << tile_rows;
      EXPECT_TRUE(tile_rows == most || tile_rows >= std::min(rows, 2 * rows * taken / experts)) << tile_rows;
      const int32_t max_tiles = max_expert_tiles(rows, experts, taken, tile_rows);
      EXPECT_LE(max_tiles, rows * taken);
      const LinearSm90Config c = choose_linear_experts_sm90({tile_rows, 1536, 2048, true}, max_tiles, DeviceLimits{});
      const int blocks = c.consumers == 1 ? 2 : 1;
      EXPECT_EQ(c.tile_n, tile_rows);
      EXPECT_EQ(c.splits, 1);
      EXPECT_TRUE(c.side_by_side && c.cluster == 1);
      EXPECT_LE(blocks * (c.shared_bytes + 1024), DeviceLimits{}.shared_per_sm);
      EXPECT_LE(c.num_clusters, 132 * blocks);
      EXPECT_LE(c.num_clusters, c.tiles());
    }
  }
}

// The worst that a list can be: one row on all experts but one, and the rest on that one.
TEST(LinearSm90Config, NoListOfExpertsTilesIsLongerThanItsRoom) {
  for (const int32_t tile_rows : {8, 16, 32, 64, 128}) {
    for (const int32_t experts : {1, 2, 7, 128}) {
      for (int32_t rows = 1; rows < 300; rows += 7) {
        const int32_t others = std::min(experts - 1, rows - 1), full = (rows - others + tile_rows - 1) / tile_rows;
        EXPECT_LE(others + full, max_expert_tiles(rows, experts, 1, tile_rows)) << rows << " on " << experts;
      }
    }
  }
}

// ---- The kernel on the model ------------------------------------------------------------------------------------------------

struct Play {
  LinearSm90Problem problem;
  LinearSm90Config config;
  std::vector<Element> w, x;
  std::vector<float> first, second;  // by [row][output]: registers of linear, or gate and up of an output
  std::vector<int> writes;

  Play(int rows, int n, int k, bool silu_mul)
      : problem{rows, n, k, silu_mul}, config(choose_linear_sm90(problem, DeviceLimits{})) {
    stride = (k + 7) / 8 * 8;
    w = random_elements(static_cast<size_t>(n * stride), 1.0f, 1);
    x = random_elements(static_cast<size_t>(rows * stride), 1.0f, 2);
    const size_t outputs = static_cast<size_t>(rows * (silu_mul ? n / 2 : n));
    first.assign(outputs, 0.0f), second.assign(outputs, 0.0f), writes.assign(outputs, 0);
  }

  // Accumulators [warpgroup][m][n] of one block of a cluster over a range of blocks of inputs.
  std::vector<std::vector<float>> multiply(int tile_m, int tile_n, int begin, int end) const {
    const TensorBox weight_box = problem.silu_mul
                                     ? paired_box(problem.out_features / 2, problem.in_features, stride)
                                     : matrix_box(problem.out_features, problem.in_features, stride, config.tile_m());
    const int shares = config.side_by_side ? 1 : 2;
    const TensorBox x_box = matrix_box(problem.num_rows, problem.in_features, stride, config.tile_n / shares);
    std::vector<uint8_t> shared(static_cast<size_t>(config.slot_bytes()));
    std::vector<std::vector<float>> acc(static_cast<size_t>(config.consumers),
                                        std::vector<float>(static_cast<size_t>(64 * config.tile_n)));
    for (int block = begin; block < end; ++block) {
      const int64_t plain[] = {block * kOperandK, tile_m * config.tile_m()};
      const uint32_t tokens = static_cast<uint32_t>(config.tile_m()) * kOperandRowBytes;
      uint32_t bytes = problem.silu_mul ? 0 : model_tma(w.data(), weight_box, plain, &shared, 0);
      for (int box = 0; problem.silu_mul && box < config.tile_m() / 16; ++box) {
        const int64_t paired[] = {block * kOperandK, 0, tile_m * (config.tile_m() / 16) + box, 0};
        bytes += model_tma(w.data(), weight_box, paired, &shared, static_cast<uint32_t>(box * 16) * kOperandRowBytes);
      }
      for (int share = 0; share < shares; ++share) {
        const int half = share * config.tile_n / 2;
        const int64_t at[] = {block * kOperandK, tile_n * config.tile_n + half};
        bytes += model_tma(x.data(), x_box, at, &shared, tokens + static_cast<uint32_t>(half) * kOperandRowBytes);
      }
      EXPECT_EQ(bytes, static_cast<uint32_t>(config.slot_bytes()));
      for (int g = 0; g < config.consumers; ++g) {
        const uint64_t a = operand_descriptor(static_cast<uint32_t>(g) * kWgmmaM * kOperandRowBytes),
                       b = operand_descriptor(tokens);
        for (int step = 0; step < 4; ++step) {
          model_wgmma(shared, descriptor_at_step(a, step), descriptor_at_step(b, step), config.tile_n,
                      block > begin || step > 0, &acc[static_cast<size_t>(g)]);
        }
      }
    }
    return acc;
  }

  float reg(const std::vector<std::vector<float>>& acc, int thread, int i) const {
    const int m = accumulator_row(thread % 128, i), n = accumulator_column(thread % 128, i);
    return acc[static_cast<size_t>(thread / 128)][static_cast<size_t>(m * config.tile_n + n)];
  }

  void store(int tile_m, int tile_n, int thread, int group, const float* d) {
    const int r = tile_n * config.tile_n + accumulator_column(thread, 4 * group),
              outputs = problem.out_features / (problem.silu_mul ? 2 : 1);
    for (int i = 0; i < 4; ++i) {
      const int m = linear_tile_row(thread, 4 * group + i), row = r + i % 2;
      const int out = problem.silu_mul ? linear_paired_output(tile_m * config.tile_m(), m) : tile_m * config.tile_m() + m;
      if (row >= problem.num_rows || out >= outputs) continue;
      const size_t at = static_cast<size_t>(row * outputs + out);
      (problem.silu_mul && i >= 2 ? second : first)[at] = d[i];
      writes[at] += 1;
    }
  }

  void run() {
    const int blocks = num_k_blocks(problem.in_features), groups = config.tile_n / 8, threads = config.consumers * 128;
    const int columns = config.side_by_side ? config.tiles_m : (config.tiles_m + 1) / 2;
    for (int index = 0; index < config.tiles(); ++index) {
      const TileCoordinates at = linear_tile(index, columns, config.tiles_n);
      std::vector<std::vector<std::vector<float>>> parts;
      for (int rank = 0; rank < config.cluster; ++rank) {
        const int tile_m = config.side_by_side ? at.m : at.m * 2 + rank;
        std::vector<std::vector<float>> total;
        for (int split = config.side_by_side ? rank : 0; split < (config.side_by_side ? rank + 1 : config.splits); ++split) {
          std::vector<std::vector<float>> acc =
              multiply(tile_m, at.n, split_begin(split, config.splits, blocks), split_begin(split + 1, config.splits, blocks));
          for (size_t g = 0; !total.empty() && g < acc.size(); ++g) {
            for (size_t i = 0; i < acc[g].size(); ++i) acc[g][i] = total[g][i] + acc[g][i];
          }
          total = acc;
        }
        parts.push_back(total);
      }
      for (int rank = 0; rank < config.cluster; ++rank) {
        // What the other splits send to this one, at the places where they put it.
        std::vector<float> exchange(static_cast<size_t>(
            linear_exchange_bytes(config.side_by_side ? config.splits : 1, config.tile_n, config.consumers) / 4));
        for (int source = 0; config.side_by_side && source < config.splits; ++source) {
          for (int group = 0; group < groups; ++group) {
            if (source == rank || group_owner(group, config.splits) != rank) continue;
            for (int thread = 0; thread < threads; ++thread) {
              const int piece = exchange_piece(source, group, thread, config.splits, groups, threads);
              for (int i = 0; i < 4; ++i)
                exchange[static_cast<size_t>(piece * 4 + i)] = reg(parts[static_cast<size_t>(source)], thread, 4 * group + i);
            }
          }
        }
        for (int group = 0; group < groups; ++group) {
          if (config.side_by_side && group_owner(group, config.splits) != rank) continue;
          for (int thread = 0; thread < threads; ++thread) {
            float sum[4] = {};
            for (int source = 0; source < (config.side_by_side ? config.splits : 1); ++source) {
              const int piece = config.side_by_side && source != rank
                                    ? exchange_piece(source, group, thread, config.splits, groups, threads)
                                    : 0;
              for (int i = 0; i < 4; ++i) {
                const bool own = !config.side_by_side || source == rank;
                const float part = own ? reg(parts[static_cast<size_t>(rank)], thread, 4 * group + i)
                                       : exchange[static_cast<size_t>(piece * 4 + i)];
                sum[i] = source == 0 ? part : sum[i] + part;
              }
            }
            store(config.side_by_side ? at.m : at.m * 2 + rank, at.n, thread, group, sum);
          }
        }
      }
    }
  }

  double exact(int row, int out) const {
    double sum = 0.0;
    for (int k = 0; k < problem.in_features; ++k) {
      sum += static_cast<double>(to_float(x[static_cast<size_t>(row * stride + k)])) *
             static_cast<double>(to_float(w[static_cast<size_t>(out * stride + k)]));
    }
    return sum;
  }

  int64_t stride;
};

// One problem for each form of the kernel, with edges in every direction.
constexpr struct {
  int rows, n, k;
  bool silu_mul;
} kPlays[] = {{1, 70, 100, false},  {5, 100, 1030, false},  {13, 80, 70, true},    {30, 48, 1024, true}, {64, 40, 2050, false},
              {100, 144, 64, true}, {130, 60, 1100, false}, {270, 140, 72, false}, {260, 144, 40, true}, {290, 32, 1024, true}};

TEST(LinearSm90Play, EveryOutputIsWrittenOnceAndIsItsSum) {
  for (const auto& [rows, n, k, silu_mul] : kPlays) {
    Play play(rows, n, k, silu_mul);
    play.run();
    const int outputs = silu_mul ? n / 2 : n;
    const std::string what =
        std::to_string(rows) + " x " + std::to_string(n) + " x " + std::to_string(k) + ": " + to_string(play.config);
    for (int row = 0; row < rows; ++row) {
      for (int out = 0; out < outputs; ++out) {
        const size_t at = static_cast<size_t>(row * outputs + out);
        ASSERT_EQ(play.writes[at], silu_mul ? 2 : 1) << what << " at " << row << " " << out;
        ASSERT_NEAR(static_cast<double>(play.first[at]), play.exact(row, out), 1e-3) << what << " at " << row << " " << out;
        if (silu_mul) {
          ASSERT_NEAR(static_cast<double>(play.second[at]), play.exact(row, outputs + out), 1e-3) << what;
        }
      }
    }
  }
}

// Side by side among few rows, in turn among many: the same bits.
TEST(LinearSm90Play, ARowHasTheSameBitsInEveryForm) {
  const int n = 24, k = 1030;
  Play many(300, n, k, false);
  many.run();
  ASSERT_EQ(many.config.tile_n, 192);
  for (const int rows : {1, 12, 40, 90}) {
    Play few(rows, n, k, false);  // the same random rows, as far as they go
    few.run();
    ASSERT_GT(few.config.cluster, 1);
    for (int i = 0; i < rows * n; ++i) {
      ASSERT_EQ(bits_from_float(few.first[static_cast<size_t>(i)]), bits_from_float(many.first[static_cast<size_t>(i)]))
          << rows << " rows, " << i;
    }
  }
}

}  // namespace
}  // namespace otr::linear_sm90_config_test
