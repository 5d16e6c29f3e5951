// ForwardProgram: the forward pass as a fixed list of launches over preassigned buffers.
//
// Built once. What varies from tick to tick (which rows, of which sequences, at which positions, on which pages, whose logits)
// is data in a RowBatch. On the CPU a program is a plain launch list and serves every row count up to its bucket.
//
//   embed -> { rmsnorm -> qkv -> rope+append -> attention -> o (+residual) -> rmsnorm -> silu(gate) up -> down (+residual) }
//         -> rmsnorm of the logit rows -> lm_head
//
// Errors: create() gives kOutOfMemory, or kUnsupported for a shape that the kernels do not take. Thread safety: run() by one thread at a time.
#pragma once

#include <functional>
#include <vector>

#include "graph/model_weights.h"
#include "graph/quantized_weights.h"
#include "kernels/base/row_batch.h"
#include "kernels/dispatch.h"
#include "kernels/page/page.h"
#include "memory/buffer.h"

namespace otr {

struct ProgramBucket {
  int32_t max_rows;
  int32_t max_logit_rows;
};

class ForwardProgram {
 public:
  // All arguments outlive the program. `quantized`, if not null, takes the place of the linear weights. `pages`: [num_pages]
  // [layout.page_elements()]. `logits`: another program's, of as many rows or more and of the same vocabulary, for programs that never need
  // theirs at the same time; null: its own.
  static Result<ForwardProgram> create(const KernelTable& kernels, const ModelWeights& weights, const QuantizedWeights* quantized,
                                       const KvLayout& layout, Element* pages, ProgramBucket bucket, ThreadPool& pool, float* logits = nullptr);

  // REQUIRES: rows within the bucket; every segment's pages are writable at its rows and hold the positions before them.
  void run(const RowBatch& rows) const;

  ProgramBucket bucket() const { return bucket_; }
  // Of the last run: one row for each of its logit rows, in order.
  float* logits() const { return logits_; }  // [num_logit_rows][vocab_size]
  // Of the last run: 1 where a row produced a key or value that is not finite.
  const uint8_t* fault() const { return buffers_.fault.data(); }  // [num_rows]

  int64_t buffer_bytes() const;

 private:
  using Launch = std::function<void(const RowBatch&)>;

  struct Buffers {
    Buffer<float> residual;      // [max_rows][hidden_size]
    Buffer<Element> normed;      // [max_rows][padded hidden_size]
    Buffer<float> qkv;           // [max_rows][(num_heads + 2 num_kv_heads) head_dim]
    Buffer<Element> q;           // [max_rows][num_heads][head_dim]
    Buffer<Element> attended;    // [max_rows][padded num_heads head_dim]
    Buffer<Element> activated;   // [max_rows][padded intermediate_size]
    Buffer<float> cos, sin;      // [max_rows][head_dim / 2]
    Buffer<Element> logit_normed;  // [max_logit_rows][padded hidden_size]
    Buffer<float> logits;        // [max_logit_rows][vocab_size], if they are its own
    Buffer<uint8_t> fault;       // [max_rows]
  };

  Status allocate(const ModelConfig& config, ProgramBucket bucket, float* logits);
  struct Parts {
    const KernelTable& kernels;
    const ModelWeights& weights;
    const QuantizedWeights* quantized;
    KvLayout layout;
    Element* pages;
    ThreadPool& pool;
  };
  void build(const Parts& parts);
  void build_layer(const Parts& parts, int32_t layer);
  struct Output {  // of a linear: `sums`, or `gated`
    float* sums = nullptr;
    bool add_residual = false;  // what is in `sums`
    Element* gated = nullptr;
    int64_t gated_stride = 0;
  };
  // `quantized` may be null. num_rows(batch): rows of the launch.
  template <typename Rows>
  void add_linear(const Parts& parts, const LinearWeight& weight, const LinearW4Weight* quantized, const Element* x, const Output& out,
                  const Rows& num_rows);

  ProgramBucket bucket_ = {};
  Buffers buffers_;
  float* logits_ = nullptr;
  std::vector<Launch> launches_;
};

}  // namespace otr
