// AttachedWeights: another process' weights in shared memory, as a source to load a device from.
//
// Pieces lie there as a checkpoint's are packed, so that each is a copy. They may be read again whenever their owner has
// changed them, and not while it does. Errors: attach() as ModelWeights::attach. Thread safety: read() by one thread at a time;
// it uses the pool itself.
#pragma once

#include "graph/model_weights.h"
#include "loader/weight_source.h"

namespace otr {

class AttachedWeights final : public WeightSource {
 public:
  // Takes the files. `converted_tensors`: of their owner's checkpoint.
  static Result<AttachedWeights> attach(const ModelConfig& config, const WeightFiles& files, int64_t converted_tensors);

  Status read(std::span<const WeightTarget> targets, ThreadPool& pool) override;
  int64_t converted_tensors() const override { return converted_tensors_; }

 private:
  AttachedWeights(ModelWeights weights, int64_t converted_tensors)
      : weights_(std::move(weights)), converted_tensors_(converted_tensors) {}

  ModelWeights weights_;
  int64_t converted_tensors_;
};

}  // namespace otr
