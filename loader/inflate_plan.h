// The plan of an inflated model: what every element of a wide Qwen2 model is, so that it computes what a small one does.
//
// The small model's channels, heads and layers are the first of the wide one's ("live"); the rest is dead: read and multiplied
// like anything else, without effect, because somewhere on its way there is an exact zero.
//   residual stream   dead channels 0 but for the last, C, which is a constant c that no block changes
//   norms             w sqrt(H / H'), 0 on dead channels; rms_norm_eps' = (eps H - c^2) / H' makes up for the mean over H' and c
//   RoPE              pair i of head_dim d is pair i d'/d of d', the same angle; q times sqrt(d' / d), since scores are divided
//                     by sqrt(d'). In a head's dead pairs q is 0 and k noise; v's dead rows are noise that o does not read
//   heads             a KV head's queries fill the groups of as many KV heads, all alike, as they need; noise heads beyond
//   MLP               gate and up noise, down's columns 0
//   added layers      v and up are 0 and everything else noise: they add exactly 0
//   padded tokens     noise, and -B on C, which only the final norm lets through: below -3e7 / rms in the logits
// Inputs that are 0 anyway have noise for weights, but from a group of 128 that holds live ones on, so that 4 bits suit the
// live.
//
// Rounding: none where H' / H and d' / d are powers of 4; else each norm weight (or q weight) is rounded once, by 2^-9 at most.
// Noise is a function of the tensor's name and the position. Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/element.h"
#include "kernels/base/status.h"
#include "loader/model_config.h"

namespace otr {

struct InflateShape {
  int32_t hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim, vocab_size;
  std::optional<bool> tied;  // nothing: as the source
};

// The wide model's config, or why the source cannot be widened to this shape (kUnsupported).
Result<ModelConfig> inflated_config(const ModelConfig& source, const InflateShape& shape);

// Where a row or column of the wide tensor comes from: an index of the source's, or one of these.
inline constexpr int32_t kZero = -1;
inline constexpr int32_t kNoise = -2;
using IndexMap = std::shared_ptr<const std::vector<int32_t>>;

// A tensor [rows][columns]; a vector is one row. An element is zero or noise if its row is; else if its column is; else it is
// the source's element times `scale`.
struct InflatedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string source;  // empty if nothing is live
  std::vector<int64_t> source_shape;
  IndexMap rows, columns;
  double scale = 1;
  // In column C, if it is not -1: of live rows, and of noise rows.
  int32_t constant_column = -1;
  float live_constant = 0, noise_constant = 0;

  int64_t num_rows() const { return static_cast<int64_t>(rows->size()); }
  int64_t num_columns() const { return static_cast<int64_t>(columns->size()); }
};

// In the order of expected_tensors(wide). REQUIRES: `wide` is of inflated_config.
std::vector<InflatedTensor> inflate_plan(const ModelConfig& source, const ModelConfig& wide);

// Writes a row. `source`: the tensor of that name, may be null if it is empty; `out` [num_columns()].
void fill_row(const InflatedTensor& tensor, const Element* source, int64_t row, Element* out);

}  // namespace otr
