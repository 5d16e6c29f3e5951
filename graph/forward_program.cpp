#include "graph/forward_program.h"

#include <cmath>
#include <cstring>
#include <string>

#include "kernels/base/thread_pool.h"

namespace otr {

Result<ForwardProgram> ForwardProgram::create(const KernelTable& kernels, const ModelWeights& weights,
                                              const QuantizedWeights* quantized, const KvLayout& layout, Element* pages,
                                              ProgramBucket bucket, ThreadPool& pool, float* logits) {
  // The vector form of rope+append has no tail; one rule for all paths, so that a model runs on each or on none.
  constexpr int32_t kHeadDimStep = 32;
  if (layout.head_dim % kHeadDimStep != 0) {
    return unsupported("head_dim " + std::to_string(layout.head_dim) + " is not a multiple of " + std::to_string(kHeadDimStep));
  }
  ForwardProgram program;
  program.bucket_ = bucket;
  OTR_RETURN_IF_ERROR(program.allocate(weights.config(), bucket, logits));
  program.build({kernels, weights, quantized, layout, pages, pool});
  return program;
}

Status ForwardProgram::allocate(const ModelConfig& c, ProgramBucket bucket, float* logits) {
  const int64_t rows = bucket.max_rows, q_size = int64_t{c.num_heads} * c.head_dim;
  const int64_t qkv_size = q_size + 2 * int64_t{c.num_kv_heads} * c.head_dim;
  Buffers& b = buffers_;
  OTR_ASSIGN_OR_RETURN(b.residual, Buffer<float>::create(rows * c.hidden_size, "residual"));
  OTR_ASSIGN_OR_RETURN(b.normed, Buffer<Element>::create(rows * linear_padded(c.hidden_size), "activations"));
  OTR_ASSIGN_OR_RETURN(b.qkv, Buffer<float>::create(rows * qkv_size, "activations"));
  OTR_ASSIGN_OR_RETURN(b.q, Buffer<Element>::create(rows * q_size, "activations"));
  OTR_ASSIGN_OR_RETURN(b.attended, Buffer<Element>::create(rows * linear_padded(q_size), "activations"));
  OTR_ASSIGN_OR_RETURN(b.activated, Buffer<Element>::create(rows * linear_padded(c.intermediate_size), "activations"));
  OTR_ASSIGN_OR_RETURN(b.cos, Buffer<float>::create(rows * c.head_dim / 2, "rope table"));
  OTR_ASSIGN_OR_RETURN(b.sin, Buffer<float>::create(rows * c.head_dim / 2, "rope table"));
  OTR_ASSIGN_OR_RETURN(b.logit_normed, Buffer<Element>::create(bucket.max_logit_rows * linear_padded(c.hidden_size), "activations"));
  if (logits == nullptr) {
    OTR_ASSIGN_OR_RETURN(b.logits, Buffer<float>::create(int64_t{bucket.max_logit_rows} * c.vocab_size, "logits"));
  }
  logits_ = logits != nullptr ? logits : b.logits.data();
  OTR_ASSIGN_OR_RETURN(b.fault, Buffer<uint8_t>::create(rows, "fault flags"));
  return {};
}

void ForwardProgram::build(const Parts& parts) {
  const KernelTable& k = parts.kernels;
  const ModelWeights& w = parts.weights;
  ThreadPool& pool = parts.pool;
  const ModelConfig& c = w.config();
  Buffers& b = buffers_;
  launches_.push_back([=, &pool, fault = b.fault.data(), out = b.residual.data(), table = w.embedding(),
                       packed = c.tie_word_embeddings ? w.lm_head().packed : nullptr, hidden = c.hidden_size,
                       op = k.embed](const RowBatch& rows) {
    std::memset(fault, 0, static_cast<size_t>(rows.num_rows));
    op({rows.num_rows, hidden, rows.token_ids, table, packed, out}, pool);
  });
  const RopeTableParams rope{.num_rows = 0, .half_dim = c.head_dim / 2, .positions = nullptr, .inv_freq = w.inv_freq(), .scale = w.rope_scale(),
                             .cos = b.cos.data(), .sin = b.sin.data()};
  launches_.push_back([=, &pool, op = k.rope_table](const RowBatch& rows) {
    RopeTableParams p = rope;
    p.num_rows = rows.num_rows;
    p.positions = rows.positions;
    op(p, pool);
  });
  for (int32_t layer = 0; layer < c.num_layers; ++layer) build_layer(parts, layer);

  const RmsNormParams norm{.num_rows = 0, .hidden_size = c.hidden_size, .eps = static_cast<float>(c.rms_norm_eps), .x = b.residual.data(),
                           .row_index = nullptr, .weight = w.final_norm(), .out = b.logit_normed.data(),
                           .out_stride = linear_padded(c.hidden_size)};
  launches_.push_back([=, &pool, op = k.rmsnorm](const RowBatch& rows) {
    RmsNormParams p = norm;
    p.num_rows = rows.num_logit_rows;
    p.row_index = rows.logit_rows;
    op(p, pool);
  });
  const auto logit_rows = [](const RowBatch& rows) { return rows.num_logit_rows; };
  const LinearW4Weight* quantized_head = parts.quantized != nullptr ? &parts.quantized->lm_head() : nullptr;
  add_linear(parts, w.lm_head(), quantized_head, b.logit_normed.data(), {.sums = logits_}, logit_rows);
}

// Rows: how many the launch has of those in the batch.
template <typename Rows>
void ForwardProgram::add_linear(const Parts& parts, const LinearWeight& weight, const LinearW4Weight* quantized, const Element* x,
                                const Output& out, const Rows& num_rows) {
  ThreadPool& pool = parts.pool;
  const auto launch = [&](const auto& base, auto op) {
    launches_.push_back([base, op, num_rows, &pool](const RowBatch& rows) {
      auto p = base;
      p.num_rows = num_rows(rows);
      op(p, pool);
    });
  };
  const int64_t x_stride = linear_padded(weight.in_features);
  const float* residual = out.add_residual ? out.sums : nullptr;
  if (quantized != nullptr) {
    launch(LinearW4Params{.num_rows = 0, .weight = *quantized, .x = x, .x_stride = x_stride, .residual = residual,
                          .out = out.sums, .out_stride = weight.out_features, .gated = out.gated, .gated_stride = out.gated_stride},
           parts.kernels.linear_w4);
  } else {
    launch(LinearParams{.num_rows = 0, .weight = weight, .x = x, .x_stride = x_stride, .residual = residual,
                        .out = out.sums, .out_stride = weight.out_features, .gated = out.gated, .gated_stride = out.gated_stride},
           parts.kernels.linear);
  }
}

void ForwardProgram::build_layer(const Parts& parts, int32_t layer) {
  const KernelTable& k = parts.kernels;
  const ModelConfig& c = parts.weights.config();
  const LayerWeights& lw = parts.weights.layers()[static_cast<size_t>(layer)];
  const QuantizedWeights::Layer* quantized = parts.quantized != nullptr ? &parts.quantized->layers()[static_cast<size_t>(layer)] : nullptr;
  const KvLayout& layout = parts.layout;
  Element* pages = parts.pages;
  ThreadPool& pool = parts.pool;
  Buffers& b = buffers_;
  const float eps = static_cast<float>(c.rms_norm_eps);
  const int64_t padded_hidden = linear_padded(c.hidden_size), q_size = int64_t{c.num_heads} * c.head_dim;

  const auto rmsnorm = [&](const float* weight) {
    const RmsNormParams base{.num_rows = 0, .hidden_size = c.hidden_size, .eps = eps, .x = b.residual.data(), .row_index = nullptr,
                             .weight = weight, .out = b.normed.data(), .out_stride = padded_hidden};
    launches_.push_back([base, op = k.rmsnorm, &pool](const RowBatch& rows) {
      RmsNormParams p = base;
      p.num_rows = rows.num_rows;
      op(p, pool);
    });
  };
  const auto all_rows = [](const RowBatch& rows) { return rows.num_rows; };
  const auto linear = [&](LinearWeight LayerWeights::*weight, LinearW4Weight QuantizedWeights::Layer::*weight_w4, const Element* x,
                          const Output& out) {
    add_linear(parts, lw.*weight, quantized != nullptr ? &(quantized->*weight_w4) : nullptr, x, out, all_rows);
  };

  rmsnorm(lw.input_norm);
  linear(&LayerWeights::qkv, &QuantizedWeights::Layer::qkv, b.normed.data(), {.sums = b.qkv.data()});
  const RopeAppendParams append{.rows = nullptr, .layer = layer, .num_heads = c.num_heads, .layout = layout, .qkv = b.qkv.data(),
                                .q_norm = lw.q_norm, .k_norm = lw.k_norm, .norm_eps = eps, .cos = b.cos.data(), .sin = b.sin.data(),
                                .q = b.q.data(), .pages = pages, .fault = b.fault.data()};
  launches_.push_back([append, op = k.rope_append, &pool](const RowBatch& rows) {
    RopeAppendParams p = append;
    p.rows = &rows;
    op(p, pool);
  });
  const AttentionParams attend{.rows = nullptr, .layer = layer, .num_heads = c.num_heads, .layout = layout,
                               .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)), .q = b.q.data(), .pages = pages,
                               .out = b.attended.data(), .out_stride = linear_padded(q_size)};
  launches_.push_back([attend, op = k.attention, &pool](const RowBatch& rows) {
    AttentionParams p = attend;
    p.rows = &rows;
    op(p, pool);
  });
  linear(&LayerWeights::o, &QuantizedWeights::Layer::o, b.attended.data(), {.sums = b.residual.data(), .add_residual = true});
  rmsnorm(lw.post_norm);
  linear(&LayerWeights::gate_up, &QuantizedWeights::Layer::gate_up, b.normed.data(),
         {.gated = b.activated.data(), .gated_stride = linear_padded(c.intermediate_size)});
  linear(&LayerWeights::down, &QuantizedWeights::Layer::down, b.activated.data(),
         {.sums = b.residual.data(), .add_residual = true});
}

void ForwardProgram::run(const RowBatch& rows) const {
  for (const Launch& launch : launches_) launch(rows);
}

int64_t ForwardProgram::buffer_bytes() const {
  const Buffers& b = buffers_;
  return static_cast<int64_t>(b.residual.bytes() + b.normed.bytes() + b.qkv.bytes() + b.q.bytes() + b.attended.bytes() +
                              b.activated.bytes() + b.cos.bytes() + b.sin.bytes() + b.logit_normed.bytes() +
                              b.logits.bytes() + b.fault.bytes());
}

}  // namespace otr
