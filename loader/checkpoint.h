// Checkpoint: the tensors of a Hugging Face folder, in model.safetensors or in the shards of model.safetensors.index.json.
//
// Opening reads the headers and checks that index and shards agree; tensors are read on demand with pread (a file that
// shrinks meanwhile is an error, never a signal) in pieces of bounded size, and converted to the wanted type on the way:
// float16 and bfloat16 widen exactly, narrowing to bf16 rounds to nearest even.
//
// Errors: kBadInput "<file>: <tensor>: <reason>", kUnsupported for adapters and for dtypes that cannot be loaded, kIoError from
// the system.
// Thread safety: after open, every const function may be called from any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/element.h"
#include "kernels/base/status.h"
#include "loader/safetensors.h"

namespace otr {

class Checkpoint {
 public:
  // The folder holds either model.safetensors.index.json or model.safetensors. Both are refused unless the index names that
  // file alone: one of them is left from another save, and which one only the user knows. So is an adapter
  // (adapter_config.json), which transformers would apply. A shard must be a regular file inside the folder: a symbolic link
  // that leads out of it is refused.
  static Result<Checkpoint> open(const std::string& folder);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  // All tensor names, ascending.
  std::vector<std::string_view> names() const;

  // Null when there is no such tensor. The pointer and names() live as long as the checkpoint.
  const TensorInfo* find(std::string_view name) const;

  // The path of the file that holds the tensor, or for a name that no file holds the file whose word that is (the index,
  // or model.safetensors): what an error message should name.
  const std::string& file_of(std::string_view name) const;

  // Reads a whole tensor, row-major. `out` has room for the product of `expected_shape`; after an error its contents are
  // unspecified. A stored shape other than `expected_shape` is an error.
  Status read_as_element(std::string_view name, std::span<const int64_t> expected_shape, Element* out) const;
  Status read_as_float(std::string_view name, std::span<const int64_t> expected_shape, float* out) const;

  // Rows [first_row, first_row + num_rows) of a matrix of `expected_shape`.
  Status read_rows(std::string_view name, std::span<const int64_t, 2> expected_shape, int64_t first_row, int64_t num_rows,
                   Element* out) const;

  // Every read of `name` from now on reads the same part of `twin` too, and refuses it where a byte differs: config.json says
  // that the two are one tensor. REQUIRES: both are there, of the same shape and dtype; no thread reads yet.
  void tie(std::string_view name, std::string_view twin) const;

  // How many different tensors read_as_element and read_rows have converted from a stored type other than
  // Element's, so far.
  int64_t converted_tensors() const;

  // Bytes of tensor data over all files.
  uint64_t data_bytes() const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace otr
