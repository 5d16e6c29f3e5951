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
#include "loader/xxh64.h"
#include "memory/mirror.h"

namespace otr {

Result<ModelWeights> ModelWeights::load(const ModelConfig& config, WeightSource& source, const LaunchContext& on,
                                        const DeviceLayouts* device, bool shared) {
  if (shared && on.accelerator != nullptr) return unsupported("weights in shared memory on a device");
  ModelWeights w;
  w.config_ = config;
  w.plan_ = weight_plan(config);
  w.accelerator_ = on.accelerator;
  const WeightPlan& plan = w.plan_;
  const auto make = [&]<typename T>(Buffer<T>* buffer, int64_t size, const char* what) -> Status {
    OTR_ASSIGN_OR_RETURN(
        *buffer, shared ? Buffer<T>::create_shared(size, what, on.pool) : Buffer<T>::create(size, what, on.accelerator));
    return {};
  };
  OTR_RETURN_IF_ERROR(make(&w.packed_, plan.packed_elements, "weights"));
  OTR_RETURN_IF_ERROR(make(&w.embedding_, plan.matrix_elements, "embedding"));
  OTR_RETURN_IF_ERROR(make(&w.vectors_, plan.vector_elements + config.head_dim / 2, "weights"));
  std::vector<float> inv_freq(static_cast<size_t>(config.head_dim / 2));
  w.rope_scale_ = rope_frequencies(config, inv_freq);
  float* at = w.vectors_.data() + plan.vector_elements;
  if (on.accelerator == nullptr) {
    std::vector<WeightTarget> targets;
    for (const WeightPiece& piece : plan.pieces) targets.push_back({&piece, w.address(piece)});
    OTR_RETURN_IF_ERROR(source.read(targets, on.pool));
    std::ranges::copy(inv_freq, at);
  } else {
    OTR_RETURN_IF_ERROR(w.load_to_device(source, on, *device));
    on.accelerator->copy(at, inv_freq.data(), inv_freq.size() * sizeof(float));
    OTR_RETURN_IF_ERROR(on.accelerator->wait());
  }
  w.inv_freq_ = at;
  w.bind();
  return w;
}

// Adds the sums of `size` bytes, `step` at a time. From a device they come up, some steps at once.
Status ModelWeights::add_sums(const void* data, int64_t size, int64_t step, std::vector<uint64_t>* sums) const {
  constexpr int64_t kMost = 64 << 20;
  const int64_t at_once = accelerator_ == nullptr ? size : std::max<int64_t>(kMost / step, 1) * step;
  std::vector<std::byte> here(accelerator_ == nullptr ? 0 : static_cast<size_t>(std::min(size, at_once)));
  for (int64_t begin = 0; begin < size; begin += at_once) {
    const int64_t count = std::min(size - begin, at_once);
    const std::byte* from = static_cast<const std::byte*>(data) + begin;
    if (accelerator_ != nullptr) {
      accelerator_->copy(here.data(), from, static_cast<size_t>(count));
      OTR_RETURN_IF_ERROR(accelerator_->wait());
      from = here.data();
    }
    for (int64_t at = 0; at < count; at += step)
      sums->push_back(frame_sum(from + at, static_cast<size_t>(std::min(step, count - at))));
  }
  return {};
}

// Of linear weights every 16 rows, in the device's order and form, whatever the layout here: an engine on GPUs keeps them in
// rows, and one whose processes are on GPUs as the CPU has them.
Status ModelWeights::add_sums(const WeightPiece& piece, std::vector<uint64_t>* sums) const {
  constexpr int64_t kStep = 64 << 20;
  const void* const data = address(piece);
  if (piece.kind != PieceKind::kLinear) {
    const auto width = static_cast<int64_t>(piece.kind == PieceKind::kVector ? sizeof(float) : sizeof(Element));
    return add_sums(data, piece.elements() * width, kStep, sums);
  }
  const int64_t slab = int64_t{kLinearTileN} * piece.in_features,
                row_bytes = piece.in_features * static_cast<int64_t>(sizeof(Element));
  if (accelerator_ != nullptr) return add_sums(data, piece.out_features * row_bytes, kLinearTileN * row_bytes, sums);
  std::vector<Element> rows(static_cast<size_t>(slab));
  const int32_t half = piece.out_features / 2;  // of a weight in turns: the first part's rows
  for (int32_t row = 0; row < piece.out_features; row += kLinearTileN) {
    const int32_t count = std::min(piece.out_features - row, kLinearTileN), first_of_part = row < half ? 0 : kLinearTileN;
    const int32_t packed_row = piece.in_turns ? (row < half ? row : row - half) * 2 + first_of_part : row;
    linear_unpack_rows(static_cast<const Element*>(data), packed_row, count, piece.in_features, rows.data());
    sums->push_back(frame_sum(rows.data(), static_cast<size_t>(count * row_bytes)));
  }
  return {};
}

Result<uint64_t> ModelWeights::digest() const {
  const ModelConfig& c = config_;
  std::vector<uint64_t> sums;
  for (const WeightPiece& piece : plan_.pieces) OTR_RETURN_IF_ERROR(add_sums(piece, &sums));
  OTR_RETURN_IF_ERROR(add_sums(inv_freq_, c.head_dim / 2 * int64_t{sizeof(float)}, 64, &sums));
  const uint64_t parts[] = {xxh64(sums.data(), sums.size() * sizeof(uint64_t)), std::bit_cast<uint64_t>(c.rms_norm_eps),
                            bits_from_float(rope_scale_), static_cast<uint64_t>(c.architecture)};
  const int32_t sizes[] = {c.hidden_size, c.intermediate_size, c.num_layers, c.num_heads, c.num_kv_heads,
                           c.head_dim,    c.vocab_size,        c.qkv_bias,   c.qk_norm};
  const uint64_t both[] = {xxh64(parts, sizeof parts), xxh64(sizes, sizeof sizes)};
  const uint64_t sum = xxh64(both, sizeof both);
  if (!c.experts) return sum;
  const ExpertsConfig& e = *c.experts;
  std::vector<int32_t> experts = e.dense_layers;
  for (const int32_t n : {e.num_experts, e.experts_per_token, e.intermediate_size, static_cast<int32_t>(e.normalised)})
    experts.push_back(n);
  const uint64_t all[] = {sum, xxh64(experts.data(), experts.size() * sizeof experts[0])};
  return xxh64(all, sizeof all);
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

Status ModelWeights::load_to_device(WeightSource& source, const LaunchContext& on, const DeviceLayouts& device) {
  constexpr int32_t kRowStep = 8;  // elements: rows lie without gaps, each aligned to 16 bytes
  // One tensor map has all experts of a layer, and its strides are multiples of each other.
  if (config_.experts &&
      (config_.hidden_size % kLinearBlockN != 0 || config_.experts->intermediate_size % kLinearBlockN != 0)) {
    return unsupported("a mixture of experts of hidden_size " + std::to_string(config_.hidden_size) +
                       " and moe_intermediate_size " + std::to_string(config_.experts->intermediate_size) +
                       ": the device asks for multiples of 32");
  }
  int64_t most = 0;
  for (const WeightPiece& piece : plan_.pieces) {
    if (piece.kind != PieceKind::kVector && piece.in_features % kRowStep != 0) {
      return unsupported(piece.name + ": " + std::to_string(piece.in_features) +
                         " inputs are not a multiple of 8, as the device asks");
    }
    most = std::max(
        most, piece.elements() * static_cast<int64_t>(piece.kind == PieceKind::kVector ? sizeof(float) : sizeof(Element)));
  }
  OTR_ASSIGN_OR_RETURN(Mirror staging, Mirror::create(most, "loading weights", on.accelerator));
  for (const WeightPiece& piece : plan_.pieces) {
    OTR_RETURN_IF_ERROR(staging.begin());
    OTR_RETURN_IF_ERROR(source.read(piece, staging.host<std::byte>(), on.pool));
    const int64_t bytes =
        piece.elements() * static_cast<int64_t>(piece.kind == PieceKind::kVector ? sizeof(float) : sizeof(Element));
    staging.down(0, bytes);
    if (piece.kind == PieceKind::kLinear) {
      device.rows_from_tiles({.in_features = piece.in_features,
                              .out_features = piece.out_features,
                              .packed = staging.device<Element>(),
                              .bias = nullptr},
                             piece.in_turns, static_cast<Element*>(address(piece)), on);
    } else {
      on.accelerator->copy(address(piece), staging.device<std::byte>(), static_cast<size_t>(bytes));
    }
  }
  return on.accelerator->wait();
}

const void* ModelWeights::address(const WeightPiece& piece) const {
  switch (piece.kind) {
    case PieceKind::kLinear: return packed_.data() + piece.offset;
    case PieceKind::kMatrix: return embedding_.data() + piece.offset;
    case PieceKind::kVector: return vectors_.data() + piece.offset;
  }
  __builtin_unreachable();
}

TensorNames ModelWeights::all_tensors() const {
  TensorNames names;
  for (const WeightPiece& piece : plan_.pieces) {
    for (const PiecePart& part : piece.parts) names.insert(part.tensor);
  }
  return names;
}

Status ModelWeights::sleep() {
  TensorNames missing = all_tensors();  // before anything is lost, as there may be no memory for it
  OTR_RETURN_IF_ERROR(packed_.sleep());
  missing_.swap(missing);
  return embedding_.sleep();
}

Status ModelWeights::wake() {
  OTR_RETURN_IF_ERROR(packed_.wake());
  return embedding_.wake();
}

namespace {

Status wrong(const HostTensor& tensor, const std::string& reason) {
  return invalid_argument(in_quotes(tensor.name) + ": " + reason);
}

Status check_shape(const HostTensor& tensor, const std::vector<int64_t>& shape) {
  if (std::ranges::equal(tensor.shape, shape)) return {};
  return wrong(tensor, "expected shape " + shape_text(shape) + ", found " + shape_text(tensor.shape));
}

Status check_dtype(const HostTensor& tensor) {
  if (dtype_is_loadable(tensor.dtype)) return {};
  return wrong(tensor, "dtype " + std::string(dtype_name(tensor.dtype)) + " cannot be loaded (BF16, F16 and F32 can)");
}

}  // namespace

// Wrappers of a trainer's model put names of theirs in front.
Status ModelWeights::unknown(const HostTensor& tensor) const {
  std::string_view rest = tensor.name;
  for (size_t dot = rest.find('.'); dot != rest.npos; dot = rest.find('.')) {
    rest.remove_prefix(dot + 1);
    if (plan_.place_of(rest).piece == nullptr && stacked_experts(config_, rest).parts.empty()) continue;
    return wrong(tensor, "the model has no such tensor, but it has " + in_quotes(rest));
  }
  return wrong(tensor, "the model has no such tensor");
}

Status ModelWeights::put(const HostTensor& tensor, ThreadPool& pool) {
  const WeightPlan::Place at = plan_.place_of(tensor.name);
  if (at.piece == nullptr) {
    if (tensor.name == kLmHeadWeight) return check_shape(tensor, {config_.vocab_size, config_.hidden_size});
    if (is_never_read(config_, tensor.name)) return {};
    const StackedTensor stacked = stacked_experts(config_, tensor.name);
    return stacked.parts.empty() ? unknown(tensor) : put_stacked(tensor, stacked, pool);
  }
  const WeightPiece& piece = *at.piece;
  const int64_t rows = at.part->out_features, width = piece.in_features;
  std::vector<int64_t> shape = {rows};
  if (piece.kind != PieceKind::kVector) shape.push_back(width);
  OTR_RETURN_IF_ERROR(check_shape(tensor, shape));
  OTR_RETURN_IF_ERROR(check_dtype(tensor));
  OTR_RETURN_IF_ERROR(accelerator_ != nullptr ? put_on_device(tensor, at) : put_on_host(tensor, at, pool));
  if (const auto found = missing_.find(tensor.name); found != missing_.end()) missing_.erase(found);
  return {};
}

Status ModelWeights::put_stacked(const HostTensor& tensor, const StackedTensor& stacked, ThreadPool& pool) {
  OTR_RETURN_IF_ERROR(check_shape(tensor, stacked.shape));
  OTR_RETURN_IF_ERROR(check_dtype(tensor));
  const std::byte* data = tensor.data;
  for (const ExpectedTensor& part : stacked.parts) {
    OTR_RETURN_IF_ERROR(put({part.name, tensor.dtype, part.shape, data}, pool));
    data += part.shape[0] * part.shape[1] * dtype_size(tensor.dtype);
  }
  return {};
}

Status ModelWeights::put_on_host(const HostTensor& tensor, const WeightPlan::Place& at, ThreadPool& pool) {
  const WeightPiece& piece = *at.piece;
  const int64_t rows = at.part->out_features, width = piece.in_features;
  if (piece.kind == PieceKind::kVector) {
    convert_tensor(tensor.dtype, tensor.data, static_cast<size_t>(rows), vectors_.data() + piece.offset + at.first_row);
    return {};
  }
  // Tasks meet between blocks. What has to be converted first fits a core's second-level cache.
  constexpr int64_t kTaskBytes = 256 << 10;
  const int64_t task_rows =
      std::max<int64_t>(1, kTaskBytes / (width * static_cast<int64_t>(sizeof(Element)) * kLinearBlockN)) * kLinearBlockN;
  const int64_t start =
      piece.in_turns ? 0 : at.first_row;  // rows of a tensor that has blocks to itself are split by their own count
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

// bf16 matrices go as they are, wherever they come from. The rest is converted on the host: norms and biases are small, and
// float32 weights are a trainer's exception.
Status ModelWeights::put_on_device(const HostTensor& tensor, const WeightPlan::Place& at) {
  const WeightPiece& piece = *at.piece;
  const int64_t rows = at.part->out_features, width = piece.in_features, size = rows * width;
  const int64_t first_row = piece.in_turns ? at.first_row / kLinearTileN * (piece.out_features / 2) : at.first_row;
  const bool is_vector = piece.kind == PieceKind::kVector;
  const size_t element = is_vector ? sizeof(float) : sizeof(Element);
  std::byte* to = static_cast<std::byte*>(address(piece)) + static_cast<size_t>(first_row * width) * element;
  if (!is_vector && tensor.dtype == Dtype::kBf16) {
    accelerator_->copy(to, tensor.data, static_cast<size_t>(size) * element);
    return accelerator_->wait();
  }
  constexpr int64_t kPiece = 1 << 20;  // elements
  const size_t stored = static_cast<size_t>(dtype_size(tensor.dtype));
  std::vector<std::byte> from(static_cast<size_t>(std::min(size, kPiece)) * stored),
      converted(static_cast<size_t>(std::min(size, kPiece)) * element);
  for (int64_t begin = 0; begin < size; begin += kPiece) {
    const size_t count = static_cast<size_t>(std::min(kPiece, size - begin));
    accelerator_->copy(from.data(), tensor.data + static_cast<size_t>(begin) * stored, count * stored);
    OTR_RETURN_IF_ERROR(accelerator_->wait());
    if (is_vector) convert_tensor(tensor.dtype, from.data(), count, reinterpret_cast<float*>(converted.data()));
    else convert_tensor(tensor.dtype, from.data(), count, reinterpret_cast<Element*>(converted.data()));
    accelerator_->copy(to + static_cast<size_t>(begin) * element, converted.data(), count * element);
    OTR_RETURN_IF_ERROR(accelerator_->wait());
  }
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
  const int32_t run =
      piece.in_turns ? kLinearTileN : num_rows;  // rows that lie together; of a tensor in turns `first` begins one
  for (int32_t row = 0; row < num_rows; row += run) {
    linear_pack_rows(rows + row * width, piece.row_of(at.first_row, first + row), std::min(run, num_rows - row),
                     piece.out_features, piece.in_features, packed_.data() + piece.offset);
  }
}

// Points the named weights at their pieces.
void ModelWeights::bind() {
  const auto vector = [&](const std::string& name) -> const float* { return vectors_.data() + plan_.piece(name).offset; };
  const auto linear = [&](const std::string& name, const float* bias) {
    const WeightPiece& p = plan_.piece(name);
    return LinearWeight{
        .in_features = p.in_features, .out_features = p.out_features, .packed = packed_.data() + p.offset, .bias = bias};
  };
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const std::string prefix = "layers." + std::to_string(i) + ".";
    layers_.push_back({.input_norm = vector(prefix + "input_norm"),
                       .qkv = linear(prefix + "qkv", config_.qkv_bias ? vector(prefix + "qkv_bias") : nullptr),
                       .q_norm = config_.qk_norm ? vector(prefix + "q_norm") : nullptr,
                       .k_norm = config_.qk_norm ? vector(prefix + "k_norm") : nullptr,
                       .o = linear(prefix + "o", nullptr),
                       .post_norm = vector(prefix + "post_norm"),
                       .gate_up = {},
                       .down = {},
                       .router = {},
                       .experts = {}});
    LayerWeights& layer = layers_.back();
    if (!config_.has_experts(i)) {
      layer.gate_up = linear(prefix + "gate_up", nullptr);
      layer.down = linear(prefix + "down", nullptr);
      continue;
    }
    layer.router = linear(prefix + "router", nullptr);
    for (int32_t e = 0; e < config_.experts->num_experts; ++e) {
      const std::string expert = prefix + "experts." + std::to_string(e) + ".";
      layer.experts.push_back({linear(expert + "gate_up", nullptr), linear(expert + "down", nullptr)});
    }
  }
  final_norm_ = vector("final_norm");
  lm_head_ = linear("lm_head", nullptr);
}

}  // namespace otr
