// SafetensorsWriter: writes one .safetensors file front to back, so that no tensor need be in memory as a whole.
//
// The header comes first and says where everything will be; then the tensors' bytes are appended in the order of the entries,
// in pieces of any size. The header is padded with spaces to a multiple of 8 bytes, so that the data starts aligned.
//
// Errors: kIoError "<file>: <what>: <reason>". Without finish() the file is incomplete, and remains. Single-threaded.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "loader/file.h"
#include "loader/safetensors.h"

namespace otr {

struct TensorEntry {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;

  uint64_t bytes() const;
};

class SafetensorsWriter {
 public:
  // `path` must not exist. REQUIRES: the names differ.
  static Result<SafetensorsWriter> create(const std::string& path, std::span<const TensorEntry> entries);

  // REQUIRES: no more bytes in all than the entries have.
  Status append(std::span<const std::byte> bytes);
  // Makes the file durable. REQUIRES: exactly the entries' bytes were appended.
  Status finish();

 private:
  SafetensorsWriter(NewFile file, uint64_t missing) : file_(std::move(file)), missing_(missing) {}

  NewFile file_;
  uint64_t missing_;  // bytes still to come
};

}  // namespace otr
