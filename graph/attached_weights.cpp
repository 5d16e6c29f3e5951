#include "graph/attached_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/thread_pool.h"

namespace otr {

Result<AttachedWeights> AttachedWeights::attach(const ModelConfig& config, const WeightFiles& files,
                                                int64_t converted_tensors) {
  OTR_ASSIGN_OR_RETURN(ModelWeights weights, ModelWeights::attach(config, files));
  return AttachedWeights(std::move(weights), converted_tensors);
}

Status AttachedWeights::read(std::span<const WeightTarget> targets, ThreadPool& pool) {
  constexpr size_t kTaskBytes = size_t{1} << 20;  // a core copies it in some 0.1 ms
  for (const WeightTarget& target : targets) {
    const size_t element = target.piece->kind == PieceKind::kVector ? sizeof(float) : sizeof(Element);
    const size_t bytes = static_cast<size_t>(target.piece->elements()) * element;
    const std::byte* const from = static_cast<const std::byte*>(std::as_const(weights_).address(*target.piece));
    pool.parallel_for(static_cast<int>((bytes + kTaskBytes - 1) / kTaskBytes), [&](int task, int) {
      const size_t at = static_cast<size_t>(task) * kTaskBytes;
      std::memcpy(static_cast<std::byte*>(target.out) + at, from + at, std::min(kTaskBytes, bytes - at));
    });
  }
  return {};
}

}  // namespace otr
