// WeightSource: where a model's weights come from: a Hugging Face folder or an .otr file. Both open with open_model().
//
// Errors: as Checkpoint and OtrFile say. Thread safety: read() by one thread at a time; it uses the pool itself.
#pragma once

#include <memory>
#include <string>

#include "kernels/base/status.h"
#include "loader/model_config.h"
#include "loader/weight_plan.h"

namespace otr {

class ThreadPool;

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Fills a piece of the plan of this source's model: `out` [piece.elements()], Element (linear, matrix) or float (vector).
  virtual Status read(const WeightPiece& piece, void* out, ThreadPool& pool) = 0;
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
