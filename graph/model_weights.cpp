#include "graph/model_weights.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>

#include "graph/rope_frequencies.h"
#include "kernels/base/thread_pool.h"
#include "loader/frame_sum.h"
#include "loader/item_status.h"
#include "loader/tensor_data.h"
#include "loader/weight_names.h"
#include "loader/xxh64.h"

namespace otr {

Result<ModelWeights> ModelWeights::load(const ModelConfig& config, WeightSource& source, ThreadPool& pool, bool shared) {
  ModelWeights w;
  w.config_ = config;
  w.plan_ = weight_plan(config);
  const WeightPlan& plan = w.plan_;
  const auto elements = shared ? Buffer<Element>::create_shared : Buffer<Element>::create;
  const auto floats = shared ? Buffer<float>::create_shared : Buffer<float>::create;
  OTR_ASSIGN_OR_RETURN(w.packed_, elements(plan.packed_elements, "weights"));
  OTR_ASSIGN_OR_RETURN(w.embedding_, elements(plan.matrix_elements, "embedding"));
  OTR_ASSIGN_OR_RETURN(w.vectors_, floats(plan.vector_elements + config.head_dim / 2, "weights"));
  std::vector<WeightTarget> targets;
  for (const WeightPiece& piece : plan.pieces) targets.push_back({&piece, w.address(piece)});
  OTR_RETURN_IF_ERROR(source.read(targets, pool));
  float* inv_freq = w.vectors_.data() + plan.vector_elements;
  w.rope_scale_ = rope_frequencies(config, {inv_freq, static_cast<size_t>(config.head_dim / 2)});
  w.inv_freq_ = inv_freq;
  w.bind();
  return w;
}

uint64_t ModelWeights::digest() const {
  const ModelConfig& c = config_;
  const uint64_t parts[] = {frame_sum(packed_.data(), packed_.bytes()),
                            frame_sum(embedding_.data(), embedding_.bytes()),
                            frame_sum(vectors_.data(), vectors_.bytes()),
                            std::bit_cast<uint64_t>(c.rms_norm_eps),
                            bits_from_float(rope_scale_),
                            static_cast<uint64_t>(c.architecture)};
  const int32_t sizes[] = {c.hidden_size, c.intermediate_size, c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim, c.vocab_size,
                           c.qkv_bias,    c.qk_norm};
  const uint64_t both[] = {xxh64(parts, sizeof parts), xxh64(sizes, sizeof sizes)};
  return xxh64(both, sizeof both);
}

Result<ModelWeights> ModelWeights::attach(const ModelConfig& config, const WeightFiles& files) {
  ModelWeights w;
  w.config_ = config;
  w.plan_ = weight_plan(config);
  const int64_t num_freq = config.head_dim / 2;
  Result<Buffer<Element>> packed = Buffer<Element>::attach(files.packed, w.plan_.packed_elements, "weights");
  Result<Buffer<Element>> embedding = Buffer<Element>::attach(files.embedding, w.plan_.matrix_elements, "embedding");
  Result<Buffer<float>> vectors = Buffer<float>::attach(files.vectors, w.plan_.vector_elements + num_freq, "weights");
  OTR_ASSIGN_OR_RETURN(w.packed_, std::move(packed));
  OTR_ASSIGN_OR_RETURN(w.embedding_, std::move(embedding));
  OTR_ASSIGN_OR_RETURN(w.vectors_, std::move(vectors));
  w.inv_freq_ = w.vectors_.data() + w.plan_.vector_elements;
  std::vector<float> frequencies(static_cast<size_t>(num_freq));  // which are there already
  w.rope_scale_ = rope_frequencies(config, frequencies);
  w.bind();
  return w;
}

void* ModelWeights::address(const WeightPiece& piece) {
  switch (piece.kind) {
    case PieceKind::kLinear: return packed_.data() + piece.offset;
    case PieceKind::kMatrix: return embedding_.data() + piece.offset;
    case PieceKind::kVector: return vectors_.data() + piece.offset;
  }
  __builtin_unreachable();
}

Status ModelWeights::put(const HostTensor& tensor, ThreadPool& pool) {
  const auto wrong = [&](const std::string& reason) { return invalid_argument(quoted(tensor.name) + ": " + reason); };
  const WeightPlan::Place at = plan_.place_of(tensor.name);
  if (at.piece == nullptr) return is_never_read(config_, tensor.name) ? Status() : wrong("the model has no such tensor");
  const WeightPiece& piece = *at.piece;
  const int64_t rows = at.part->out_features, width = piece.in_features;
  std::vector<int64_t> shape = {rows};
  if (piece.kind != PieceKind::kVector) shape.push_back(width);
  if (!std::ranges::equal(tensor.shape, shape)) return wrong("expected shape " + shape_text(shape) + ", found " + shape_text(tensor.shape));
  if (!dtype_is_loadable(tensor.dtype)) return wrong("dtype " + std::string(dtype_name(tensor.dtype)) + " cannot be loaded (BF16, F16 and F32 can)");
  if (piece.kind == PieceKind::kVector) {
    convert_tensor(tensor.dtype, tensor.data, static_cast<size_t>(rows), vectors_.data() + piece.offset + at.first_row);
    return {};
  }
  // Tasks meet between blocks. What has to be converted first fits a core's second-level cache.
  constexpr int64_t kTaskBytes = 256 << 10;
  const int64_t task_rows = std::max<int64_t>(1, kTaskBytes / (width * static_cast<int64_t>(sizeof(Element)) * kLinearBlockN)) * kLinearBlockN;
  const int64_t start = piece.in_turns ? 0 : at.first_row;  // rows of a tensor that has blocks to itself are split by their own count
  const int64_t first_task = start / task_rows, num_tasks = (start + rows + task_rows - 1) / task_rows - first_task;
  constexpr Dtype kOwn = std::is_same_v<Element, float> ? Dtype::kF32 : Dtype::kBf16;
  const bool as_it_is = tensor.dtype == kOwn && reinterpret_cast<uintptr_t>(tensor.data) % alignof(Element) == 0;
  std::vector<Element> converted(as_it_is ? 0 : static_cast<size_t>(std::min(task_rows, rows) * width * pool.num_threads()));
  pool.parallel_for(static_cast<int>(num_tasks), [&](int task, int thread) {
    const int64_t begin = std::max(start, (first_task + task) * task_rows) - start;
    const int64_t end = std::min(start + rows, (first_task + task + 1) * task_rows) - start;
    const std::byte* stored = tensor.data + begin * width * dtype_size(tensor.dtype);
    const Element* values = reinterpret_cast<const Element*>(stored);
    if (!as_it_is) {
      Element* mine = converted.data() + std::min(task_rows, rows) * width * thread;
      convert_tensor(tensor.dtype, stored, static_cast<size_t>((end - begin) * width), mine);
      values = mine;
    }
    put_rows(at, static_cast<int32_t>(begin), static_cast<int32_t>(end - begin), values);
  });
  return {};
}

// Writes rows [num_rows][in_features], of the tensor that belongs there from its row `first` on, into the piece's arena.
void ModelWeights::put_rows(const WeightPlan::Place& at, int32_t first, int32_t num_rows, const Element* rows) {
  const WeightPiece& piece = *at.piece;
  const int64_t width = piece.in_features;
  if (piece.kind == PieceKind::kMatrix) {
    std::copy_n(rows, num_rows * width, embedding_.data() + piece.offset + (at.first_row + first) * width);
    return;
  }
  const int32_t run = piece.in_turns ? kLinearTileN : num_rows;  // rows that lie together; of a tensor in turns `first` begins one
  for (int32_t row = 0; row < num_rows; row += run) {
    linear_pack_rows(rows + row * width, piece.row_of(at.first_row, first + row), std::min(run, num_rows - row), piece.out_features,
                     piece.in_features, packed_.data() + piece.offset);
  }
}

// Points the named weights at their pieces.
void ModelWeights::bind() {
  const auto vector = [&](const std::string& name) -> const float* { return vectors_.data() + plan_.piece(name).offset; };
  const auto linear = [&](const std::string& name, const float* bias) {
    const WeightPiece& p = plan_.piece(name);
    return LinearWeight{.in_features = p.in_features, .out_features = p.out_features, .packed = packed_.data() + p.offset, .bias = bias};
  };
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const std::string prefix = "layers." + std::to_string(i) + ".";
    layers_.push_back({.input_norm = vector(prefix + "input_norm"),
                       .qkv = linear(prefix + "qkv", config_.qkv_bias ? vector(prefix + "qkv_bias") : nullptr),
                       .q_norm = config_.qk_norm ? vector(prefix + "q_norm") : nullptr,
                       .k_norm = config_.qk_norm ? vector(prefix + "k_norm") : nullptr,
                       .o = linear(prefix + "o", nullptr),
                       .post_norm = vector(prefix + "post_norm"),
                       .gate_up = linear(prefix + "gate_up", nullptr),
                       .down = linear(prefix + "down", nullptr)});
  }
  final_norm_ = vector("final_norm");
  lm_head_ = linear("lm_head", nullptr);
}

}  // namespace otr
