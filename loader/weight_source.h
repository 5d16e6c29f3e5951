// WeightSource: where a model's weights come from: a Hugging Face folder, an .otr file, or a folder that says of which small
// model they are made (inflated_tensors.h). All open with open_model().
//
// Pieces are filled in parallel, in steps that fit a core's cache, in the order of the file: read, unpacked or packed straight
// to where they belong. There is no copy of a whole tensor in between.
//
// Errors: as Checkpoint and OtrFile say. Thread safety: read() by one thread at a time; it uses the pool itself.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/base/status.h"
#include "loader/model_config.h"
#include "loader/weight_plan.h"

namespace otr {

class ThreadPool;

// A piece of the plan of the source's model, and where it goes: `out` [piece->elements()], Element (linear, matrix) or float
// (vector).
struct WeightTarget {
  const WeightPiece* piece;
  void* out;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Fills the targets. After an error their contents are unspecified; of several faults the first in the file is reported.
  virtual Status read(std::span<const WeightTarget> targets, ThreadPool& pool) = 0;
  Status read(const WeightPiece& piece, void* out, ThreadPool& pool) {
    const WeightTarget one{&piece, out};
    return read({&one, 1}, pool);
  }
  // Tensors read so far whose stored type is not the engine's.
  virtual int64_t converted_tensors() const = 0;
};

struct OpenModel {
  ModelConfig config;
  std::unique_ptr<WeightSource> weights;
};

// `path`: a folder or an .otr file. Everything that can be checked without reading tensor data is checked here.
Result<OpenModel> open_model(const std::string& path);

}  // namespace otr
