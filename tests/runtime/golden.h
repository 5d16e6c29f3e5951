// Golden log-probs (tests/data/golden/README.md): reading them, scoring the same sequences through the C ABI, and the error.
//
// What cannot be read, or belongs to other weights, throws std::runtime_error: the test fails with its text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/outrider.h"

namespace golden {

inline constexpr std::array kModels = {
    "qwen2-group1-tied", "qwen2-group2-untied", "qwen2-group7-headdim", "qwen2-group2-f32",
    "qwen2-yarn",        "qwen3-one-head",      "qwen3-group2-untied",  "qwen3-group7-sharded",
    "qwen3-odd-f16",     "qwen3moe-norm",       "qwen3moe-mixed",       "tinymath-target",
};

using Logprobs = std::vector<std::vector<float>>;  // [sequences][num_tokens]; the first of a sequence is NaN

struct Model {
  std::string name;
  std::filesystem::path folder;  // the checkpoint
  std::vector<std::vector<int32_t>> token_ids;
  Logprobs float32;   // of transformers in float32: the reference
  Logprobs bfloat16;  // of transformers in bf16
};

Model load(const std::string& name);

// Keeps the first sequences, as many as it takes to reach this number of scored positions.
void keep_positions(Model* model, size_t positions);

// A copy of the model's checkpoint in a directory of its own, with one text in config.json replaced; removed with the object.
class EditedCheckpoint {
 public:
  EditedCheckpoint(const Model& model, const std::string& from, const std::string& to);
  ~EditedCheckpoint();
  EditedCheckpoint(const EditedCheckpoint&) = delete;
  EditedCheckpoint& operator=(const EditedCheckpoint&) = delete;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

struct Scores {
  otr_status status;
  std::string message;    // why there are none, or what went wrong with single results; "" if nothing did
  Logprobs raw_logprobs;  // empty unless status is OTR_OK
};

// Scores every sequence on one instruction-set path, all queued at once.
Scores score(const Model& model, const char* isa);

// Absolute difference from the float32 reference over all scored positions. A log-prob that is missing or not finite, and all
// those of a sequence whose first is not NaN, count as infinitely wrong.
struct Error {
  size_t positions = 0;
  double mean = 0, p999 = 0, max = 0;
  size_t worst_sequence = 0, worst_position = 0;
};
Error error_of(const Model& model, const Logprobs& logprobs);

// "sequence 3 position 127 (token 42): ours -3.25, float32 -3.75, transformers bf16 -3.5"
std::string worst(const Model& model, const Error& error, const Logprobs& logprobs);

}  // namespace golden
