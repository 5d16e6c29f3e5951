#include "graph/expert_mix.h"

#include <algorithm>

#include "kernels/base/thread_pool.h"
#include "kernels/linear/linear.h"
#include "kernels/route/route.h"

namespace otr {

Result<ExpertMix> ExpertMix::create(const ModelConfig& config, int32_t max_rows) {
  ExpertMix mix;
  if (!config.experts) return mix;
  mix.config_ = *config.experts;
  mix.hidden_size_ = config.hidden_size;
  mix.hidden_stride_ = linear_row_stride(config.hidden_size);
  mix.inner_stride_ = linear_row_stride(mix.config_.intermediate_size);
  const int64_t rows = max_rows, taken = rows * mix.config_.experts_per_token;
  OTR_ASSIGN_OR_RETURN(mix.logits_, Buffer<float>::create(rows * mix.config_.num_experts, "router"));
  OTR_ASSIGN_OR_RETURN(mix.experts_, Buffer<int32_t>::create(taken, "router"));
  OTR_ASSIGN_OR_RETURN(mix.weights_, Buffer<float>::create(taken, "router"));
  OTR_ASSIGN_OR_RETURN(mix.ends_, Buffer<int32_t>::create(mix.config_.num_experts, "router"));
  OTR_ASSIGN_OR_RETURN(mix.rows_, Buffer<int32_t>::create(taken, "router"));
  OTR_ASSIGN_OR_RETURN(mix.row_weights_, Buffer<float>::create(taken, "router"));
  OTR_ASSIGN_OR_RETURN(mix.gathered_, Buffer<Element>::create(rows * mix.hidden_stride_, "activations"));
  OTR_ASSIGN_OR_RETURN(mix.activated_, Buffer<Element>::create(rows * mix.inner_stride_, "activations"));
  OTR_ASSIGN_OR_RETURN(mix.made_, Buffer<float>::create(rows * mix.hidden_size_, "activations"));
  return mix;
}

// Sorts what rows take by expert.
void ExpertMix::group_rows(int32_t num_rows) {
  const int32_t taken = num_rows * config_.experts_per_token;
  int32_t* ends = ends_.data();
  std::fill_n(ends, config_.num_experts, 0);
  for (int32_t i = 0; i < taken; ++i) ++ends[experts_.data()[i]];
  for (int32_t e = 0, begin = 0; e < config_.num_experts; ++e) {
    const int32_t count = ends[e];
    ends[e] = begin;
    begin += count;
  }
  for (int32_t i = 0; i < taken; ++i) {
    const int32_t at = ends[experts_.data()[i]]++;
    rows_.data()[at] = i / config_.experts_per_token;
    row_weights_.data()[at] = weights_.data()[i];
  }
}

void ExpertMix::run(const KernelTable& kernels, const LayerWeights& weights, const QuantizedWeights::Layer* quantized,
                    int32_t num_rows, const LinearInput& in, float* residual, const LaunchContext& on) {
  launch_linear(kernels, weights.router, nullptr, num_rows, in, {.sums = logits_.data()}, on);
  route({.num_rows = num_rows,
         .num_experts = config_.num_experts,
         .experts_per_token = config_.experts_per_token,
         .normalised = config_.normalised,
         .logits = logits_.data(),
         .experts = experts_.data(),
         .weights = weights_.data()},
        on.pool);
  group_rows(num_rows);
  for (int32_t e = 0, begin = 0; e < config_.num_experts; begin = ends_.data()[e++]) {
    const int32_t count = ends_.data()[e] - begin;
    if (count == 0) continue;
    const int32_t* rows = rows_.data() + begin;
    const float* row_weights = row_weights_.data() + begin;
    on.pool.parallel_for(count, [&](int i, int) {
      std::copy_n(in.x + rows[i] * in.x_stride, linear_padded(hidden_size_), gathered_.data() + i * hidden_stride_);
    });
    const size_t expert = static_cast<size_t>(e);
    const auto* w4 = quantized != nullptr ? &quantized->experts[expert] : nullptr;
    const ExpertWeights& w = weights.experts[expert];
    launch_linear(kernels, w.gate_up, w4 != nullptr ? &w4->gate_up : nullptr, count, {gathered_.data(), hidden_stride_},
                  {.gated = activated_.data(), .gated_stride = inner_stride_}, on);
    launch_linear(kernels, w.down, w4 != nullptr ? &w4->down : nullptr, count, {activated_.data(), inner_stride_},
                  {.sums = made_.data()}, on);
    on.pool.parallel_for(count, [&](int i, int) {
      float* sum = residual + rows[i] * hidden_size_;
      const float* made = made_.data() + i * hidden_size_;
      for (int64_t d = 0; d < hidden_size_; ++d) sum[d] += row_weights[i] * made[d];
    });
  }
}

}  // namespace otr
