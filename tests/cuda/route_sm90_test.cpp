// What stands around the products of experts on sm_90a: route with the definition's bits, rows in order of their experts, and
// what experts made added to the rows.
#include "kernels/route/route_sm90.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/cuda/device_buffer.h"
#include "tests/kernels/kernel_test_util.h"

namespace otr::route_sm90_test {
namespace {

using namespace testing_util;

class RouteSm90 : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (sm90_table(&why) == nullptr) GTEST_SKIP() << why;
  }
};

struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Routed route_here(std::vector<float> logits, int32_t num_experts, int32_t taken, bool normalised) {
  const int32_t rows = static_cast<int32_t>(logits.size()) / num_experts;
  Routed r{std::vector<int32_t>(static_cast<size_t>(rows * taken)), std::vector<float>(static_cast<size_t>(rows * taken))};
  ThreadPool pool(1);
  route({rows, num_experts, taken, normalised, logits.data(), r.experts.data(), r.weights.data()}, pool);
  return r;
}

Routed route_there(const std::vector<float>& logits, int32_t num_experts, int32_t taken, bool normalised) {
  const int32_t rows = static_cast<int32_t>(logits.size()) / num_experts;
  const DeviceBuffer<float> on_device(logits), weights(static_cast<size_t>(rows * taken));
  const DeviceBuffer<int32_t> experts(weights.size());
  check_status(
      route_sm90({rows, num_experts, taken, normalised, on_device.data(), experts.data(), weights.data()}, side_stream()));
  wait_for(side_stream());
  return {experts.read(), weights.read()};
}

void expect_definition(const std::vector<float>& logits, int32_t num_experts, int32_t taken) {
  for (const bool normalised : {false, true}) {
    const Routed expected = route_here(logits, num_experts, taken, normalised);
    const Routed found = route_there(logits, num_experts, taken, normalised);
    EXPECT_EQ(found.experts, expected.experts) << taken << " of " << num_experts;
    EXPECT_TRUE(same_bits(found.weights, expected.weights)) << taken << " of " << num_experts << ", " << normalised;
  }
}

TEST_F(RouteSm90, HasTheBitsOfTheDefinition) {
  for (const auto& [experts, taken] : {std::pair{1, 1}, {2, 1}, {5, 3}, {8, 8}, {128, 8}, {129, 129}, {1000, 33}, {1024, 2}})
    expect_definition(random_normal(static_cast<size_t>(7 * experts), 3.0f, 5), experts, taken);
}

TEST_F(RouteSm90, TiesZerosAndExtremesToo) {
  std::vector<float> logits = random_normal(static_cast<size_t>(12 * 130), 1.0f, 6);
  for (float& l : logits) l = std::round(l);  // ties, and zeros of both signs
  expect_definition(logits, 130, 9);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); i += 7) logits[i] *= i % 2 == 0 ? 1e30f : 80.0f;
  for (size_t i = 0; i < 130; ++i) logits[i] = -kInf;
  logits[140] = -kInf, logits[270] = kInf, logits[400] = logits[410] = kInf;
  expect_definition(logits, 130, 9);
}

// Experts that exist, weights that are NaN, and only in that row.
TEST_F(RouteSm90, ANaNSpoilsItsRowOnly) {
  for (const size_t at : {4u, 5u, 7u}) {
    std::vector<float> logits = {1, 2, 3, 4, 1, 2, 3, 4, 4, 3, 2, 1};
    logits[at] = std::nanf("");
    expect_definition(logits, 4, 2);
    const Routed found = route_there(logits, 4, 2, true);
    EXPECT_TRUE(is_nan(found.weights[2]) && is_nan(found.weights[3]) && !is_nan(found.weights[1]) && !is_nan(found.weights[4]));
  }
}

// ---- gather ---------------------------------------------------------------------------------------------------------------

struct Choice {
  int32_t num_rows, num_experts, per_token;
  std::vector<int32_t> experts;  // [num_rows][per_token], ascending
};

// Expert e is preferred by rows where hash(row, e) is small; `skew` leaves some to nobody and others to many.
Choice random_choice(int32_t rows, int32_t num_experts, int32_t per_token, bool skew, uint32_t seed) {
  Choice c{rows, num_experts, per_token, {}};
  std::mt19937 random(seed);
  for (int32_t row = 0; row < rows; ++row) {
    std::vector<std::pair<uint32_t, int32_t>> order;
    for (int32_t e = 0; e < num_experts; ++e) order.emplace_back(random() >> (skew ? e % 5 * 3 : 0), e);
    std::sort(order.begin(), order.end());
    std::vector<int32_t> mine;
    for (int32_t i = 0; i < per_token; ++i) mine.push_back(order[static_cast<size_t>(i)].second);
    std::sort(mine.begin(), mine.end());
    c.experts.insert(c.experts.end(), mine.begin(), mine.end());
  }
  return c;
}

// Of the first `there` rows, from the definition: experts ascending, rows ascending.
void expect_gathered(const Choice& c, int32_t there, int32_t tile_rows, bool captured) {
  constexpr int32_t kWidth = 24, kStride = 32, kGatheredStride = 40;
  const size_t taken = static_cast<size_t>(c.num_rows * c.per_token);
  const std::vector<Element> x = random_elements(static_cast<size_t>(c.num_rows * kStride), 1.0f, 3);
  const DeviceBuffer<Element> device_x(x), gathered(taken * kGatheredStride);
  const DeviceBuffer<int32_t> experts(c.experts), places(taken), num_rows(std::vector<int32_t>{there}), count(1);
  const int32_t max_tiles = max_expert_tiles(c.num_rows, c.num_experts, c.per_token, tile_rows);
  const DeviceBuffer<ExpertTile> list(static_cast<size_t>(max_tiles));
  check_status(gather_experts_sm90({captured ? c.num_rows : there,
                                    c.num_experts,
                                    c.per_token,
                                    captured ? num_rows.data() : nullptr,
                                    experts.data(),
                                    device_x.data(),
                                    kStride,
                                    kWidth,
                                    gathered.data(),
                                    kGatheredStride,
                                    places.data(),
                                    {list.data(), count.data(), max_tiles, tile_rows}},
                                   side_stream()));
  wait_for(side_stream());
  const std::vector<int32_t> found = places.read();
  const std::vector<Element> rows = gathered.read();
  const std::vector<ExpertTile> tiles = list.read();
  const size_t num_tiles = static_cast<size_t>(count.read()[0]);
  ASSERT_LE(num_tiles, tiles.size());
  int32_t place = 0;
  size_t tile = 0;
  for (int32_t e = 0; e < c.num_experts; ++e) {
    const int32_t begin = place;
    for (int32_t row = 0; row < there; ++row) {
      for (int32_t i = 0; i < c.per_token; ++i) {
        const size_t at = static_cast<size_t>(row * c.per_token + i);
        if (c.experts[at] != e) continue;
        ASSERT_EQ(found[at], place) << "row " << row << ", expert " << e;
        for (int32_t d = 0; d < kWidth; ++d)
          ASSERT_EQ(bits_of(rows[static_cast<size_t>(place * kGatheredStride + d)]),
                    bits_of(x[static_cast<size_t>(row * kStride + d)]));
        ++place;
      }
    }
    for (int32_t first = begin; first < place; first += tile_rows, ++tile) {
      ASSERT_LT(tile, num_tiles);
      ASSERT_EQ(tiles[tile].expert, e);
      ASSERT_EQ(tiles[tile].first_row, first);
      ASSERT_EQ(tiles[tile].end_row, std::min(first + tile_rows, place));
    }
  }
  EXPECT_EQ(tile, num_tiles);
}

TEST_F(RouteSm90, RowsStandInOrderOfTheirExperts) {
  for (const bool captured : {false, true}) {
    expect_gathered(random_choice(1, 8, 3, false, 1), 1, 8, captured);
    expect_gathered(random_choice(40, 8, 3, false, 2), 40, 8, captured);
    expect_gathered(random_choice(40, 130, 40, true, 3), 29, 16, captured);
    expect_gathered(random_choice(30, 3, 3, false, 4), 30, 8, captured);     // all of them
    expect_gathered(random_choice(33, 1, 1, false, 5), 33, 32, captured);    // one
    expect_gathered(random_choice(9, 1024, 5, false, 6), 9, 64, captured);   // mostly nobody's
    expect_gathered(random_choice(600, 11, 2, true, 7), 590, 64, captured);  // several rows a block
  }
  expect_gathered(random_choice(300, 11, 2, true, 8), 3, 8, true);  // a bucket that is mostly padding
  expect_gathered(random_choice(5, 11, 2, true, 8), 0, 8, true);    // of nothing else
}

// ---- combine --------------------------------------------------------------------------------------------------------------

TEST_F(RouteSm90, WhatExpertsMadeIsAddedInOrder) {
  constexpr int32_t kRows = 5, kThere = 4, kPerToken = 3;
  for (const int32_t hidden : {8, 1028}) {
    const size_t taken = kRows * kPerToken, size = static_cast<size_t>(kRows * hidden);
    const std::vector<float> residual = random_normal(size, 1.0f, 1), weights = random_normal(taken, 1.0f, 2);
    std::vector<float> made = random_normal(taken * static_cast<size_t>(hidden), 1.0f, 3);
    made[2] = std::nanf("");
    const std::vector<int32_t> places = {3, 9, 0, 14, 5, 2, 1, 8, 13, 4, 6, 7, 10, 11, 12};
    const DeviceBuffer<float> on_device(residual), device_weights(weights), device_made(made);
    const DeviceBuffer<int32_t> device_places(places), there(std::vector<int32_t>{kThere});
    check_status(combine_experts_sm90({kRows, hidden, kPerToken, there.data(), device_places.data(), device_weights.data(),
                                       device_made.data(), on_device.data()},
                                      side_stream()));
    wait_for(side_stream());
    std::vector<float> expected = residual;
    for (size_t row = 0; row < kThere; ++row) {
      for (size_t i = row * kPerToken; i < (row + 1) * kPerToken; ++i) {
        for (size_t d = 0; d < static_cast<size_t>(hidden); ++d) {
          const float product = weights[i] * made[static_cast<size_t>(places[i] * hidden) + d];
          expected[row * static_cast<size_t>(hidden) + d] += product;
        }
      }
    }
    EXPECT_TRUE(same_bits(on_device.read(), expected)) << hidden;
  }
}

TEST_F(RouteSm90, MoreExpertsThanThereIsRoomForAreAnError) {
  const DeviceBuffer<float> logits(1025), weights(1);
  const DeviceBuffer<int32_t> experts(1);
  EXPECT_EQ(route_sm90({1, 1025, 1, true, logits.data(), experts.data(), weights.data()}, nullptr).code(),
            StatusCode::kUnsupported);
  GatherExpertsParams gather = {};
  gather.num_rows = 1, gather.num_experts = 1025;
  EXPECT_EQ(gather_experts_sm90(gather, nullptr).code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace otr::route_sm90_test
