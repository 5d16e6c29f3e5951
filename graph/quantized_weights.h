// QuantizedWeights: a model's linear weights in 4 bits, lm_head included, for a drafter that is the model itself. Everything
// else (embedding, norms, biases, routers) it shares with the model.
//
// Memory is allocated once; quantize() may be called again whenever the model's weights have changed.
// Errors: create() gives kOutOfMemory. Thread safety: read only but for quantize().
#pragma once

#include <vector>

#include "graph/model_weights.h"
#include "kernels/dispatch.h"
#include "memory/buffer.h"

namespace otr {

class QuantizedWeights {
 public:
  // `source` outlives the object. The content is undefined until quantize().
  // `kernels`: those that read them. `shared`: other processes will attach() them; on the host alone.
  static Result<QuantizedWeights> create(const ModelWeights& source, const KernelTable& kernels, const LaunchContext& on,
                                         bool shared = false);
  // What another process makes of its weights, which `source` is attached to: never to be quantised here. `fd` stays the
  // caller's.
  static Result<QuantizedWeights> attach(const ModelWeights& source, const KernelTable& kernels, int fd);

  // As Buffer::sleep and wake; to be quantised again after a wake().
  Status sleep() { return packed_.sleep(); }
  Status wake() { return packed_.wake(); }

  void quantize(const KernelTable& kernels, const LaunchContext& on);

  struct Expert {
    LinearW4Weight gate_up, down;
  };
  struct Layer {
    LinearW4Weight qkv, o, gate_up, down;
    std::vector<Expert> experts;  // in place of gate_up and down; the router is the model's
  };
  const std::vector<Layer>& layers() const { return layers_; }
  const LinearW4Weight& lm_head() const { return lm_head_; }
  int fd() const { return packed_.fd(); }  // of shared ones
  int64_t bytes() const { return static_cast<int64_t>(packed_.bytes()); }

 private:
  int64_t plan(const ModelWeights& source, const KernelTable& kernels);
  void bind(const KernelTable& kernels);
  // visit(source weight, quantised weight, whether it is gate and up) for each pair.
  template <typename Visit>
  void for_each(const Visit& visit);

  const ModelWeights* source_ = nullptr;
  Buffer<uint8_t> packed_;
  std::vector<Layer> layers_;
  LinearW4Weight lm_head_;
};

}  // namespace otr
