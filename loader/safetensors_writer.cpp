#include "loader/safetensors_writer.h"

#include <cassert>
#include <nlohmann/json.hpp>

namespace otr {

uint64_t TensorEntry::bytes() const {
  uint64_t bytes = static_cast<uint64_t>(dtype_size(dtype));
  for (const int64_t size : shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path, std::span<const TensorEntry> entries) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t at = 0;
  for (const TensorEntry& entry : entries) {
    const uint64_t end = at + entry.bytes();
    header[entry.name] = {{"dtype", dtype_name(entry.dtype)}, {"shape", entry.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  uint64_t length = text.size();
  char prefix[sizeof length];  // little-endian
  for (char& byte : prefix) {
    byte = static_cast<char>(length & 0xff);
    length >>= 8;
  }
  OTR_ASSIGN_OR_RETURN(NewFile file, NewFile::create(path));
  OTR_RETURN_IF_ERROR(file.append(std::as_bytes(std::span(prefix))));
  OTR_RETURN_IF_ERROR(file.append(std::as_bytes(std::span(text))));
  return SafetensorsWriter(std::move(file), at);
}

Status SafetensorsWriter::append(std::span<const std::byte> bytes) {
  assert(bytes.size() <= missing_);
  missing_ -= bytes.size();
  return file_.append(bytes);
}

Status SafetensorsWriter::finish() {
  assert(missing_ == 0);
  return file_.finish();
}

}  // namespace otr
