// The weight plan: what the engine's weight memory consists of, piece by piece, as a function of the config alone.
//
// The three arenas are what ModelWeights allocates: `packed` (linear weights in the kernels' layout), `matrix` (an untied
// embedding, row-major) and `vectors` (norms and biases, float32). A piece names the checkpoint tensors it is stacked from.
// Experts of a layer follow each other, each its gate_up and then its down: the same distance from one to the next.
// Whoever fills the arenas (a Hugging Face folder, an .otr file) or writes them out (convert) walks the same plan.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "loader/model_config.h"

namespace otr {

enum class PieceKind { kLinear, kMatrix, kVector };

struct PiecePart {
  std::string tensor;    // checkpoint name
  int32_t out_features;  // rows of the piece it fills
};

struct WeightPiece {
  std::string name;  // "layers.3.qkv", "embedding", …
  PieceKind kind;
  int32_t out_features;  // of a vector: its length
  int32_t in_features;   // of a vector: 1
  int64_t offset;        // in elements of its arena
  std::vector<PiecePart> parts;
  bool in_turns =
      false;  // the parts do not follow each other: 16 rows of one and 16 of the other take turns, padded to 32 rows each

  // The piece's row that holds row `row` of the part whose first row lies at `first_row`.
  int32_t row_of(int32_t first_row, int32_t row) const {
    return in_turns ? first_row + row / 16 * 32 + row % 16 : first_row + row;
  }
  int64_t elements() const;  // in its arena, padding included
};

struct WeightPlan {
  std::vector<WeightPiece> pieces;
  int64_t packed_elements = 0;
  int64_t matrix_elements = 0;
  int64_t vector_elements = 0;

  // REQUIRES: there is such a piece.
  const WeightPiece& piece(const std::string& name) const { return pieces[by_name.at(name)]; }

  // Where a checkpoint's tensor belongs: rows of a piece, its row r to piece->row_of(first_row, r). Nulls: nowhere.
  struct Place {
    const WeightPiece* piece = nullptr;
    const PiecePart* part = nullptr;
    int32_t first_row = 0;
  };
  Place place_of(std::string_view tensor) const;

  std::unordered_map<std::string, size_t> by_name, by_tensor;  // indices of pieces
};

// A tied model has no piece "embedding": its rows are gathered from "lm_head".
WeightPlan weight_plan(const ModelConfig& config);

}  // namespace otr
