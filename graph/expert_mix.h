// ExpertMix: the MLP of a layer with experts, on the host: rows take the few experts that the router names (route.h), each
// expert runs on its rows together, and what it makes of a row is added to the row's residual stream, times its weight.
//
// A row's experts are added in ascending order, a product and a sum each in float32. Products are row-invariant: which rows
// share an expert does not show. An expert that no row takes is not read.
// Measured by the bench's engine cases on random weights (8 experts of 32, 2048 wide, 768 inside; 2 threads of cpu-avx512): one
// sample decodes at 0.91 of the speed at which what it takes can be read, 16 samples at 0.81 of that of all experts; prefills
// of 512 and 2,048 tokens have 0.83 and 0.95 of the products' rate.
//
// Errors: create() gives kOutOfMemory. Thread safety: run() by one thread at a time.
#pragma once

#include "graph/linear_launch.h"
#include "graph/model_weights.h"
#include "graph/quantized_weights.h"
#include "memory/buffer.h"

namespace otr {

class ExpertMix {
 public:
  ExpertMix() = default;  // of a model without experts
  static Result<ExpertMix> create(const ModelConfig& config, int32_t max_rows);

  // residual [num_rows][hidden_size] += the mixture of what the experts make of `in`. `quantized`, if not null, takes the
  // experts' place; the router stays as it is, so that a drafter mostly asks the experts that its target asks.
  void run(const KernelTable& kernels, const LayerWeights& weights, const QuantizedWeights::Layer* quantized, int32_t num_rows,
           const LinearInput& in, float* residual, const LaunchContext& on);

  // Of all its memory, until one fails.
  template <typename Visit>
  Status for_each(const Visit& visit) {
    for (Buffer<float>* b : {&logits_, &weights_, &row_weights_, &made_}) OTR_RETURN_IF_ERROR(visit(b));
    for (Buffer<Element>* b : {&gathered_, &activated_}) OTR_RETURN_IF_ERROR(visit(b));
    for (Buffer<int32_t>* b : {&experts_, &ends_, &rows_}) OTR_RETURN_IF_ERROR(visit(b));
    return {};
  }

 private:
  void group_rows(int32_t num_rows);

  ExpertsConfig config_;
  int64_t hidden_size_ = 0, hidden_stride_ = 0, inner_stride_ = 0;
  Buffer<float> logits_;       // [max_rows][num_experts]
  Buffer<int32_t> experts_;    // [max_rows][experts_per_token]
  Buffer<float> weights_;      // likewise
  Buffer<int32_t> ends_;       // [num_experts]: of each one's entries of rows_
  Buffer<int32_t> rows_;       // [max_rows * experts_per_token], by expert, ascending
  Buffer<float> row_weights_;  // likewise
  Buffer<Element> gathered_;   // [max_rows][hidden_stride_]: the rows of one expert
  Buffer<Element> activated_;  // [max_rows][inner_stride_]
  Buffer<float> made_;         // [max_rows][hidden_size]
};

}  // namespace otr
