#include "graph/quantized_weights.h"

namespace otr {

template <typename Visit>
void QuantizedWeights::for_each(const Visit& visit) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerWeights& from = source_->layers()[i];
    Layer& to = layers_[i];
    visit(from.qkv, to.qkv, false);
    visit(from.o, to.o, false);
    visit(from.gate_up, to.gate_up, true);
    visit(from.down, to.down, false);
  }
  visit(source_->lm_head(), lm_head_, false);
}

Result<QuantizedWeights> QuantizedWeights::create(const ModelWeights& source, const KernelTable& kernels, Accelerator* accelerator) {
  QuantizedWeights q;
  q.source_ = &source;
  q.layers_.resize(source.layers().size());
  const auto packed_bytes = [&kernels](const LinearWeight& w) {  // each weight begins on a cache line, or where the copy engine can
    return (kernels.w4_packed_bytes(w.out_features, w.in_features) + 127) / 128 * 128;
  };
  int64_t bytes = 0;
  q.for_each([&](const LinearWeight& from, LinearW4Weight&, bool) { bytes += packed_bytes(from); });
  OTR_ASSIGN_OR_RETURN(q.packed_, Buffer<uint8_t>::create(bytes, "quantised weights", accelerator));
  uint8_t* next = q.packed_.data();
  q.for_each([&](const LinearWeight& from, LinearW4Weight& to, bool) {
    to = {.in_features = from.in_features, .out_features = from.out_features, .packed = next, .bias = from.bias};
    next += packed_bytes(from);
  });
  return q;
}

void QuantizedWeights::quantize(const KernelTable& kernels, const LaunchContext& on) {
  for_each([&](const LinearWeight& from, LinearW4Weight& to, bool gated) {
    kernels.quantize_w4({.weight = from, .packed = packed_.data() + (to.packed - packed_.data()), .gated = gated}, on);
  });
}

}  // namespace otr
