// attention on sm_90a as far as it can be followed on the CPU: how work is dealt out, and both products of a page by the boxes,
// descriptors and fragments that the kernel uses, on the hardware of sm90_model.h.
#include "kernels/attention/attention_sm90_config.h"

#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/sm90_model.h"

namespace otr::attention_sm90_config_test {
namespace {

using namespace testing_util;

TEST(AttentionSm90Config, TwoBlocksFitAMultiprocessor) {
  for (const int head_dim : {32, 64, 128}) {
    EXPECT_LE(2 * (attention_shared_bytes(head_dim) + 1024), 233472) << head_dim;
    EXPECT_GE(attention_num_slots(head_dim), 4) << head_dim;
    EXPECT_EQ(attention_slot_bytes(head_dim) % kSwizzleGroupBytes, 0) << head_dim;
  }
}

TEST(AttentionSm90Config, LongContextsOfFewTasksAreShared) {
  EXPECT_EQ(attention_sm90_parts(4, 132, 8192, true), 32);  // 66 wanted, 32 splits
  EXPECT_EQ(attention_sm90_parts(4, 132, 32768, true), 66);
  EXPECT_EQ(attention_sm90_parts(64, 132, 8192, true), 5);
  EXPECT_EQ(attention_sm90_parts(264, 132, 8192, true), 1);
  EXPECT_EQ(attention_sm90_parts(4, 132, 8192, false), 1);
  EXPECT_EQ(attention_sm90_parts(4, 132, 0, true), 1);
  EXPECT_EQ(attention_sm90_workspace(2, 28, 128, 513), 2 * 28 * 3 * 130);
}

// A task has a tile full of rows, so buckets of many rows still are few tasks.
TEST(AttentionSm90Config, BucketsOfManyRowsHaveRoomForTheirPartialResults) {
  constexpr int kSms = 132, kMostRows = 4096;
  struct Shape {
    int num_heads, num_kv_heads, head_dim;
  };
  for (const Shape s : {Shape{14, 2, 64}, Shape{12, 2, 128}, Shape{28, 4, 128}, Shape{40, 8, 128}, Shape{4, 4, 32}}) {
    const KvLayout layout{.num_layers = 1, .num_kv_heads = s.num_kv_heads, .head_dim = s.head_dim};
    const int tile_rows = attention_sm90_tile_rows(s.num_heads, s.num_kv_heads);
    for (const int keys : {256, 4096, 32768, 131072}) {
      const int rows = attention_sm90_split_rows(s.num_heads, layout, keys, kMostRows, kSms);
      const auto floats = [&](int n) { return attention_sm90_workspace(n, s.num_heads, s.head_dim, keys); };
      EXPECT_LE(floats(rows), kAttentionMostPartials) << s.num_heads << " heads, " << keys << " keys";
      const bool all = (rows / tile_rows + 1) * s.num_kv_heads >= 2 * kSms;
      EXPECT_TRUE(all || rows == kMostRows || floats(rows + 1) > kAttentionMostPartials)
          << s.num_heads << " heads, " << keys << " keys: " << rows << " rows";
      EXPECT_EQ(attention_sm90_split_rows(s.num_heads, layout, keys, 3, kSms), 3);
    }
  }
  // Qwen2.5-32B, four samples' verifications of 12 rows and one more row: 40 tasks, of 7 blocks each.
  const KvLayout layout{.num_layers = 64, .num_kv_heads = 8, .head_dim = 128};
  const int rows = attention_sm90_split_rows(40, layout, 32768, kMostRows, kSms);
  EXPECT_GE(rows, 49);
  EXPECT_EQ(attention_sm90_parts(5 * 8, kSms, 32768, rows >= 49), 7);
  EXPECT_GE(rows, 128);  // the next buckets
}

TEST(AttentionSm90Config, ATileHolds64RowsOfHeads) {
  EXPECT_EQ(attention_sm90_tile_rows(28, 4), 9);
  EXPECT_EQ(attention_sm90_tile_rows(64, 1), 1);
  EXPECT_EQ(attention_sm90_tile_rows(8, 8), 64);
}

TEST(Sm90Layout, AProductsResultIsTheNextOnesOperand) {
  for (int thread = 0; thread < 128; ++thread) {
    for (int step = 0; step < 4; ++step) {
      for (int r = 0; r < 4; ++r) {
        for (int half = 0; half < 2; ++half) {
          const int i = 8 * step + 2 * r + half;  // register of the 64 columns that is packed there
          EXPECT_EQ(accumulator_row(thread, i), operand_a_row(thread, r));
          EXPECT_EQ(accumulator_column(thread, i), 16 * step + operand_a_k(thread, r, half));
        }
      }
    }
  }
}

// The element (m, k) of a left operand in registers has one place, as the instruction set defines it.
TEST(Sm90Layout, EveryOperandElementHasOneThreadAndRegister) {
  for (int thread = 0; thread < 128; ++thread) {
    for (int r = 0; r < 4; ++r) {
      for (int half = 0; half < 2; ++half) {
        const int m = operand_a_row(thread, r), k = operand_a_k(thread, r, half);
        EXPECT_EQ(thread, m / 16 * 32 + m % 8 * 4 + k % 8 / 2);
        EXPECT_EQ(r, m % 16 / 8 + k / 8 * 2);
        EXPECT_EQ(half, k % 2);
      }
    }
  }
}

// scores = q K^T and o = w V of one page, by the kernel's boxes and steps, against plain sums of small integers (exact).
TEST(AttentionSm90Play, ProductsOfAPage) {
  for (const int head_dim : {32, 64, 128}) {
    const KvLayout layout = {2, 3, head_dim};
    const int layer = 1, kv_head = 2;
    const int64_t page = 1 * layout.page_elements();
    std::mt19937 bits(7);
    std::vector<Element> pages(static_cast<size_t>(2 * layout.page_elements()), nan_element());
    const int64_t k0 = page + layout.k_offset(layer, kv_head), v0 = page + layout.v_offset(layer, kv_head);
    for (int64_t i = 0; i < layout.head_elements(); ++i) {
      pages[static_cast<size_t>(k0 + i)] = to_element(static_cast<float>(static_cast<int>(bits() % 9) - 4));
      pages[static_cast<size_t>(v0 + i)] = to_element(static_cast<float>(static_cast<int>(bits() % 9) - 4));
    }
    std::vector<float> q(static_cast<size_t>(64 * head_dim)), w(64 * 64);
    for (float& x : q) x = static_cast<float>(static_cast<int>(bits() % 9) - 4);
    for (float& x : w) x = static_cast<float>(bits() % 5);

    // Shared memory as the kernel has it: q in spans of 64, then a slot of keys, then a slot of values.
    const int slot = attention_slot_bytes(head_dim), spans = (head_dim + 63) / 64;
    std::vector<uint8_t> shared(static_cast<size_t>(3 * slot));
    for (int row = 0; row < 64; ++row) {
      for (int d = 0; d < head_dim; ++d) {
        const Element e = to_element(q[static_cast<size_t>(row * head_dim + d)]);
        const uint32_t at =
            static_cast<uint32_t>(d / 64 * 8192) + operand_offset(static_cast<uint32_t>(row), static_cast<uint32_t>(d % 64));
        std::memcpy(shared.data() + at, &e, sizeof e);
      }
    }
    const TensorBox k_box = matrix_box(0x7fffffff, head_dim, head_dim, kPageTokens),
                    v_box = matrix_box(0x7fffffff, 64, 64, head_dim);
    ASSERT_EQ(tensor_box_error(k_box, 0), nullptr);
    ASSERT_EQ(tensor_box_error(v_box, 0), nullptr);
    uint32_t bytes = 0;
    for (int span = 0; span < spans; ++span) {
      const int64_t at[] = {span * 64, k0 / head_dim};
      bytes += model_tma(pages.data(), k_box, at, &shared, static_cast<uint32_t>(slot + span * 8192));
    }
    EXPECT_EQ(bytes, static_cast<uint32_t>(slot));
    const int64_t at[] = {0, v0 / kPageTokens};
    EXPECT_EQ(model_tma(pages.data(), v_box, at, &shared, static_cast<uint32_t>(2 * slot)),
              static_cast<uint32_t>(head_dim * kOperandRowBytes));

    std::vector<float> scores(64 * 64), o(static_cast<size_t>(64 * head_dim), 0.0f);
    const uint64_t q_descriptor = operand_descriptor(0), keys = operand_descriptor(static_cast<uint32_t>(slot));
    for (int step = 0; step < head_dim / 16; ++step) {
      const uint64_t span = static_cast<uint64_t>(step / 4 * (8192 >> 4));
      model_wgmma(shared, descriptor_at_step(q_descriptor + span, step % 4), descriptor_at_step(keys + span, step % 4), 64,
                  step > 0, &scores);
    }
    for (int step = 0; step < 4; ++step) {
      const uint64_t values = descriptor_at_step(operand_descriptor(static_cast<uint32_t>(2 * slot)), step);
      for (int thread = 0; thread < 128; ++thread) {
        for (int r = 0; r < 4; ++r) {
          for (int half = 0; half < 2; ++half) {
            const int row = operand_a_row(thread, r), k = operand_a_k(thread, r, half);
            const float weight = w[static_cast<size_t>(row * 64 + 16 * step + k)];
            for (int d = 0; d < head_dim; ++d)
              o[static_cast<size_t>(row * head_dim + d)] += weight * model_operand(shared.data(), values, d, k);
          }
        }
      }
    }
    for (int row = 0; row < 64; ++row) {
      for (int key = 0; key < 64; ++key) {
        float sum = 0.0f;
        for (int d = 0; d < head_dim; ++d)
          sum += q[static_cast<size_t>(row * head_dim + d)] * to_float(pages[static_cast<size_t>(k0 + key * head_dim + d)]);
        ASSERT_EQ(scores[static_cast<size_t>(row * 64 + key)], sum) << head_dim << " " << row << " " << key;
      }
      for (int d = 0; d < head_dim; ++d) {
        float sum = 0.0f;
        for (int key = 0; key < 64; ++key)
          sum += w[static_cast<size_t>(row * 64 + key)] * to_float(pages[static_cast<size_t>(v0 + d * 64 + key)]);
        ASSERT_EQ(o[static_cast<size_t>(row * head_dim + d)], sum) << head_dim << " " << row << " " << d;
      }
    }
  }
}

// The last coordinate of the largest pool is an int32, and that of a page more is none.
TEST(AttentionSm90Config, CoordinatesOfPagesFit) {
  for (const int head_dim : {32, 64, 128}) {
    const KvLayout layout{.num_layers = 28, .num_kv_heads = 4, .head_dim = head_dim};
    const int64_t pages = attention_sm90_max_pages(layout), width = head_dim < kPageTokens ? head_dim : kPageTokens;
    EXPECT_LE(pages * layout.page_elements() / width, int64_t{0x7fffffff});
    EXPECT_GT((pages + 1) * layout.page_elements() / width, int64_t{0x7fffffff});
  }
  const KvLayout narrow{.num_layers = 1, .num_kv_heads = 1, .head_dim = 32};
  EXPECT_EQ(attention_sm90_max_pages(narrow) * narrow.page_bytes() >> 30, 127);
}

}  // namespace
}  // namespace otr::attention_sm90_config_test
