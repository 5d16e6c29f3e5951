// SafetensorsFile: the strict reader of one .safetensors file.
//
// Layout: u64 little-endian header length, the header (JSON), then the tensors' bytes. A header is accepted only if the
// tensors' ranges, sorted, tile the rest of the file from 0 to its end without hole or overlap and every range has the size
// its shape and dtype say. Offsets are not aligned: data is copied, never cast.
//
// Errors: kBadInput "<file>: <tensor or header>: <reason>", kIoError from the system.
// Thread safety: immutable after open; read may be called from any number of threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "loader/file.h"

namespace otr {

// Types below a byte do not occur: a header that names one is refused.
enum class Dtype {
  kF64,
  kF32,
  kF16,
  kBf16,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  kC64,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
};

std::string_view dtype_name(Dtype dtype);  // as in a header: "BF16"
int dtype_size(Dtype dtype);               // bytes
bool dtype_is_loadable(Dtype dtype);       // BF16, F16 or F32

// REQUIRES of a listed tensor: end - begin == product of shape * dtype_size.
struct TensorInfo {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;  // row-major; empty for a scalar
  uint64_t begin;              // bytes, from the end of the header
  uint64_t end;

  int64_t num_elements() const { return static_cast<int64_t>((end - begin) / dtype_size(dtype)); }
};

std::string shape_text(std::span<const int64_t> shape);  // "[2, 3]"

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // by position in the file
  uint64_t data_bytes() const { return file_.size() - data_start_; }

  // Reads bytes [begin, begin + bytes.size()) of the data. REQUIRES: inside the data.
  Status read(uint64_t begin, std::span<std::byte> bytes) const;

 private:
  SafetensorsFile(File file, uint64_t data_start, std::vector<TensorInfo> tensors)
      : file_(std::move(file)), data_start_(data_start), tensors_(std::move(tensors)) {}

  File file_;
  uint64_t data_start_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace otr
