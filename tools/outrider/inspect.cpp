// outrider inspect: what a model holds, folder or .otr file. Opens every file that a rollout would, and reads no
// weights but a recipe's small model.
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "kernels/base/element.h"
#include "loader/checkpoint.h"
#include "loader/inflated_tensors.h"
#include "loader/model_config.h"
#include "loader/otr_file.h"
#include "loader/weight_names.h"
#include "loader/weight_source.h"
#include "tools/outrider/commands.h"
#include "tools/outrider/failure.h"
#include "tools/outrider/flags.h"
#include "tools/outrider/json_text.h"
#include "tools/outrider/model_tokenizer.h"
#include "tools/outrider/status_failure.h"

namespace otr::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kUsage =
    "Usage: outrider inspect PATH [--json]\n\nWhat a model holds: a Hugging Face folder, a recipe's (outrider inflate "
    "--recipe) or an .otr file.\n";
constexpr const char* kNotes = "\nExit codes: 0, 2 usage, 3 a model that cannot be used, with the reason.\n";

void add_shapes(const ModelConfig& config, ordered_json* facts) {
  (*facts)["architecture"] = architecture_name(config.architecture);
  (*facts)["num_layers"] = config.num_layers;
  (*facts)["hidden_size"] = config.hidden_size;
  (*facts)["intermediate_size"] = config.intermediate_size;
  (*facts)["num_heads"] = config.num_heads;
  (*facts)["num_kv_heads"] = config.num_kv_heads;
  (*facts)["head_dim"] = config.head_dim;
  (*facts)["vocab_size"] = config.vocab_size;
  (*facts)["tie_word_embeddings"] = config.tie_word_embeddings;
  (*facts)["qkv_bias"] = config.qkv_bias;
  (*facts)["qk_norm"] = config.qk_norm;
  (*facts)["rms_norm_eps"] = config.rms_norm_eps;
  (*facts)["rope_theta"] = config.rope_theta;
  if (config.experts) {
    (*facts)["num_experts"] = config.experts->num_experts;
    (*facts)["experts_per_token"] = config.experts->experts_per_token;
    (*facts)["expert_intermediate_size"] = config.experts->intermediate_size;
    (*facts)["expert_weights_normalised"] = config.experts->normalised;
    (*facts)["dense_layers"] = config.experts->dense_layers;
  }
  if (config.yarn) (*facts)["yarn_factor"] = config.yarn->factor;
  (*facts)["context_limit"] = context_limit(config);
  (*facts)["stop_token_ids"] = config.eos_ids;
}

void add_sizes(const ModelConfig& config, ordered_json* facts) {
  int64_t num_parameters = 0;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    num_parameters += elements;
  }
  (*facts)["parameters"] = num_parameters;
  (*facts)["kv_bytes_per_token"] =
      int64_t{2} * config.num_layers * config.num_kv_heads * config.head_dim * static_cast<int64_t>(sizeof(Element));
}

ModelConfig inspect_folder(const std::string& folder, ordered_json* facts) {
  const ModelConfig config = check_model(load_model_config(folder));
  if (InflatedTensors::is_there(folder)) {
    (*facts)["format"] = "recipe";
    (*facts)["source"] = check_model(InflatedTensors::open(folder, config)).source();
    return config;
  }
  const Checkpoint checkpoint = check_model(Checkpoint::open(folder));
  if (const Status valid = validate_tensors(config, checkpoint); !valid.ok()) throw Failure(kExitBadInput, valid.message());
  std::map<std::string_view, int64_t> dtypes;
  for (const std::string_view name : checkpoint.names()) ++dtypes[dtype_name(checkpoint.find(name)->dtype)];
  (*facts)["format"] = "safetensors";
  (*facts)["weight_bytes"] = checkpoint.data_bytes();
  (*facts)["tensors"] = dtypes;
  return config;
}

ModelConfig inspect_otr(const std::string& path, ordered_json* facts) {
  const ModelConfig config = check_model(open_model(path)).config;
  const OtrFile file = check_model(OtrFile::open(path));
  uint64_t raw = 0, stored = 0;
  for (const WeightPiece& piece : weight_plan(config).pieces) {
    const OtrItem* item = file.weight_item(piece.name);
    raw += item->bytes;
    for (const OtrFrame& frame : item->frames) stored += frame.stored;
  }
  (*facts)["format"] = "otr";
  (*facts)["weight_bytes"] = raw;
  (*facts)["stored_bytes"] = stored;
  return config;
}

ordered_json inspect_model(const std::string& path) {
  ordered_json facts;
  facts["path"] = path;
  std::error_code none;
  const bool is_file = std::filesystem::is_regular_file(path, none);
  const ModelConfig config = is_file ? inspect_otr(path, &facts) : inspect_folder(path, &facts);
  add_shapes(config, &facts);
  add_sizes(config, &facts);
  const std::unique_ptr<Tokenizer> tokenizer = load_model_tokenizer(path);
  facts["tokenizer_vocab_size"] = tokenizer ? ordered_json(tokenizer->vocab_size()) : ordered_json(nullptr);
  return facts;
}

}  // namespace

int inspect_command(int argc, char** argv) {
  const Flag table[] = {{"json", nullptr, "print one JSON object"}};
  if (printed_help(table, argc, argv, kUsage, kNotes)) return kExitOk;
  const Flags flags(table, argc, argv, /*max_positional=*/1);
  if (flags.positional().empty()) throw Failure(kExitUsage, "PATH is required");

  const ordered_json facts = inspect_model(flags.positional().front());
  if (flags.given("json")) {
    std::printf("%s\n", json_dump(facts).c_str());
  } else {
    for (const auto& [key, value] : facts.items()) {
      const std::string text = value.is_string() ? value.get<std::string>() : value.is_null() ? "none" : value.dump();
      std::printf("%-22s %s\n", key.c_str(), text.c_str());
    }
  }
  return kExitOk;
}

}  // namespace otr::cli
