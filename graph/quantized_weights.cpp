#include "graph/quantized_weights.h"

namespace otr {

template <typename Visit>
void QuantizedWeights::for_each(const Visit& visit) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerWeights& from = source_->layers()[i];
    Layer& to = layers_[i];
    visit(from.qkv, to.qkv, false);
    visit(from.o, to.o, false);
    to.experts.resize(from.experts.size());
    for (size_t e = 0; e < from.experts.size(); ++e) {
      visit(from.experts[e].gate_up, to.experts[e].gate_up, true);
      visit(from.experts[e].down, to.experts[e].down, false);
    }
    if (!from.experts.empty()) continue;
    visit(from.gate_up, to.gate_up, true);
    visit(from.down, to.down, false);
  }
  visit(source_->lm_head(), lm_head_, false);
}

namespace {

int64_t packed_bytes(const KernelTable& kernels,
                     const LinearWeight& w) {  // each weight begins on a cache line, or where the copy engine can
  return (kernels.w4_packed_bytes(w.out_features, w.in_features) + 127) / 128 * 128;
}

}  // namespace

// The bytes that they take.
int64_t QuantizedWeights::plan(const ModelWeights& source, const KernelTable& kernels) {
  source_ = &source;
  layers_.resize(source.layers().size());
  int64_t bytes = 0;
  for_each([&](const LinearWeight& from, LinearW4Weight&, bool) { bytes += packed_bytes(kernels, from); });
  return bytes;
}

void QuantizedWeights::bind(const KernelTable& kernels) {
  uint8_t* next = packed_.data();
  for_each([&](const LinearWeight& from, LinearW4Weight& to, bool) {
    to = {.in_features = from.in_features, .out_features = from.out_features, .packed = next, .bias = from.bias};
    next += packed_bytes(kernels, from);
  });
}

Result<QuantizedWeights> QuantizedWeights::create(const ModelWeights& source, const KernelTable& kernels,
                                                  const LaunchContext& on, bool shared) {
  if (shared && on.accelerator != nullptr) return unsupported("weights in shared memory on a device");
  QuantizedWeights q;
  const int64_t bytes = q.plan(source, kernels);
  constexpr const char* kWhat = "quantised weights";
  OTR_ASSIGN_OR_RETURN(q.packed_, shared ? Buffer<uint8_t>::create_shared(bytes, kWhat, on.pool)
                                         : Buffer<uint8_t>::create(bytes, kWhat, on.accelerator));
  q.bind(kernels);
  return q;
}

Result<QuantizedWeights> QuantizedWeights::attach(const ModelWeights& source, const KernelTable& kernels, int fd) {
  QuantizedWeights q;
  OTR_ASSIGN_OR_RETURN(q.packed_, Buffer<uint8_t>::attach(fd, q.plan(source, kernels), "quantised weights"));
  q.bind(kernels);
  return q;
}

void QuantizedWeights::quantize(const KernelTable& kernels, const LaunchContext& on) {
  for_each([&](const LinearWeight& from, LinearW4Weight& to, bool gated) {
    kernels.quantize_w4({.weight = from, .packed = packed_.data() + (to.packed - packed_.data()), .gated = gated}, on);
  });
}

}  // namespace otr
