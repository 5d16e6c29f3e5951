// InflatedTensors: the tensors of an inflated model (inflate_plan.h) that nobody has written: rows are made of the small
// model's when they are asked for. So a model that no disk holds goes straight into an engine that loads it.
//
// Such a folder has the wide model's config.json and, in place of safetensors, inflate.json: {"source": "FOLDER"}, the small
// model's, absolute or beginning at the folder itself.
//
// Errors: open() refuses with the file and the reason a source that is not of this shape's family, is itself inflated, or whose
// tensors are not those of its config (kBadInput), and one that cannot be read (kIoError). Thread safety: immutable after
// open().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "loader/inflate_plan.h"
#include "loader/model_config.h"

namespace otr {

inline constexpr const char* kInflateFile = "inflate.json";

class InflatedTensors {
 public:
  // Whether a folder is one of these.
  static bool is_there(const std::string& folder);
  // `wide`: the folder's config. Reads all of the small model.
  static Result<InflatedTensors> open(const std::string& folder, const ModelConfig& wide);

  // As Checkpoint's. REQUIRES: names and shapes of expected_tensors(wide).
  Status read_rows(std::string_view name, std::span<const int64_t, 2> shape, int64_t first_row, int64_t num_rows,
                   Element* out) const;
  Status read_as_float(std::string_view name, std::span<const int64_t> shape, float* out) const;
  int64_t converted_tensors() const { return converted_; }
  const std::string& source() const { return source_; }  // the small model's folder

 private:
  struct Tensor {
    InflatedTensor plan;
    const std::vector<Element>* source = nullptr;  // of sources_; null: nothing is live
    std::vector<float> vector;                     // of one that is no matrix
  };

  std::map<std::string, std::vector<Element>, std::less<>> sources_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  int64_t converted_ = 0;
  std::string source_;
};

}  // namespace otr
