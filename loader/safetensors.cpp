#include "loader/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <tuple>

#include "loader/item_status.h"
#include "loader/json_document.h"

namespace otr {
namespace {

static_assert(std::endian::native == std::endian::little, "file contents are used as they are");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr int64_t kMaxOffset = int64_t{1} << 53;  // what every JSON reader agrees on

struct DtypeRow {
  std::string_view name;
  int size;
};

// By Dtype.
constexpr std::array<DtypeRow, 17> kDtypes = {{{"F64", 8},
                                               {"F32", 4},
                                               {"F16", 2},
                                               {"BF16", 2},
                                               {"I64", 8},
                                               {"I32", 4},
                                               {"I16", 2},
                                               {"I8", 1},
                                               {"U64", 8},
                                               {"U32", 4},
                                               {"U16", 2},
                                               {"U8", 1},
                                               {"BOOL", 1},
                                               {"C64", 8},
                                               {"F8_E4M3", 1},
                                               {"F8_E5M2", 1},
                                               {"F8_E8M0", 1}}};
static_assert(static_cast<size_t>(Dtype::kF8E8M0) + 1 == kDtypes.size());

std::optional<Dtype> dtype_of(std::string_view name) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

std::string range_text(const TensorInfo& t) {
  return std::string("[").append(std::to_string(t.begin)).append(", ").append(std::to_string(t.end)).append(")");
}

// Reads the entries of one header. `path` names the file in errors.
class HeaderReader {
 public:
  HeaderReader(const std::string& path, uint64_t data_bytes) : path_(path), data_bytes_(data_bytes) {}

  Result<std::vector<TensorInfo>> read(JsonValue root) {
    if (!root.is(JsonKind::kObject)) return bad_item(path_, "header", "not a JSON object");
    std::vector<TensorInfo> tensors;
    tensors.reserve(root.size());
    for (JsonValue entry = root.first(); entry; entry = entry.next()) {
      if (entry.key() == "__metadata__") {
        OTR_RETURN_IF_ERROR(check_metadata(entry));
        continue;
      }
      TensorInfo& info = tensors.emplace_back();
      info.name = entry.key();
      OTR_RETURN_IF_ERROR(read_entry(entry, info));
    }
    OTR_RETURN_IF_ERROR(check_tiling(tensors));
    return tensors;
  }

 private:
  Status bad(std::string_view reason) const { return bad_item(path_, item_, reason); }

  Status check_metadata(JsonValue metadata) {
    item_ = "__metadata__";
    if (!metadata.is(JsonKind::kObject)) return bad("not an object");
    for (JsonValue v = metadata.first(); v; v = v.next()) {
      if (!v.is(JsonKind::kString)) return bad(in_quotes(v.key()) + " is not a string");
    }
    return {};
  }

  Status read_entry(JsonValue entry, TensorInfo& info) {
    item_ = info.name;
    if (item_.empty()) return bad_item(path_, "header", "a tensor with an empty name");
    if (!entry.is(JsonKind::kObject)) return bad("not an object");
    JsonValue dtype, shape, offsets;
    for (JsonValue v = entry.first(); v; v = v.next()) {
      if (v.key() == "dtype") {
        dtype = v;
      } else if (v.key() == "shape") {
        shape = v;
      } else if (v.key() == "data_offsets") {
        offsets = v;
      } else {
        return bad("unknown key " + in_quotes(v.key()));
      }
    }
    if (!dtype || !dtype.is(JsonKind::kString)) return bad("dtype is missing or not a string");
    const auto known = dtype_of(dtype.as_string());
    if (!known) return bad("unknown dtype " + in_quotes(dtype.as_string()));
    info.dtype = *known;
    OTR_RETURN_IF_ERROR(read_shape(shape, info));
    return read_offsets(offsets, info);
  }

  Status read_shape(JsonValue shape, TensorInfo& info) const {
    if (!shape || !shape.is(JsonKind::kArray)) return bad("shape is missing or not an array");
    info.shape.reserve(shape.size());
    for (JsonValue v = shape.first(); v; v = v.next()) {
      const auto dim = v.as_int();
      if (!dim || *dim < 0) return bad("shape holds something other than a size: " + std::string(json_kind_name(v.kind())));
      info.shape.push_back(*dim);
    }
    return {};
  }

  // Bytes of shape and dtype. Zero dimensions are left out of the overflow check's product, so that order does not matter.
  std::optional<uint64_t> byte_size(const TensorInfo& info) const {
    uint64_t bytes = static_cast<uint64_t>(dtype_size(info.dtype));
    bool is_empty = false;
    for (const int64_t dim : info.shape) {
      if (dim == 0) is_empty = true;
      else if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) return std::nullopt;
    }
    return is_empty ? 0 : bytes;
  }

  Status read_offsets(JsonValue offsets, TensorInfo& info) const {
    if (!offsets || !offsets.is(JsonKind::kArray) || offsets.size() != 2) {
      return bad("data_offsets is missing or not an array of two");
    }
    uint64_t* const bounds[2] = {&info.begin, &info.end};
    JsonValue v = offsets.first();
    for (uint64_t* bound : bounds) {
      const auto offset = v.as_int();
      if (!offset || *offset < 0 || *offset > kMaxOffset) return bad("data_offsets holds something other than an offset");
      *bound = static_cast<uint64_t>(*offset);
      v = v.next();
    }
    if (info.begin > info.end) return bad("range " + range_text(info) + " ends before it begins");
    if (info.end > data_bytes_) {
      return bad("range " + range_text(info) + " leaves the " + std::to_string(data_bytes_) + " bytes of data");
    }
    const auto bytes = byte_size(info);
    if (!bytes) return bad("the size of shape " + shape_text(info.shape) + " overflows 64 bits");
    if (*bytes != info.end - info.begin) {
      return bad("range " + range_text(info) + " has not the " + std::to_string(*bytes) + " bytes of " +
                 std::string(dtype_name(info.dtype)) + " " + shape_text(info.shape));
    }
    return {};
  }

  Status check_tiling(std::vector<TensorInfo>& tensors) {
    std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    uint64_t position = 0;
    for (const TensorInfo& info : tensors) {
      item_ = info.name;
      if (info.begin < position) return bad("range " + range_text(info) + " overlaps another tensor's");
      if (info.begin > position) {
        return bad("a hole of " + std::to_string(info.begin - position) + " bytes before range " + range_text(info));
      }
      position = info.end;
    }
    if (position != data_bytes_) {
      return bad_item(path_, "header", std::to_string(data_bytes_ - position) + " bytes after the last tensor");
    }
    return {};
  }

  const std::string& path_;
  uint64_t data_bytes_;
  std::string_view item_;  // the entry being read
};

}  // namespace

std::string_view dtype_name(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].name; }
int dtype_size(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].size; }
bool dtype_is_loadable(Dtype dtype) { return dtype == Dtype::kBf16 || dtype == Dtype::kF16 || dtype == Dtype::kF32; }

std::string shape_text(std::span<const int64_t> shape) {
  constexpr size_t kMost = 8;  // a hostile header may have millions
  std::string text = "[";
  for (size_t i = 0; i < std::min(shape.size(), kMost); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() > kMost ? ", ...]" : "]");
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  OTR_ASSIGN_OR_RETURN(File file, File::open(path));
  uint64_t header_bytes = 0;
  if (file.size() < sizeof header_bytes) return bad_item(path, "header", "a file of " + std::to_string(file.size()) + " bytes");
  OTR_RETURN_IF_ERROR(file.read_exact(0, std::as_writable_bytes(std::span(&header_bytes, 1))));
  if (header_bytes > kMaxHeaderBytes) {
    return bad_item(path, "header", "length " + std::to_string(header_bytes) + " is above " + std::to_string(kMaxHeaderBytes));
  }
  if (header_bytes > file.size() - sizeof header_bytes) {
    return bad_item(path, "header",
                    "length " + std::to_string(header_bytes) + " leaves the file of " + std::to_string(file.size()) + " bytes");
  }
  std::string text(header_bytes, '\0');
  OTR_RETURN_IF_ERROR(file.read_exact(sizeof header_bytes, std::as_writable_bytes(std::span(text))));
  if (!text.starts_with('{')) return bad_item(path, "header", "does not start with '{'");
  OTR_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(path, text));
  const uint64_t data_start = sizeof header_bytes + header_bytes;
  HeaderReader reader(file.path(), file.size() - data_start);
  OTR_ASSIGN_OR_RETURN(std::vector<TensorInfo> tensors, reader.read(document.root()));
  return SafetensorsFile(std::move(file), data_start, std::move(tensors));
}

Status SafetensorsFile::read(uint64_t begin, std::span<std::byte> bytes) const {
  return file_.read_exact(data_start_ + begin, bytes);
}

}  // namespace otr
