// outrider inspect: what a model folder holds. Opens every file that a rollout would, and reads no weights.
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/element.h"
#include "loader/checkpoint.h"
#include "loader/file.h"
#include "loader/model_config.h"
#include "loader/tokenizer.h"
#include "loader/weight_names.h"
#include "tools/outrider/commands.h"
#include "tools/outrider/failure.h"
#include "tools/outrider/flags.h"

namespace otr::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kUsage = "Usage: outrider inspect PATH [--json]\n\nWhat a model folder holds.\n";
constexpr const char* kNotes = "\nExit codes: 0, 2 usage, 3 a folder that cannot be used, with the reason.\n";

template <typename T>
T value_or_throw(Result<T> result) {
  if (!result.ok()) throw Failure(kExitBadInput, result.status().message());
  return std::move(result.value());
}

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
  (*facts)["context_limit"] = context_limit(config);
  (*facts)["stop_token_ids"] = config.eos_ids;
}

void add_weights(const ModelConfig& config, const Checkpoint& checkpoint, ordered_json* facts) {
  int64_t num_parameters = 0;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    num_parameters += elements;
  }
  std::map<std::string_view, int64_t> dtypes;
  for (const std::string_view name : checkpoint.names()) ++dtypes[dtype_name(checkpoint.find(name)->dtype)];
  (*facts)["parameters"] = num_parameters;
  (*facts)["weight_bytes"] = checkpoint.data_bytes();
  (*facts)["tensors"] = dtypes;
  (*facts)["kv_bytes_per_token"] =
      int64_t{2} * config.num_layers * config.num_kv_heads * config.head_dim * static_cast<int64_t>(sizeof(Element));
}

ordered_json inspect_folder(const std::string& folder) {
  ordered_json facts;
  const ModelConfig config = value_or_throw(load_model_config(folder));
  const Checkpoint checkpoint = value_or_throw(Checkpoint::open(folder));
  if (const Status valid = validate_tensors(config, checkpoint); !valid.ok()) throw Failure(kExitBadInput, valid.message());
  facts["path"] = folder;
  add_shapes(config, &facts);
  add_weights(config, checkpoint, &facts);
  const std::string tokenizer_path = join_path(folder, "tokenizer.json");
  facts["tokenizer_vocab_size"] = nullptr;
  if (path_exists(tokenizer_path)) {
    facts["tokenizer_vocab_size"] = value_or_throw(Tokenizer::load(tokenizer_path)).vocab_size();
  }
  return facts;
}

}  // namespace

int inspect_command(int argc, char** argv) {
  const Flag table[] = {{"json", nullptr, "print one JSON object"}};
  if (printed_help(table, argc, argv, kUsage, kNotes)) return kExitOk;
  const Flags flags(table, argc, argv, /*max_positional=*/1);
  if (flags.positional().empty()) throw Failure(kExitUsage, "PATH is required");

  const ordered_json facts = inspect_folder(flags.positional().front());
  if (flags.given("json")) {
    std::printf("%s\n", facts.dump().c_str());
  } else {
    for (const auto& [key, value] : facts.items()) {
      const std::string text = value.is_string() ? value.get<std::string>() : value.is_null() ? "none" : value.dump();
      std::printf("%-22s %s\n", key.c_str(), text.c_str());
    }
  }
  return kExitOk;
}

}  // namespace otr::cli
