// ForwardProgram: the forward pass as a fixed list of launches over preassigned buffers.
//
// Built once. What varies from tick to tick (which rows, of which sequences, at which positions, on which pages, whose logits)
// is data in a RowBatch. On the CPU a program is a plain launch list and serves every row count up to its bucket. On a device
// the layers are captured (program_pool.h), one launch a pass; the two launches behind them, of as many rows as logits are
// wanted, follow it.
//
//   embed -> { rmsnorm -> qkv -> rope+append -> attention -> o (+residual) -> rmsnorm -> silu(gate) up -> down (+residual) }
//         -> rmsnorm of the logit rows -> lm_head
// with expert_mix.h or, on a device, device_expert_mix.h in place of a layer's last two where it has experts.
//
// Errors: create() gives kOutOfMemory, kUnsupported for a shape that the kernels do not take, or kInternal for
// options.logits_of with too few rows. A pass that fails on a device says so at Accelerator::wait(). Thread safety: run() by
// one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "graph/device_expert_mix.h"
#include "graph/device_rows.h"
#include "graph/expert_mix.h"
#include "graph/layer_gate.h"
#include "graph/linear_launch.h"
#include "graph/model_weights.h"
#include "graph/program_pool.h"
#include "graph/quantized_weights.h"
#include "kernels/base/row_batch.h"
#include "kernels/dispatch.h"
#include "kernels/page/page.h"
#include "memory/buffer.h"

namespace otr {

struct ProgramBucket {
  int32_t max_rows;
  int32_t max_logit_rows;
  int32_t max_copies = 0;
};

class ForwardProgram;

// What a program has from others, and its place among a device's captures.
struct ProgramOptions {
  // Another program, of as many logit rows or more and of the same vocabulary, that never needs its logits when this one does:
  // where this one's go; it outlives this one's runs. Null: its own.
  const ForwardProgram* logits_of = nullptr;
  // Another program of the same model, which runs at other times: its buffers, if it has as many rows. It outlives this one's
  // runs.
  const ForwardProgram* share = nullptr;
  ProgramRole role = ProgramRole::kTarget;
  // On a device:
  ProgramPool* programs = nullptr;
  int32_t max_pages_per_sequence = 0;
};

class ForwardProgram {
 public:
  // All arguments outlive the program. `quantized`, if not null, takes the place of the linear weights. `pages`: [num_pages]
  // [layout.page_elements()].
  static Result<ForwardProgram> create(const KernelTable& kernels, const ModelWeights& weights,
                                       const QuantizedWeights* quantized, const KvLayout& layout, Element* pages,
                                       ProgramBucket bucket, const LaunchContext& on, const ProgramOptions& options = {});

  // REQUIRES: rows within the bucket; every segment's pages are writable at its rows and hold the positions before them.
  // set_tokens(token_ids), if any, is asked on a device before the pass, to launch what sets rows' tokens there. `gate`, if
  // any, on the host alone: positions before the rows may come as late as their layer's turn.
  using SetTokens = std::function<void(int32_t* token_ids)>;
  void run(const RowBatch& rows, const SetTokens& set_tokens = nullptr, LayerGate* gate = nullptr) const;

  // Buffers that are its own give their memory back and get it again, as Buffer::sleep and wake. No run() between them.
  Status sleep();
  Status wake();

  ProgramBucket bucket() const { return bucket_; }
  // Of the last run: one row for each of its logit rows, in order.
  float* logits() const { return logits_; }  // [num_logit_rows][vocab_size]
  // Of the last run, of a target: 1 where a row produced a key or value that is not finite. From a device they come up by
  // themselves: there at the next wait().
  const uint8_t* fault() const { return fault_; }  // [num_rows]

  int64_t buffer_bytes() const;  // of buffers that it does not have from another

 private:
  using Launch = std::function<void(const RowBatch&)>;

  struct Buffers {
    Buffer<float> residual;        // [max_rows][hidden_size]
    Buffer<Element> normed;        // [max_rows][padded hidden_size]
    Buffer<float> qkv;             // [max_rows][(num_heads + 2 num_kv_heads) head_dim]
    Buffer<Element> q;             // [max_rows][num_heads][head_dim]
    Buffer<Element> attended;      // [max_rows][padded num_heads head_dim]
    Buffer<Element> activated;     // [max_rows][padded intermediate_size]
    Buffer<float> cos, sin;        // [max_rows][head_dim / 2]
    Buffer<Element> logit_normed;  // [max_logit_rows][padded hidden_size]
    Buffer<float> logits;          // [max_logit_rows][vocab_size], if they are its own
    Buffer<uint8_t> fault;         // [max_rows]; a device's: fault_mirror
    Mirror fault_mirror;
    Buffer<float> workspace;  // attention's on a device
    ExpertMix mix;
    DeviceExpertMix device_mix;
    int32_t max_rows = 0, max_logit_rows = 0;
    template <typename Visit>
    Status for_each(const Visit& visit);  // until one fails; those that the host reads excepted
  };

  struct Parts {
    const KernelTable& kernels;
    const ModelWeights& weights;
    const QuantizedWeights* quantized;
    KvLayout layout;
    Element* pages;
    LaunchContext on;
  };
  Status allocate(const Parts& parts, const ProgramOptions& options);
  // Elements between rows of `n` activations.
  int64_t row_stride(int64_t n) const { return accelerator_ != nullptr ? linear_padded(n) : linear_row_stride(n); }
  Status allocate_activations(const Parts& parts);
  void populate();
  Status capture(const Parts& parts, const ProgramOptions& options);
  void build(const Parts& parts);
  void build_head(const Parts& parts);
  void build_layer(const Parts& parts, int32_t layer);
  void run_layers(const RowBatch& rows, LayerGate* gate) const;
  // `quantized` may be null. num_rows(batch): rows of the launch.
  template <typename Rows>
  void add_linear(const Parts& parts, const LinearWeight& weight, const LinearW4Weight* quantized, const Element* x,
                  const LinearOutput& out, const Rows& num_rows, std::vector<Launch>* launches);

  // What captures refer to: at one address wherever the program is moved.
  struct Lists {
    std::vector<Launch> layers, head;
    std::vector<size_t> gates;  // by layer: the first of `layers` that touches its pages
    DeviceRows rows;            // on a device
  };

  ProgramBucket bucket_ = {};
  ProgramRole role_ = ProgramRole::kTarget;
  std::shared_ptr<Buffers> buffers_;
  bool owns_buffers_ = true;
  float* logits_ = nullptr;
  uint8_t* device_fault_ = nullptr;  // what launches write: fault_ itself on the host
  const uint8_t* fault_ = nullptr;
  Accelerator* accelerator_ = nullptr;  // null: host
  std::unique_ptr<Lists> lists_;
  ProgramPool::Entry captured_;  // on a device
};

}  // namespace otr
