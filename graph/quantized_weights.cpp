#include "graph/quantized_weights.h"

namespace otr {

template <typename Visit>
void QuantizedWeights::for_each(const Visit& visit) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerWeights& from = source_->layers()[i];
    Layer& to = layers_[i];
    visit(from.qkv, to.qkv);
    visit(from.o, to.o);
    visit(from.gate_up, to.gate_up);
    visit(from.down, to.down);
  }
  visit(source_->lm_head(), lm_head_);
}

namespace {

int64_t packed_bytes(const LinearWeight& w) {  // each weight begins on a cache line
  return (w4_cpu_packed_bytes(w.out_features, w.in_features) + 63) / 64 * 64;
}

}  // namespace

// The bytes that they take.
int64_t QuantizedWeights::plan(const ModelWeights& source) {
  source_ = &source;
  layers_.resize(source.layers().size());
  int64_t bytes = 0;
  for_each([&](const LinearWeight& from, LinearW4Weight&) { bytes += packed_bytes(from); });
  return bytes;
}

void QuantizedWeights::bind() {
  uint8_t* next = packed_.data();
  for_each([&](const LinearWeight& from, LinearW4Weight& to) {
    to = {.in_features = from.in_features, .out_features = from.out_features, .packed = next, .bias = from.bias};
    next += packed_bytes(from);
  });
}

Result<QuantizedWeights> QuantizedWeights::create(const ModelWeights& source, bool shared) {
  QuantizedWeights q;
  const int64_t bytes = q.plan(source);
  constexpr const char* kWhat = "quantised weights";
  OTR_ASSIGN_OR_RETURN(q.packed_, shared ? Buffer<uint8_t>::create_shared(bytes, kWhat) : Buffer<uint8_t>::create(bytes, kWhat));
  q.bind();
  return q;
}

Result<QuantizedWeights> QuantizedWeights::attach(const ModelWeights& source, int fd) {
  QuantizedWeights q;
  OTR_ASSIGN_OR_RETURN(q.packed_, Buffer<uint8_t>::attach(fd, q.plan(source), "quantised weights"));
  q.bind();
  return q;
}

void QuantizedWeights::quantize(const KernelTable& kernels, ThreadPool& pool) {
  for_each([&](const LinearWeight& from, LinearW4Weight& to) {
    kernels.quantize_w4({.weight = from, .packed = packed_.data() + (to.packed - packed_.data())}, pool);
  });
}

}  // namespace otr
