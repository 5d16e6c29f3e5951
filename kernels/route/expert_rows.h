// The rows of a mixture of experts, in order of their experts, as a device's products over experts take them: which expert has
// how many rows is known on the device alone, where a list says which tiles of rows there are. (On the host: expert_mix.h.)
//
//   route.h -> gather_experts -> gate_up and down of all experts together (linear_experts, linear_w4_experts) -> combine_experts
//
// Expert e's rows stand side by side, ascending, behind those of all experts below e; an expert that no row takes has no tile.
//
// Thread safety: plain data and pure functions.
#pragma once

#include <cstdint>

#include "kernels/base/element.h"
#include "kernels/base/integers.h"
#include "kernels/linear/linear.h"
#include "kernels/linear_w4/linear_w4.h"

namespace otr {

inline constexpr int32_t kMostRoutedExperts = 1024;  // of a layer, on a device

// Gathered rows first_row … end_row - 1 are of one expert: at most tile_rows.
struct ExpertTile {
  int32_t expert, first_row, end_row;
};
struct ExpertTiles {
  ExpertTile* list = nullptr;  // [max_tiles]
  int32_t* count = nullptr;    // [1]: how many there are
  int32_t max_tiles = 0, tile_rows = 0;
};

// Rows of a tile: a power of two from 8 to `most`. Twice what an expert has on average, for they differ; and no more than there
// are. It decides time alone.
constexpr int32_t expert_tile_rows(int32_t num_rows, int32_t num_experts, int32_t experts_per_token, int32_t most) {
  const int64_t wanted =
      smaller_of<int64_t>(num_rows, divide_up(int64_t{2} * num_rows * experts_per_token, int64_t{num_experts}));
  int32_t rows = 8;
  while (rows < most && rows < wanted) rows *= 2;
  return rows;
}
// Of num_rows rows at most: every expert that is taken may have a tile that is not full.
constexpr int32_t max_expert_tiles(int32_t num_rows, int32_t num_experts, int32_t experts_per_token, int32_t tile_rows) {
  const int32_t taken = num_rows * experts_per_token;
  return smaller_of(taken, taken / tile_rows + num_experts);
}

// Sorts rows by expert, copies them in that order and lists their tiles.
// REQUIRES: num_experts <= kMostRoutedExperts; a row's experts ascend; row_size is a multiple of 8, as are the strides.
struct GatherExpertsParams {
  int32_t num_rows, num_experts, experts_per_token;
  const int32_t* num_rows_at;  // [1], may be null: how many rows there are of num_rows; the others take no expert
  const int32_t* experts;      // [num_rows][experts_per_token]
  const Element* x;            // [num_rows][x_stride]
  int64_t x_stride;
  int32_t row_size;   // elements to copy
  Element* gathered;  // [num_rows * experts_per_token][gathered_stride]
  int64_t gathered_stride;
  int32_t* places;    // [num_rows][experts_per_token]: the row of `gathered` that is this one's for this expert
  ExpertTiles tiles;  // written
};

// One product with the weights of all experts: every row of a tile with its expert's. Rows of no tile are left alone.
template <typename Weight>
struct ExpertProductParams {
  int32_t num_experts;
  Weight weight;          // expert 0's; its bias is not read
  int64_t weight_stride;  // elements of `packed` from an expert's to the next one's; of one expert not read
  int32_t num_rows;       // of x
  const Element* x;       // [num_rows][x_stride], as linear.h asks
  int64_t x_stride;
  float* out;                // [num_rows][weight.out_features]
  Element* gated = nullptr;  // [num_rows][gated_stride]: written instead of `out` where not null
  int64_t gated_stride = 0;
  ExpertTiles tiles;  // read
};
using LinearExpertsParams = ExpertProductParams<LinearWeight>;
using LinearW4ExpertsParams = ExpertProductParams<LinearW4Weight>;

// residual[r][d] += weights[r][i] * made[places[r][i]][d], i ascending, a product and a sum each in float32.
// REQUIRES: hidden_size is a multiple of 4.
struct CombineExpertsParams {
  int32_t num_rows, hidden_size, experts_per_token;
  const int32_t* num_rows_at;  // as above
  const int32_t* places;       // [num_rows][experts_per_token]
  const float* weights;        // [num_rows][experts_per_token]
  const float* made;           // [num_rows * experts_per_token][hidden_size]
  float* residual;             // [num_rows][hidden_size]
};

}  // namespace otr
