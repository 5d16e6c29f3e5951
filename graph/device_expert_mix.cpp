#include "graph/device_expert_mix.h"

namespace otr {

Result<DeviceExpertMix> DeviceExpertMix::create(const ModelConfig& config, int32_t max_rows, Accelerator* accelerator) {
  DeviceExpertMix mix;
  if (!config.experts) return mix;
  mix.config_ = *config.experts;
  mix.hidden_size_ = config.hidden_size;
  mix.hidden_stride_ = linear_padded(config.hidden_size);
  mix.inner_stride_ = linear_padded(mix.config_.intermediate_size);
  Accelerator* a = accelerator;
  const int64_t rows = max_rows, taken = rows * mix.config_.experts_per_token;
  OTR_ASSIGN_OR_RETURN(mix.logits_, Buffer<float>::create(rows * mix.config_.num_experts, "router", a));
  OTR_ASSIGN_OR_RETURN(mix.experts_, Buffer<int32_t>::create(taken, "router", a));
  OTR_ASSIGN_OR_RETURN(mix.weights_, Buffer<float>::create(taken, "router", a));
  OTR_ASSIGN_OR_RETURN(mix.places_, Buffer<int32_t>::create(taken, "router", a));
  OTR_ASSIGN_OR_RETURN(mix.tiles_, Buffer<ExpertTile>::create(taken, "router", a));
  OTR_ASSIGN_OR_RETURN(mix.num_tiles_, Buffer<int32_t>::create(1, "router", a));
  OTR_ASSIGN_OR_RETURN(mix.gathered_, Buffer<Element>::create(taken * mix.hidden_stride_, "experts' activations", a));
  OTR_ASSIGN_OR_RETURN(mix.activated_, Buffer<Element>::create(taken * mix.inner_stride_, "experts' activations", a));
  OTR_ASSIGN_OR_RETURN(mix.made_, Buffer<float>::create(taken * mix.hidden_size_, "experts' activations", a));
  return mix;
}

// made = what each expert makes of its rows. Its weights lie as far from the next one's as the first from the second.
template <typename Weights, typename Params>
void DeviceExpertMix::multiply(const std::vector<Weights>& experts, int32_t taken, const ExpertTiles& tiles,
                               void (*op)(const Params&, const LaunchContext&), const LaunchContext& on) {
  const auto launch = [&](auto Weights::*weight, const Element* x, int64_t x_stride, float* out, Element* gated) {
    op({.num_experts = config_.num_experts,
        .weight = experts[0].*weight,
        .weight_stride = experts.size() > 1 ? (experts[1].*weight).packed - (experts[0].*weight).packed : 0,
        .num_rows = taken,
        .x = x,
        .x_stride = x_stride,
        .out = out,
        .gated = gated,
        .gated_stride = inner_stride_,
        .tiles = tiles},
       on);
  };
  launch(&Weights::gate_up, gathered_.data(), hidden_stride_, nullptr, activated_.data());
  launch(&Weights::down, activated_.data(), inner_stride_, made_.data(), nullptr);
}

void DeviceExpertMix::run(const KernelTable& kernels, const LayerWeights& weights, const QuantizedWeights::Layer* quantized,
                          const RowBatch& rows, const LinearInput& in, float* residual, const LaunchContext& on) {
  const DeviceLayouts& device = *kernels.device;
  const int32_t per_token = config_.experts_per_token, taken = rows.num_rows * per_token;
  launch_linear(kernels, weights.router, nullptr, rows.num_rows, in, {.sums = logits_.data()}, on);
  device.route({.num_rows = rows.num_rows,
                .num_experts = config_.num_experts,
                .experts_per_token = per_token,
                .normalised = config_.normalised,
                .logits = logits_.data(),
                .experts = experts_.data(),
                .weights = weights_.data()},
               on);
  const int32_t tile_rows = expert_tile_rows(rows.num_rows, config_.num_experts, per_token,
                                             quantized != nullptr ? device.linear_w4_tile_rows : device.linear_tile_rows);
  const ExpertTiles tiles{.list = tiles_.data(),
                          .count = num_tiles_.data(),
                          .max_tiles = max_expert_tiles(rows.num_rows, config_.num_experts, per_token, tile_rows),
                          .tile_rows = tile_rows};
  device.gather_experts({.num_rows = rows.num_rows,
                         .num_experts = config_.num_experts,
                         .experts_per_token = per_token,
                         .num_rows_at = rows.num_rows_at,
                         .experts = experts_.data(),
                         .x = in.x,
                         .x_stride = in.x_stride,
                         .row_size = hidden_size_,
                         .gathered = gathered_.data(),
                         .gathered_stride = hidden_stride_,
                         .places = places_.data(),
                         .tiles = tiles},
                        on);
  if (quantized != nullptr) multiply(quantized->experts, taken, tiles, device.linear_w4_experts, on);
  else multiply(weights.experts, taken, tiles, device.linear_experts, on);
  device.combine_experts({.num_rows = rows.num_rows,
                          .hidden_size = hidden_size_,
                          .experts_per_token = per_token,
                          .num_rows_at = rows.num_rows_at,
                          .places = places_.data(),
                          .weights = weights_.data(),
                          .made = made_.data(),
                          .residual = residual},
                         on);
}

}  // namespace otr
