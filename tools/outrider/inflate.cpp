// outrider inflate: a small Qwen2 model as a wide one that computes the same, so that real work is measured at real cost.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/thread_pool.h"
#include "loader/checkpoint.h"
#include "loader/file.h"
#include "loader/inflated_tensors.h"
#include "loader/safetensors_writer.h"
#include "loader/utf8_text.h"
#include "loader/weight_names.h"
#include "tools/outrider/commands.h"
#include "tools/outrider/failure.h"
#include "tools/outrider/flags.h"
#include "tools/outrider/inflate_shape.h"
#include "tools/outrider/model_tokenizer.h"
#include "tools/outrider/progress_bar.h"
#include "tools/outrider/status_failure.h"

namespace otr::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kUsage =
    "Usage: outrider inflate --like NAME|--shape SIZES MODEL -o FOLDER [--recipe|--shards-of SIZE] [--jobs N]\n\n"
    "Widens a small Qwen2 folder to the shape of a large model. What it computes stays, at the large model's cost.\n";
constexpr const char* kNotes =
    "\nNAME: qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-7b or qwen2.5-32b.\n"
    "SIZES: hidden=…,intermediate=…,layers=…,heads=…,kv_heads=…,head_dim=…,vocab=… and, if it differs from MODEL's, tied=0.\n"
    "Weights become bf16. FOLDER must not exist; it appears only when it is complete and on disk. The same command writes the "
    "same bytes.\n"
    "Exit codes: 0, 2 usage, 3 a model that cannot be used or widened so, 4 a folder that cannot be written.\n";

constexpr uint64_t kMaxTextBytes = uint64_t{64} << 20;
constexpr uint64_t kBlockBytes = uint64_t{8} << 20;  // of a tensor in memory at once
constexpr const char* kCopiedFiles[] = {
    "generation_config.json",  "tokenizer.json",    "tokenizer_config.json", "vocab.json", "merges.txt",
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"};

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Failure(kExitFailure, path + ": " + what + ": " + std::strerror(errno));
}

// A folder beside its final place, which goes away again unless it is published.
class NewFolder {
 public:
  explicit NewFolder(const std::string& path) : path_(path) {
    const int made = make_beside(path, &temporary_, [](const char* name) { return ::mkdir(name, 0777); });
    if (made < 0) fail(path, "cannot create a temporary folder beside it");
  }
  ~NewFolder() {
    std::error_code ignored;
    if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::string& path() const { return temporary_; }

  void write_text(const std::string& name, const std::string& text) const {
    NewFile file = check(NewFile::create(join_path(temporary_, name)));
    check(file.append(std::as_bytes(std::span(text))));
    check(file.finish());
  }

  void publish() {
    const int fd = ::open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool durable = fd >= 0 && ::fsync(fd) == 0;
    if (fd >= 0) ::close(fd);
    if (!durable) fail(temporary_, "cannot make durable");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "cannot rename");
    temporary_.clear();
  }

 private:
  std::string path_, temporary_;
};

struct Shard {
  std::string name;
  std::vector<const InflatedTensor*> tensors;
  std::vector<TensorEntry> entries;
};

// Tensors in order, as many a shard as stay within `most_bytes`, at least one.
std::vector<Shard> make_shards(const std::vector<InflatedTensor>& plan, uint64_t most_bytes, uint64_t* total) {
  std::vector<Shard> shards;
  uint64_t bytes = 0;
  for (const InflatedTensor& tensor : plan) {
    const TensorEntry entry{tensor.name, Dtype::kBf16, tensor.shape};
    if (shards.empty() || bytes + entry.bytes() > most_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += entry.bytes();
    *total += entry.bytes();
    shards.back().tensors.push_back(&tensor);
    shards.back().entries.push_back(entry);
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    char name[64] = "model.safetensors";
    if (shards.size() > 1) std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    shards[i].name = name;
  }
  return shards;
}

class Inflater {
 public:
  Inflater(const Checkpoint& source, uint64_t total, ThreadPool& pool) : source_(source), total_(total), pool_(pool) {}

  void write_shard(const std::string& folder, const Shard& shard) {
    SafetensorsWriter writer = check(SafetensorsWriter::create(join_path(folder, shard.name), shard.entries));
    for (const InflatedTensor* tensor : shard.tensors) write_tensor(*tensor, &writer);
    check(writer.finish());
  }

 private:
  // A block of rows at a time; the source's tensor, a small one, as a whole.
  void write_tensor(const InflatedTensor& tensor, SafetensorsWriter* writer) {
    if (!tensor.source.empty()) {
      int64_t elements = 1;
      for (const int64_t size : tensor.source_shape) elements *= size;
      narrow_.resize(static_cast<size_t>(elements));
      check(source_.read_as_element(tensor.source, tensor.source_shape, narrow_.data()));
    }
    const int64_t rows = tensor.num_rows(), columns = tensor.num_columns();
    const auto row_bytes = static_cast<uint64_t>(columns) * sizeof(Element);
    const auto block_rows = static_cast<int64_t>(std::max<uint64_t>(1, kBlockBytes / row_bytes));
    for (int64_t first = 0; first < rows; first += block_rows) {
      const int64_t count = std::min(block_rows, rows - first);
      block_.resize(static_cast<size_t>(count * columns));
      pool_.parallel_for(static_cast<int>(count),
                         [&](int i, int) { fill_row(tensor, narrow_.data(), first + i, block_.data() + i * columns); });
      const auto bytes = std::as_bytes(std::span(block_));
      check(writer->append(bytes));
      done_ += bytes.size();
      show_percent("inflating", done_, total_);
    }
  }

  const Checkpoint& source_;
  const uint64_t total_;
  ThreadPool& pool_;
  uint64_t done_ = 0;
  std::vector<Element> narrow_, block_;
};

// The source's config.json with the wide sizes; keys that do not depend on them stay.
std::string wide_config_text(const std::string& narrow_text, const ModelConfig& wide) {
  ordered_json config = ordered_json::parse(narrow_text);
  config["hidden_size"] = wide.hidden_size;
  config["intermediate_size"] = wide.intermediate_size;
  config["num_hidden_layers"] = wide.num_layers;
  config["num_attention_heads"] = wide.num_heads;
  config["num_key_value_heads"] = wide.num_kv_heads;
  config["head_dim"] = wide.head_dim;
  config["vocab_size"] = wide.vocab_size;
  config["tie_word_embeddings"] = wide.tie_word_embeddings;
  config["rms_norm_eps"] = wide.rms_norm_eps;
  config["max_window_layers"] = wide.num_layers;  // no window is active, but transformers checks it
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = "bfloat16";
  config.erase("layer_types");  // one entry a layer, all alike in a source that is taken
  return config.dump(2) + "\n";
}

std::string index_text(const std::vector<Shard>& shards, uint64_t total) {
  ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", ordered_json::object()}};
  for (const Shard& shard : shards) {
    for (const TensorEntry& entry : shard.entries) index["weight_map"][entry.name] = shard.name;
  }
  return index.dump(2) + "\n";
}

void check_space(const std::string& folder, uint64_t bytes) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error || space.available >= bytes) return;
  throw Failure(kExitFailure, folder + ": needs " + std::to_string(bytes) + " bytes, but only " +
                                  std::to_string(space.available) + " are free");
}

bool is_power_of_4(double ratio) { return std::exp2(2 * std::round(std::log2(ratio) / 2)) == ratio; }

std::string rounding_text(const ModelConfig& narrow, const ModelConfig& wide) {
  const bool norms = !is_power_of_4(static_cast<double>(wide.hidden_size) / narrow.hidden_size);
  const bool queries = !is_power_of_4(static_cast<double>(wide.head_dim) / narrow.head_dim);
  if (!norms && !queries) return "no weight was rounded";
  return std::string(norms ? "norm" : "") + (norms && queries ? " and " : "") + (queries ? "q" : "") + " weights were rounded";
}

}  // namespace

int inflate_command(int argc, char** argv) {
  const Flag table[] = {
      {"like", "NAME", "the model whose shape it gets"},
      {"shape", "SIZES", "any other shape"},
      {"o", "FOLDER", "the folder to write (required)"},
      {"recipe", nullptr, "write no weights, but where they come from: an engine that loads the folder makes them"},
      {"shards-of", "SIZE", "a shard's most bytes, like 500M (default 5G)"},
      {"jobs", "N", "threads (default: one per CPU that affinity and the container's quota allow)"}};
  if (printed_help(table, argc, argv, kUsage, kNotes)) return kExitOk;
  const Flags flags(table, argc, argv, /*max_positional=*/1);
  if (flags.positional().empty()) throw Failure(kExitUsage, "MODEL is required");
  if (flags.given("like") == flags.given("shape")) throw Failure(kExitUsage, "either --like or --shape is required");
  const InflateShape shape = flags.given("like") ? named_shape(flags.required("like")) : parse_shape(flags.required("shape"));
  const uint64_t shard_bytes = size_flag("shards-of", flags.text("shards-of", "5G"));
  ThreadPool pool(flags.given("jobs") ? int_flag("jobs", flags.required("jobs"), 1) : 0);
  const std::string source = flags.positional().front();
  std::string path = flags.required("o");
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (path_exists(path)) throw Failure(kExitUsage, "-o " + path + ": exists already");

  const Stopwatch watch;
  const std::string config_path = join_path(source, "config.json");
  const ModelConfig narrow = check_model(load_model_config(source));
  const Result<ModelConfig> widened = inflated_config(narrow, shape);
  if (!widened.ok()) throw Failure(kExitBadInput, config_path + ": " + widened.status().message());
  const ModelConfig& wide = widened.value();
  if (InflatedTensors::is_there(source)) throw Failure(kExitBadInput, source + ": is inflated itself");
  const Checkpoint checkpoint = check_model(Checkpoint::open(source));
  check(validate_tensors(narrow, checkpoint));
  load_model_tokenizer(source);  // a folder whose tokenizer no command takes is not worth writing
  const std::vector<InflatedTensor> plan = inflate_plan(narrow, wide);
  uint64_t total = 0;
  const std::vector<Shard> shards = make_shards(plan, shard_bytes, &total);

  NewFolder folder(path);
  if (flags.given("recipe")) {
    const std::string whole = std::filesystem::canonical(source).string();
    if (find_invalid_utf8(whole))
      throw Failure(kExitBadInput, source + ": a recipe names this folder, and its path is not UTF-8");
    folder.write_text(kInflateFile, ordered_json{{"source", whole}}.dump(2) + "\n");
  } else {
    check_space(folder.path(), total);
    Inflater inflater(checkpoint, total, pool);
    for (const Shard& shard : shards) inflater.write_shard(folder.path(), shard);
    if (shards.size() > 1) folder.write_text("model.safetensors.index.json", index_text(shards, total));
  }
  folder.write_text("config.json", wide_config_text(check(read_text_file(config_path, kMaxTextBytes)), wide));
  for (const char* name : kCopiedFiles) {
    const std::string file = join_path(source, name);
    if (path_exists(file)) folder.write_text(name, check(read_text_file(file, kMaxTextBytes)));
  }
  folder.publish();
  const unsigned long long parameters = total / sizeof(Element);
  const std::string rounded = rounding_text(narrow, wide);
  if (flags.given("recipe")) {
    std::printf("%s: %llu parameters, made when they are loaded; %s\n", path.c_str(), parameters, rounded.c_str());
  } else {
    std::printf("%s: %llu parameters in %zu file%s, in %.2f s; %s\n", path.c_str(), parameters, shards.size(),
                shards.size() == 1 ? "" : "s", watch.seconds(), rounded.c_str());
  }
  return kExitOk;
}

}  // namespace otr::cli
