#include "loader/inflated_tensors.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "loader/checkpoint.h"
#include "loader/file.h"
#include "loader/json_document.h"
#include "loader/weight_names.h"

namespace otr {
namespace {

constexpr uint64_t kMaxRecipeBytes = 1 << 16;

Status bad_recipe(const std::string& path, const std::string& why) { return {StatusCode::kBadInput, path + ": " + why}; }

// The folder of the small model.
Result<std::string> read_source(const std::string& folder) {
  const std::string path = join_path(folder, kInflateFile);
  OTR_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxRecipeBytes));
  OTR_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(path, text));
  const JsonValue source = document.root().find("source");
  if (!source || !source.is(JsonKind::kString) || source.as_string().empty())
    return bad_recipe(path, "\"source\" must be a folder");
  const std::string name(source.as_string());
  return name.front() == '/' ? name : join_path(folder, name);
}

// Why `wide` is not what inflating `narrow` to its sizes gives; empty: it is.
std::string mismatch(const ModelConfig& narrow, const ModelConfig& wide) {
  const Result<ModelConfig> made =
      inflated_config(narrow, {wide.hidden_size, wide.intermediate_size, wide.num_layers, wide.num_heads, wide.num_kv_heads,
                               wide.head_dim, wide.vocab_size, wide.tie_word_embeddings});
  if (!made.ok()) return made.status().message();
  if (made.value().rms_norm_eps != wide.rms_norm_eps) return "rms_norm_eps is not that of this source and shape";
  if (made.value().architecture != wide.architecture || made.value().rope_theta != wide.rope_theta)
    return "the source is of another family";
  if (made.value().yarn != wide.yarn) return "its YaRN scaling is not the source's";
  return "";
}

}  // namespace

bool InflatedTensors::is_there(const std::string& folder) { return path_exists(join_path(folder, kInflateFile)); }

Result<InflatedTensors> InflatedTensors::open(const std::string& folder, const ModelConfig& wide) {
  OTR_ASSIGN_OR_RETURN(const std::string source, read_source(folder));
  const std::string path = join_path(folder, kInflateFile);
  if (is_there(source)) return bad_recipe(path, "the source " + source + " is inflated itself");
  OTR_ASSIGN_OR_RETURN(const ModelConfig narrow, load_model_config(source));
  if (const std::string why = mismatch(narrow, wide); !why.empty()) return bad_recipe(path, why);
  OTR_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(source));
  OTR_RETURN_IF_ERROR(validate_tensors(narrow, checkpoint));
  InflatedTensors made;
  for (InflatedTensor& plan : inflate_plan(narrow, wide)) {
    Tensor tensor;
    if (!plan.source.empty()) {
      std::vector<Element>& data = made.sources_[plan.source];
      int64_t elements = 1;
      for (const int64_t size : plan.source_shape) elements *= size;
      const bool is_new = data.empty();
      data.resize(static_cast<size_t>(elements));
      if (is_new) OTR_RETURN_IF_ERROR(checkpoint.read_as_element(plan.source, plan.source_shape, data.data()));
      tensor.source = &data;
    }
    if (plan.shape.size() == 1) {
      std::vector<Element> row(static_cast<size_t>(plan.num_columns()));
      fill_row(plan, tensor.source != nullptr ? tensor.source->data() : nullptr, 0, row.data());
      std::ranges::transform(row, std::back_inserter(tensor.vector), [](Element e) { return to_float(e); });
    }
    std::string name = plan.name;
    tensor.plan = std::move(plan);
    made.tensors_.emplace(std::move(name), std::move(tensor));
  }
  made.converted_ = checkpoint.converted_tensors();
  made.source_ = source;
  return made;
}

Status InflatedTensors::read_rows(std::string_view name, std::span<const int64_t, 2>, int64_t first_row, int64_t num_rows,
                                  Element* out) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return {StatusCode::kBadInput, "an inflated model has no tensor " + std::string(name)};
  const Tensor& tensor = found->second;
  const Element* source = tensor.source != nullptr ? tensor.source->data() : nullptr;
  for (int64_t row = 0; row < num_rows; ++row)
    fill_row(tensor.plan, source, first_row + row, out + row * tensor.plan.num_columns());
  return {};
}

Status InflatedTensors::read_as_float(std::string_view name, std::span<const int64_t>, float* out) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return {StatusCode::kBadInput, "an inflated model has no tensor " + std::string(name)};
  std::ranges::copy(found->second.vector, out);
  return {};
}

}  // namespace otr
