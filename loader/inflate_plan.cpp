#include "loader/inflate_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "kernels/base/philox.h"
#include "loader/weight_names.h"
#include "loader/xxh64.h"

namespace otr {
namespace {

constexpr int32_t kQuantGroup = 128;      // inputs that share a scale when a model is quantised to 4 bits
constexpr float kNoiseStep = 0x1p-20f;    // noise is uniform in ±2^-5: the deviation of fresh weights, 0.018
constexpr double kConstant = 0x1p-32;     // c: too small to round a sum of squares differently
constexpr float kFinalConstant = 0x1p5f;  // the final norm makes of c this, times sqrt(H' / H) / rms
constexpr float kPaddedToken = -0x1p20f;  // -B

// A power of two, exact in bf16, whose square leaves at least half of eps H.
double constant_channel(const ModelConfig& source) {
  const double most = std::sqrt(source.rms_norm_eps * source.hidden_size / 2);
  return std::min(kConstant, std::exp2(std::floor(std::log2(most))));
}

bool has_constant_channel(const ModelConfig& source, const ModelConfig& wide) { return wide.hidden_size > source.hidden_size; }

// 0, 1, … `live` - 1, then `rest`.
IndexMap first_live(int32_t live, int32_t size, int32_t rest) {
  auto map = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(size), rest);
  for (int32_t i = 0; i < live; ++i) (*map)[static_cast<size_t>(i)] = i;
  return map;
}

// Inputs whose dead ones are 0: noise, but not in a group with live ones.
IndexMap hidden_inputs(int32_t live, int32_t size) {
  auto map = std::make_shared<std::vector<int32_t>>(*first_live(live, size, kNoise));
  const int32_t group_end = std::min(size, (live + kQuantGroup - 1) / kQuantGroup * kQuantGroup);
  std::fill(map->begin() + live, map->begin() + group_end, kZero);
  return map;
}

// The source's head that a wide head is, or -1 for a noise head.
struct HeadMap {
  std::vector<int32_t> query, kv;
};

// Wide KV heads that hold copies of one of the source's: enough for its group of queries.
int32_t kv_copies(int32_t group, int32_t wide_group) { return (group + wide_group - 1) / wide_group; }

HeadMap map_heads(const ModelConfig& source, const ModelConfig& wide) {
  const int32_t group = source.num_heads / source.num_kv_heads, wide_group = wide.num_heads / wide.num_kv_heads;
  const int32_t copies = kv_copies(group, wide_group);
  HeadMap map{std::vector<int32_t>(static_cast<size_t>(wide.num_heads), -1),
              std::vector<int32_t>(static_cast<size_t>(wide.num_kv_heads), -1)};
  for (int32_t kv = 0; kv < source.num_kv_heads; ++kv) {
    for (int32_t i = 0; i < copies; ++i) map.kv[static_cast<size_t>(kv * copies + i)] = kv;
    for (int32_t i = 0; i < group; ++i) map.query[static_cast<size_t>(kv * copies * wide_group + i)] = kv * group + i;
  }
  return map;
}

// Rows (or columns) of heads; `dead` is what a live head has between the live, and `noise_head` what other heads have.
IndexMap head_rows(const std::vector<int32_t>& heads, const ModelConfig& source, const ModelConfig& wide, bool rope,
                   int32_t dead, int32_t noise_head) {
  const int32_t dim = source.head_dim, wide_dim = wide.head_dim, stretch = wide_dim / dim;
  auto map = std::make_shared<std::vector<int32_t>>();
  for (const int32_t head : heads) {
    const size_t first = map->size();
    map->resize(first + static_cast<size_t>(wide_dim), head < 0 ? noise_head : dead);
    for (int32_t i = 0; head >= 0 && i < dim; ++i) {
      const int32_t half = i / (dim / 2), pair = i % (dim / 2);
      const int32_t at = rope ? half * (wide_dim / 2) + pair * stretch : i;
      (*map)[first + static_cast<size_t>(at)] = head * dim + i;
    }
  }
  return map;
}

class Planner {
 public:
  Planner(const ModelConfig& source, const ModelConfig& wide)
      : source_(source),
        wide_(wide),
        norm_scale_(std::sqrt(static_cast<double>(source.hidden_size) / wide.hidden_size)),
        query_scale_(std::sqrt(static_cast<double>(wide.head_dim) / source.head_dim)),
        constant_(static_cast<float>(constant_channel(source))),
        one_row_(first_live(1, 1, kZero)),
        stream_(first_live(source.hidden_size, wide.hidden_size, kZero)),
        inputs_(hidden_inputs(source.hidden_size, wide.hidden_size)) {
    const HeadMap heads = map_heads(source, wide);
    q_ = head_rows(heads.query, source, wide, /*rope=*/true, kZero, kNoise);
    k_ = head_rows(heads.kv, source, wide, /*rope=*/true, kNoise, kNoise);
    v_ = head_rows(heads.kv, source, wide, /*rope=*/false, kNoise, kNoise);
    o_ = head_rows(heads.query, source, wide, /*rope=*/false, kZero, kZero);
    mlp_ = first_live(source.intermediate_size, wide.intermediate_size, kNoise);
    down_ = first_live(source.intermediate_size, wide.intermediate_size, kZero);
  }

  // `narrow`: the same tensor of the source, null if it has none.
  InflatedTensor plan(const ExpectedTensor& expected, const ExpectedTensor* narrow, bool added_layer) {
    InflatedTensor tensor;
    tensor.name = expected.name;
    tensor.shape = expected.shape;
    if (narrow != nullptr) {
      tensor.source = narrow->name;
      tensor.source_shape = narrow->shape;
    }
    const std::string& name = expected.name;
    if (name == kEmbeddingWeight || name == kLmHeadWeight) {
      plan_vocabulary(&tensor);
    } else if (name.ends_with("norm.weight")) {
      tensor.rows = one_row_;
      tensor.columns = stream_;
      tensor.scale = norm_scale_;
      if (name == kFinalNormWeight) set_constant(&tensor, kFinalConstant / constant_, 0);
    } else if (added_layer) {
      plan_added(&tensor);
    } else {
      plan_linear(&tensor);
    }
    return tensor;
  }

 private:
  void set_constant(InflatedTensor* tensor, float live, float noise) const {
    if (!has_constant_channel(source_, wide_)) return;
    tensor->constant_column = wide_.hidden_size - 1;
    tensor->live_constant = live;
    tensor->noise_constant = noise;
  }

  void plan_vocabulary(InflatedTensor* tensor) const {
    const bool is_embedding = tensor->name == kEmbeddingWeight;
    const bool is_head = !is_embedding || wide_.tie_word_embeddings;
    tensor->rows = first_live(source_.vocab_size, wide_.vocab_size, kNoise);
    tensor->columns = is_embedding ? stream_ : inputs_;
    set_constant(tensor, is_embedding ? constant_ : 0, is_head ? kPaddedToken : constant_);
  }

  void plan_linear(InflatedTensor* tensor) const {
    const std::string& name = tensor->name;
    const auto is = [&](const char* part) { return name.find(part) != std::string::npos; };
    IndexMap outputs = is("q_proj")                       ? q_
                       : is("k_proj")                     ? k_
                       : is("v_proj")                     ? v_
                       : is("gate_proj") || is("up_proj") ? mlp_
                                                          : stream_;
    if (is("q_proj")) tensor->scale = query_scale_;
    tensor->rows = name.ends_with(".bias") ? one_row_ : outputs;
    tensor->columns = name.ends_with(".bias") ? outputs : is("o_proj") ? o_ : is("down_proj") ? down_ : inputs_;
  }

  void plan_added(InflatedTensor* tensor) {
    const bool silent = tensor->name.find("v_proj") != std::string::npos || tensor->name.find("up_proj") != std::string::npos;
    const bool is_vector = tensor->shape.size() == 1;
    tensor->rows = uniform(is_vector ? 1 : tensor->shape[0], silent ? kZero : kNoise);
    tensor->columns = uniform(tensor->shape.back(), kNoise);
  }

  IndexMap uniform(int64_t size, int32_t value) {
    IndexMap& map = uniform_[{size, value}];
    if (!map) map = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(size), value);
    return map;
  }

  const ModelConfig &source_, &wide_;
  const double norm_scale_, query_scale_;
  const float constant_;
  const IndexMap one_row_, stream_, inputs_;
  IndexMap q_, k_, v_, o_, mlp_, down_;
  std::map<std::pair<int64_t, int32_t>, IndexMap> uniform_;
};

void fill_noise(const InflatedTensor& tensor, int64_t row, Element* out) {
  const uint64_t seed = xxh64(tensor.name.data(), tensor.name.size());
  const PhiloxKey key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const int64_t columns = tensor.num_columns();
  for (int64_t first = 0; first < columns; first += 8) {
    const PhiloxBlock block =
        philox4x32(key, PhiloxBlock{{static_cast<uint32_t>(first / 8), static_cast<uint32_t>(row), 0, 0}});
    for (int64_t i = 0; i < std::min<int64_t>(8, columns - first); ++i) {
      const auto bits = static_cast<int16_t>(block.w[i / 2] >> (i % 2 * 16) & 0xffff);
      out[first + i] = to_element(static_cast<float>(bits) * kNoiseStep);
    }
  }
}

std::string ratio_error(const char* what, int32_t wide, const char* rule, int32_t narrow) {
  return std::string(what) + " " + std::to_string(wide) + " " + rule + " the model's " + std::to_string(narrow);
}

}  // namespace

Result<ModelConfig> inflated_config(const ModelConfig& source, const InflateShape& shape) {
  if (source.architecture != Architecture::kQwen2) {
    return unsupported("only qwen2 models can be inflated, not " + std::string(architecture_name(source.architecture)));
  }
  const auto refuse = [](const std::string& reason) { return unsupported("cannot be widened to this shape: " + reason); };
  const struct {
    const char* what;
    int32_t wide, narrow;
  } sizes[] = {{"hidden", shape.hidden_size, source.hidden_size},
               {"intermediate", shape.intermediate_size, source.intermediate_size},
               {"layers", shape.num_layers, source.num_layers},
               {"head_dim", shape.head_dim, source.head_dim},
               {"vocab", shape.vocab_size, source.vocab_size}};
  for (const auto& size : sizes) {
    if (size.wide < size.narrow) return refuse(ratio_error(size.what, size.wide, "is below", size.narrow));
  }
  if (shape.head_dim % source.head_dim != 0) {
    return refuse(ratio_error("head_dim", shape.head_dim, "is not a multiple of", source.head_dim));
  }
  if (shape.num_heads % shape.num_kv_heads != 0) return refuse("kv_heads does not divide heads");
  const int32_t copies = kv_copies(source.num_heads / source.num_kv_heads, shape.num_heads / shape.num_kv_heads);
  if (copies * source.num_kv_heads > shape.num_kv_heads) {
    return refuse(std::to_string(shape.num_heads) + " heads in " + std::to_string(shape.num_kv_heads) +
                  " groups have no room for the model's " + std::to_string(source.num_heads) + " in " +
                  std::to_string(source.num_kv_heads));
  }
  if (source.yarn && shape.head_dim != source.head_dim) return refuse("YaRN's frequencies depend on head_dim");
  const bool tied = shape.tied.value_or(source.tie_word_embeddings);
  if (tied && !source.tie_word_embeddings) return refuse("the model's lm_head is not its embedding, but this shape's is");
  if (shape.vocab_size > source.vocab_size && shape.hidden_size == source.hidden_size) {
    return refuse("padded vocabulary needs a channel of its own, hidden above " + std::to_string(source.hidden_size));
  }
  ModelConfig wide = source;
  wide.hidden_size = shape.hidden_size;
  wide.intermediate_size = shape.intermediate_size;
  wide.num_layers = shape.num_layers;
  wide.num_heads = shape.num_heads;
  wide.num_kv_heads = shape.num_kv_heads;
  wide.head_dim = shape.head_dim;
  wide.vocab_size = shape.vocab_size;
  wide.tie_word_embeddings = tied;
  if (has_constant_channel(source, wide)) {
    const double c = constant_channel(source);
    wide.rms_norm_eps = (source.rms_norm_eps * source.hidden_size - c * c) / wide.hidden_size;
  }
  return wide;
}

std::vector<InflatedTensor> inflate_plan(const ModelConfig& source, const ModelConfig& wide) {
  std::map<std::string, ExpectedTensor> narrow;
  for (ExpectedTensor& tensor : expected_tensors(source)) narrow.emplace(tensor.name, std::move(tensor));
  Planner planner(source, wide);
  std::vector<InflatedTensor> plan;
  for (const ExpectedTensor& tensor : expected_tensors(wide)) {
    std::string from = tensor.name;
    bool added = false;
    constexpr std::string_view kLayers = "model.layers.";
    if (from.starts_with(kLayers)) {
      const int32_t layer = std::stoi(from.substr(kLayers.size()));
      added = layer >= source.num_layers;
      // An added layer has a live layer's norms, so that its kernels see ordinary numbers.
      if (added) {
        const std::string suffix = from.substr(from.find('.', kLayers.size()) + 1);
        from = suffix.ends_with("norm.weight") ? layer_weight(layer % source.num_layers, suffix) : "";
      }
    } else if (from == kLmHeadWeight && source.tie_word_embeddings) {
      from = kEmbeddingWeight;
    }
    const auto found = narrow.find(from);
    plan.push_back(planner.plan(tensor, found == narrow.end() ? nullptr : &found->second, added));
  }
  return plan;
}

void fill_row(const InflatedTensor& tensor, const Element* source, int64_t row, Element* out) {
  const int32_t from = (*tensor.rows)[static_cast<size_t>(row)];
  const std::vector<int32_t>& columns = *tensor.columns;
  if (from == kZero) {
    std::fill_n(out, columns.size(), Element{});
    return;
  }
  if (from == kNoise || columns.back() == kNoise || std::find(columns.begin(), columns.end(), kNoise) != columns.end()) {
    fill_noise(tensor, row, out);
  }
  if (from >= 0) {
    const Element* live = source + from * tensor.source_shape.back();
    for (size_t c = 0; c < columns.size(); ++c) {
      if (columns[c] == kZero) out[c] = Element{};
      if (columns[c] >= 0)
        out[c] = to_element(static_cast<float>(static_cast<double>(to_float(live[columns[c]])) * tensor.scale));
    }
  }
  if (tensor.constant_column >= 0) {
    out[tensor.constant_column] = to_element(from >= 0 ? tensor.live_constant : tensor.noise_constant);
  }
}

}  // namespace otr
