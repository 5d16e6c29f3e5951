#include "graph/forward_program.h"

#include <cmath>
#include <optional>
#include <string>

#include "kernels/base/thread_pool.h"

namespace otr {

namespace {

// Levels of a drafted chain that are sent to a device before the host waits.
constexpr int32_t kMaxDraftPasses = 16;

}  // namespace

Result<ForwardProgram> ForwardProgram::create(const KernelTable& kernels, const ModelWeights& weights,
                                              const QuantizedWeights* quantized, const KvLayout& layout, Element* pages,
                                              ProgramBucket bucket, const LaunchContext& on, const ProgramOptions& options) {
  // The vector form of rope+append has no tail; one rule for all paths, so that a model runs on each or on none.
  constexpr int32_t kHeadDimStep = 32;
  if (layout.head_dim % kHeadDimStep != 0) {
    return unsupported("head_dim " + std::to_string(layout.head_dim) + " is not a multiple of " + std::to_string(kHeadDimStep));
  }
  if (layout.packing != kernels.kv_packing) {
    return Status(StatusCode::kInternal, "pages are packed otherwise than " + std::string(kernels.path) + " reads them");
  }
  ForwardProgram program;
  program.bucket_ = bucket;
  program.role_ = options.role;
  program.accelerator_ = on.accelerator;
  program.lists_ = std::make_unique<Lists>();
  const Parts parts{kernels, weights, quantized, layout, pages, on};
  OTR_RETURN_IF_ERROR(program.allocate(parts, options));
  program.build(parts);
  if (on.accelerator != nullptr) OTR_RETURN_IF_ERROR(program.capture(parts, options));
  return program;
}

Status ForwardProgram::allocate(const Parts& parts, const ProgramOptions& options) {
  const ForwardProgram* share = options.share;
  const bool shares = share != nullptr && share->buffers_->max_rows >= bucket_.max_rows &&
                      share->bucket_.max_logit_rows >= bucket_.max_logit_rows;
  const ForwardProgram* lender = options.logits_of != nullptr ? options.logits_of : shares ? share : nullptr;
  if (lender != nullptr && lender->bucket_.max_logit_rows < bucket_.max_logit_rows) {
    return Status(StatusCode::kInternal, "logits for " + std::to_string(bucket_.max_logit_rows) +
                                             " rows, of a program that has room for " +
                                             std::to_string(lender->bucket_.max_logit_rows));
  }
  if (shares) {
    buffers_ = share->buffers_;
    owns_buffers_ = false;
  } else {
    buffers_ = std::make_shared<Buffers>();
    OTR_RETURN_IF_ERROR(allocate_activations(parts));
  }
  Buffers& b = *buffers_;
  if (lender != nullptr) {
    logits_ = lender->logits_;
  } else {
    const int64_t size = int64_t{bucket_.max_logit_rows} * parts.weights.config().vocab_size;
    OTR_ASSIGN_OR_RETURN(b.logits, Buffer<float>::create(size, "logits", accelerator_));
    logits_ = b.logits.data();
  }
  if (owns_buffers_) populate();
  device_fault_ = accelerator_ != nullptr ? b.fault_mirror.device<uint8_t>() : b.fault.data();
  fault_ = accelerator_ != nullptr ? b.fault_mirror.host<uint8_t>() : b.fault.data();
  return {};
}

Status ForwardProgram::allocate_activations(const Parts& parts) {
  const ModelConfig& c = parts.weights.config();
  const int64_t rows = bucket_.max_rows, q_size = int64_t{c.num_heads} * c.head_dim;
  const int64_t qkv_size = q_size + 2 * int64_t{c.num_kv_heads} * c.head_dim;
  Accelerator* a = accelerator_;
  Buffers& b = *buffers_;
  b.max_rows = bucket_.max_rows;
  b.max_logit_rows = bucket_.max_logit_rows;
  OTR_ASSIGN_OR_RETURN(b.residual, Buffer<float>::create(rows * c.hidden_size, "residual", a));
  OTR_ASSIGN_OR_RETURN(b.normed, Buffer<Element>::create(rows * row_stride(c.hidden_size), "activations", a));
  OTR_ASSIGN_OR_RETURN(b.qkv, Buffer<float>::create(rows * qkv_size, "activations", a));
  OTR_ASSIGN_OR_RETURN(b.q, Buffer<Element>::create(rows * q_size, "activations", a));
  OTR_ASSIGN_OR_RETURN(b.attended, Buffer<Element>::create(rows * row_stride(q_size), "activations", a));
  const bool any_dense = !c.experts || !c.experts->dense_layers.empty();
  OTR_ASSIGN_OR_RETURN(b.activated,
                       Buffer<Element>::create(any_dense ? rows * row_stride(c.intermediate_size) : 0, "activations", a));
  if (a == nullptr) {
    OTR_ASSIGN_OR_RETURN(b.mix, ExpertMix::create(c, bucket_.max_rows));
  } else {
    OTR_ASSIGN_OR_RETURN(b.device_mix, DeviceExpertMix::create(c, bucket_.max_rows, a));
  }
  OTR_ASSIGN_OR_RETURN(b.cos, Buffer<float>::create(rows * c.head_dim / 2, "rope table", a));
  OTR_ASSIGN_OR_RETURN(b.sin, Buffer<float>::create(rows * c.head_dim / 2, "rope table", a));
  OTR_ASSIGN_OR_RETURN(b.logit_normed,
                       Buffer<Element>::create(bucket_.max_logit_rows * row_stride(c.hidden_size), "activations", a));
  if (a == nullptr) {
    OTR_ASSIGN_OR_RETURN(b.fault, Buffer<uint8_t>::create(rows, "fault flags"));
    return {};
  }
  OTR_ASSIGN_OR_RETURN(b.fault_mirror, Mirror::create(rows, "fault flags", a));
  const int64_t workspace = parts.kernels.device->attention_workspace(parts.layout, c.num_heads, bucket_.max_rows,
                                                                      static_cast<int>(context_limit(c)));
  OTR_ASSIGN_OR_RETURN(b.workspace, Buffer<float>::create(workspace, "attention", a));
  return {};
}

// The layers, in every bucket. `lists` stays where it is when the program moves.
Status ForwardProgram::capture(const Parts& parts, const ProgramOptions& options) {
  const DeviceRowLimits limits{.max_rows = bucket_.max_rows,
                               .max_logit_rows = bucket_.max_logit_rows,
                               .max_copies = bucket_.max_copies,
                               .max_page_entries = int64_t{bucket_.max_rows} * options.max_pages_per_sequence,
                               .max_under_way = options.role == ProgramRole::kDraft ? kMaxDraftPasses : 1};
  OTR_ASSIGN_OR_RETURN(lists_->rows, DeviceRows::create(limits, parts.on.accelerator));
  const auto launches = [lists = lists_.get()](int32_t rows) {
    const RowBatch padded = lists->rows.padded(rows);
    for (const Launch& launch : lists->layers) launch(padded);
  };
  OTR_ASSIGN_OR_RETURN(captured_, options.programs->add(options.role, bucket_.max_rows, launches));
  return {};
}

void ForwardProgram::build(const Parts& parts) {
  const KernelTable& k = parts.kernels;
  const ModelWeights& w = parts.weights;
  const LaunchContext on = parts.on;
  const ModelConfig& c = w.config();
  Buffers& b = *buffers_;
  std::vector<Launch>& layers = lists_->layers;
  layers.push_back([=, fault = device_fault_, out = b.residual.data(), table = w.embedding(),
                    packed = c.tie_word_embeddings ? w.lm_head().packed : nullptr, hidden = c.hidden_size, clear = k.clear,
                    op = k.embed](const RowBatch& rows) {
    clear(fault, static_cast<size_t>(rows.num_rows), on);
    op({rows.num_rows, hidden, rows.token_ids, table, packed, out}, on);
  });
  const RopeTableParams rope{.num_rows = 0,
                             .half_dim = c.head_dim / 2,
                             .positions = nullptr,
                             .inv_freq = w.inv_freq(),
                             .scale = w.rope_scale(),
                             .cos = b.cos.data(),
                             .sin = b.sin.data()};
  layers.push_back([=, op = k.rope_table](const RowBatch& rows) {
    RopeTableParams p = rope;
    p.num_rows = rows.num_rows;
    p.positions = rows.positions;
    op(p, on);
  });
  for (int32_t layer = 0; layer < c.num_layers; ++layer) build_layer(parts, layer);
  build_head(parts);
}

// What runs on the rows whose logits are wanted.
void ForwardProgram::build_head(const Parts& parts) {
  const ModelWeights& w = parts.weights;
  const ModelConfig& c = w.config();
  Buffers& b = *buffers_;
  const RmsNormParams norm{.num_rows = 0,
                           .hidden_size = c.hidden_size,
                           .eps = static_cast<float>(c.rms_norm_eps),
                           .x = b.residual.data(),
                           .row_index = nullptr,
                           .weight = w.final_norm(),
                           .out = b.logit_normed.data(),
                           .out_stride = row_stride(c.hidden_size)};
  lists_->head.push_back([norm, on = parts.on, op = parts.kernels.rmsnorm](const RowBatch& rows) {
    RmsNormParams p = norm;
    p.num_rows = rows.num_logit_rows;
    p.row_index = rows.logit_rows;
    op(p, on);
  });
  const auto logit_rows = [](const RowBatch& rows) { return rows.num_logit_rows; };
  const LinearW4Weight* quantized_head = parts.quantized != nullptr ? &parts.quantized->lm_head() : nullptr;
  add_linear(parts, w.lm_head(), quantized_head, b.logit_normed.data(), {.sums = logits_}, logit_rows, &lists_->head);
}

// Rows: how many the launch has of those in the batch.
template <typename Rows>
void ForwardProgram::add_linear(const Parts& parts, const LinearWeight& weight, const LinearW4Weight* quantized,
                                const Element* x, const LinearOutput& out, const Rows& num_rows,
                                std::vector<Launch>* launches) {
  const LinearInput in{x, row_stride(weight.in_features)};
  const auto w4 = quantized != nullptr ? std::optional(*quantized) : std::nullopt;
  launches->push_back([&k = parts.kernels, weight, w4, in, out, num_rows, on = parts.on](const RowBatch& rows) {
    launch_linear(k, weight, w4 ? &*w4 : nullptr, num_rows(rows), in, out, on);
  });
}

void ForwardProgram::build_layer(const Parts& parts, int32_t layer) {
  const KernelTable& k = parts.kernels;
  const ModelConfig& c = parts.weights.config();
  const LayerWeights& lw = parts.weights.layers()[static_cast<size_t>(layer)];
  const QuantizedWeights::Layer* quantized =
      parts.quantized != nullptr ? &parts.quantized->layers()[static_cast<size_t>(layer)] : nullptr;
  const KvLayout& layout = parts.layout;
  Element* pages = parts.pages;
  const LaunchContext on = parts.on;
  Buffers& b = *buffers_;
  std::vector<Launch>* launches = &lists_->layers;
  const float eps = static_cast<float>(c.rms_norm_eps);
  const int64_t q_size = int64_t{c.num_heads} * c.head_dim;

  const auto rmsnorm = [&](const float* weight) {
    const RmsNormParams base{.num_rows = 0,
                             .hidden_size = c.hidden_size,
                             .eps = eps,
                             .x = b.residual.data(),
                             .row_index = nullptr,
                             .weight = weight,
                             .out = b.normed.data(),
                             .out_stride = row_stride(c.hidden_size)};
    launches->push_back([base, op = k.rmsnorm, on](const RowBatch& rows) {
      RmsNormParams p = base;
      p.num_rows = rows.num_rows;
      op(p, on);
    });
  };
  const auto all_rows = [](const RowBatch& rows) { return rows.num_rows; };
  const auto linear = [&](LinearWeight LayerWeights::*weight, LinearW4Weight QuantizedWeights::Layer::*weight_w4,
                          const Element* x, const LinearOutput& out) {
    add_linear(parts, lw.*weight, quantized != nullptr ? &(quantized->*weight_w4) : nullptr, x, out, all_rows, launches);
  };

  rmsnorm(lw.input_norm);
  linear(&LayerWeights::qkv, &QuantizedWeights::Layer::qkv, b.normed.data(), {.sums = b.qkv.data()});
  const RopeAppendParams append{.rows = nullptr,
                                .layer = layer,
                                .num_heads = c.num_heads,
                                .layout = layout,
                                .qkv = b.qkv.data(),
                                .q_norm = lw.q_norm,
                                .k_norm = lw.k_norm,
                                .norm_eps = eps,
                                .cos = b.cos.data(),
                                .sin = b.sin.data(),
                                .q = b.q.data(),
                                .pages = pages,
                                .fault = device_fault_};
  lists_->gates.push_back(launches->size());
  launches->push_back([append, op = k.rope_append, on](const RowBatch& rows) {
    RopeAppendParams p = append;
    p.rows = &rows;
    op(p, on);
  });
  const AttentionParams attend{.rows = nullptr,
                               .layer = layer,
                               .num_heads = c.num_heads,
                               .layout = layout,
                               .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
                               .q = b.q.data(),
                               .pages = pages,
                               .out = b.attended.data(),
                               .out_stride = row_stride(q_size),
                               .max_keys = static_cast<int32_t>(context_limit(c)),
                               .workspace = b.workspace.data(),
                               .workspace_size = static_cast<int64_t>(b.workspace.size())};
  launches->push_back([attend, op = k.attention, on](const RowBatch& rows) {
    AttentionParams p = attend;
    p.rows = &rows;
    op(p, on);
  });
  linear(&LayerWeights::o, &QuantizedWeights::Layer::o, b.attended.data(), {.sums = b.residual.data(), .add_residual = true});
  rmsnorm(lw.post_norm);
  if (!lw.experts.empty()) {
    const LinearInput normed{b.normed.data(), row_stride(c.hidden_size)};
    launches->push_back([&k, &lw, quantized, normed, &b, residual = b.residual.data(), on](const RowBatch& rows) {
      if (on.accelerator != nullptr) b.device_mix.run(k, lw, quantized, rows, normed, residual, on);
      else b.mix.run(k, lw, quantized, rows.num_rows, normed, residual, on);
    });
    return;
  }
  linear(&LayerWeights::gate_up, &QuantizedWeights::Layer::gate_up, b.normed.data(),
         {.gated = b.activated.data(), .gated_stride = row_stride(c.intermediate_size)});
  linear(&LayerWeights::down, &QuantizedWeights::Layer::down, b.activated.data(),
         {.sums = b.residual.data(), .add_residual = true});
}

void ForwardProgram::run_layers(const RowBatch& rows, LayerGate* gate) const {
  size_t done = 0;
  if (gate != nullptr) {
    for (size_t layer = 0; layer < lists_->gates.size(); ++layer) {
      for (; done < lists_->gates[layer]; ++done) lists_->layers[done](rows);
      gate->before_layer(static_cast<int32_t>(layer));
    }
  }
  for (; done < lists_->layers.size(); ++done) lists_->layers[done](rows);
}

void ForwardProgram::run(const RowBatch& rows, const SetTokens& set_tokens, LayerGate* gate) const {
  if (accelerator_ == nullptr) {
    run_layers(rows, gate);
    for (const Launch& launch : lists_->head) launch(rows);
    return;
  }
  const int32_t bucket = captured_.bucket_of(rows.num_rows);
  accelerator_->keep(lists_->rows.fill(rows, bucket));
  if (set_tokens) set_tokens(lists_->rows.token_ids());
  captured_.launch(bucket);
  if (role_ == ProgramRole::kTarget) buffers_->fault_mirror.up(0, rows.num_rows);
  RowBatch wanted = lists_->rows.padded(bucket);
  wanted.num_logit_rows = rows.num_logit_rows;
  wanted.logit_rows = lists_->rows.logit_rows();
  for (const Launch& launch : lists_->head) launch(wanted);
}

template <typename Visit>
Status ForwardProgram::Buffers::for_each(const Visit& visit) {
  for (Buffer<float>* b : {&residual, &qkv, &cos, &sin, &logits, &workspace}) OTR_RETURN_IF_ERROR(visit(b));
  for (Buffer<Element>* b : {&normed, &q, &attended, &activated, &logit_normed}) OTR_RETURN_IF_ERROR(visit(b));
  OTR_RETURN_IF_ERROR(mix.for_each(visit));
  return device_mix.for_each(visit);
}

Status ForwardProgram::sleep() {
  return owns_buffers_ ? buffers_->for_each([](auto* b) { return b->sleep(); }) : Status();
}

Status ForwardProgram::wake() {
  if (!owns_buffers_) return {};
  OTR_RETURN_IF_ERROR(buffers_->for_each([](auto* b) { return b->wake(); }));
  populate();
  return {};
}

// No pass is the first one of so many rows: the system clears some 600 KB for each row of a large vocabulary's logits.
void ForwardProgram::populate() {
  static_cast<void>(buffers_->for_each([](auto* b) {
    b->populate();
    return Status();
  }));
}

int64_t ForwardProgram::buffer_bytes() const {
  if (!owns_buffers_) return 0;
  int64_t bytes = static_cast<int64_t>(buffers_->fault.bytes()) + buffers_->fault_mirror.bytes();
  static_cast<void>(buffers_->for_each([&](const auto* b) {
    bytes += static_cast<int64_t>(b->bytes());
    return Status();
  }));
  return bytes;
}

}  // namespace otr
