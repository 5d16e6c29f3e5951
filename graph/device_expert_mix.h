// DeviceExpertMix: expert_mix.h on a device: the same sums, of launches that a capture can hold. Which experts have how many
// rows the host never learns; the products find their tiles in a list that the device makes (kernels/route/expert_rows.h).
//
// Row r's bits depend on row r and the weights alone. An expert that no row of the batch takes is not read; rows that pad a
// bucket take none.
//
// Errors: create() gives kOutOfMemory; a launch's are said by Accelerator::wait(). Thread safety: run() by one thread at a
// time.
#pragma once

#include "graph/linear_launch.h"
#include "graph/model_weights.h"
#include "graph/quantized_weights.h"
#include "kernels/base/row_batch.h"
#include "memory/buffer.h"

namespace otr {

class DeviceExpertMix {
 public:
  DeviceExpertMix() = default;  // of a model without experts
  static Result<DeviceExpertMix> create(const ModelConfig& config, int32_t max_rows, Accelerator* accelerator);

  // As ExpertMix::run, for the rows that there are of `rows` when it runs.
  void run(const KernelTable& kernels, const LayerWeights& weights, const QuantizedWeights::Layer* quantized,
           const RowBatch& rows, const LinearInput& in, float* residual, const LaunchContext& on);

  // Of all its memory, until one fails.
  template <typename Visit>
  Status for_each(const Visit& visit) {
    for (Buffer<float>* b : {&logits_, &weights_, &made_}) OTR_RETURN_IF_ERROR(visit(b));
    for (Buffer<Element>* b : {&gathered_, &activated_}) OTR_RETURN_IF_ERROR(visit(b));
    for (Buffer<int32_t>* b : {&experts_, &places_, &num_tiles_}) OTR_RETURN_IF_ERROR(visit(b));
    return visit(&tiles_);
  }

 private:
  template <typename Weights, typename Params>
  void multiply(const std::vector<Weights>& experts, int32_t taken, const ExpertTiles& tiles,
                void (*op)(const Params&, const LaunchContext&), const LaunchContext& on);

  ExpertsConfig config_;
  int32_t hidden_size_ = 0;
  int64_t hidden_stride_ = 0, inner_stride_ = 0;
  Buffer<float> logits_;       // [max_rows][num_experts]
  Buffer<int32_t> experts_;    // [max_rows][experts_per_token]
  Buffer<float> weights_;      // likewise
  Buffer<int32_t> places_;     // likewise
  Buffer<ExpertTile> tiles_;   // [max_rows * experts_per_token]
  Buffer<int32_t> num_tiles_;  // [1]
  Buffer<Element> gathered_;   // [max_rows * experts_per_token][hidden_stride_]
  Buffer<Element> activated_;  // [max_rows * experts_per_token][inner_stride_]
  Buffer<float> made_;         // [max_rows * experts_per_token][hidden_size]
};

}  // namespace otr
