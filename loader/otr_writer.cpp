#include <zstd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "loader/file.h"
#include "loader/frame_sum.h"
#include "loader/json_document.h"
#include "loader/otr_file.h"
#include "loader/otr_nibbles.h"
#include "loader/otr_planes.h"
#include "loader/parallel_status.h"
#include "loader/xxh64.h"

namespace otr {
namespace {

// What there is to win in weights is the entropy of the exponents, and that Huffman coding finds at every level. The matches
// that a search finds among them are chance: each costs the reader more time than it saves bytes. So planes are compressed with
// hardly any search (64 places, 7 bytes): 34.0 % of the high bytes instead of 36.8 %, and twice as fast to read.
constexpr int kCompressionLevel = 1, kPlanesHashLog = 6, kPlanesMinMatch = 7;

struct FreeCompressor {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};

// The compressed size; 0 if it failed.
size_t compress_bytes(const uint8_t* data, size_t size, bool planes, std::vector<uint8_t>* out) {
  const std::unique_ptr<ZSTD_CCtx, FreeCompressor> context(ZSTD_createCCtx());
  if (context == nullptr) throw std::bad_alloc();
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, kCompressionLevel);
  if (planes) {
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_strategy, ZSTD_fast);
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_hashLog, kPlanesHashLog);
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_minMatch, kPlanesMinMatch);
  }
  out->resize(ZSTD_compressBound(size));
  const size_t stored = ZSTD_compress2(context.get(), out->data(), out->size(), data, size);
  return ZSTD_isError(stored) ? 0 : stored;
}

struct EncodedFrame {
  std::vector<uint8_t> stored;
  uint64_t raw;
};

EncodedFrame encode_frame(const uint8_t* data, size_t size, OtrCoding coding, bool compress) {
  EncodedFrame frame{{}, size};
  std::vector<uint8_t> split;
  if (coding == OtrCoding::kPlanes) {
    split.resize(size);
    split_planes(data, size, split.data());
    data = split.data();
  }
  if (compress && coding == OtrCoding::kNibbles) {
    frame.stored = encode_nibbles(data, size);
    if (frame.stored.size() < size) return frame;
  } else if (compress) {
    const size_t stored = compress_bytes(data, size, coding == OtrCoding::kPlanes, &frame.stored);
    if (stored != 0 && stored < size) {
      frame.stored.resize(stored);
      return frame;
    }
  }
  frame.stored.assign(data, data + size);
  return frame;
}

std::string coding_json(OtrCoding coding) {
  return coding == OtrCoding::kNibbles ? "\"nibbles\"" : coding == OtrCoding::kPlanes ? "true" : "false";
}

std::string frame_json(const OtrFrame& f) {
  char text[128];
  std::snprintf(text, sizeof text, "[%llu,%llu,%llu,\"%016llx\"]", static_cast<unsigned long long>(f.offset),
                static_cast<unsigned long long>(f.stored), static_cast<unsigned long long>(f.raw),
                static_cast<unsigned long long>(f.hash));
  return text;
}

void append_item(std::string* json, const std::string& name, const OtrItem& item) {
  if (json->back() != '{') *json += ',';
  *json +=
      "\"" + name + "\":{\"bytes\":" + std::to_string(item.bytes) + ",\"planes\":" + coding_json(item.coding) + ",\"frames\":[";
  for (size_t i = 0; i < item.frames.size(); ++i) *json += (i == 0 ? "" : ",") + frame_json(item.frames[i]);
  *json += "]}";
}

// `files`, `weights`: objects without their ends.
std::string header_json(const std::string& files, const std::string& weights) {
  return "{\"layout\":\"" + std::string(kOtrLayout) + "\",\"files\":" + files + "},\"weights\":" + weights + "}}";
}

uint64_t num_frames(uint64_t bytes) { return (bytes + kOtrWrittenFrameBytes - 1) / kOtrWrittenFrameBytes; }

}  // namespace

OtrHeaderSize otr_header_size(std::span<const OtrPlanned> items) {
  uint64_t bytes = 0, frames = 0, values = 4;  // the header itself, its layout, files and weights
  std::string json = "{";
  for (const OtrPlanned& item : items) {
    bytes += item.bytes;
    frames += num_frames(item.bytes);
    values += 4 + 5 * num_frames(item.bytes);
    append_item(&json, item.name, {item.bytes, OtrCoding::kNibbles, {}});
  }
  const OtrFrame longest{kOtrPreambleBytes + bytes, kOtrWrittenFrameBytes, kOtrWrittenFrameBytes, 0};
  return {header_json("{", json).size() + frames * (frame_json(longest).size() + 1), values};
}

struct OtrWriter::Impl {
  Impl(const std::string& path, bool compress_it) : file(path), compress(compress_it) {}

  ReplacedFile file;
  const bool compress;
  uint64_t at = kOtrPreambleBytes;
  std::string files = "{", weights = "{";  // JSON objects under construction

  // Frames are encoded a few at a time in parallel and written in order, so that the file does not depend on the threads.
  Status add(std::string* section, const std::string& name, const void* data, uint64_t bytes, OtrCoding coding,
             ThreadPool& pool) {
    OtrItem item{bytes, coding, {}};
    const uint8_t* p = static_cast<const uint8_t*>(data);
    const uint64_t count = num_frames(bytes);
    const uint64_t batch = static_cast<uint64_t>(pool.num_threads()) * 32;
    for (uint64_t first = 0; first < count; first += batch) {
      std::vector<EncodedFrame> encoded(std::min(batch, count - first));
      OTR_RETURN_IF_ERROR(parallel_status(pool, static_cast<int>(encoded.size()), [&](int i, int) -> Status {
        const uint64_t begin = (first + static_cast<uint64_t>(i)) * kOtrWrittenFrameBytes;
        encoded[static_cast<size_t>(i)] =
            encode_frame(p + begin, std::min(kOtrWrittenFrameBytes, bytes - begin), coding, compress);
        return {};
      }));
      for (const EncodedFrame& f : encoded) {
        OTR_RETURN_IF_ERROR(file.write_at(at, f.stored.data(), f.stored.size()));
        item.frames.push_back({at, f.stored.size(), f.raw, frame_sum(f.stored.data(), f.stored.size())});
        at += f.stored.size();
      }
    }
    append_item(section, name, item);
    return {};
  }

  Status write_header() {
    const std::string text = header_json(files, weights);
    std::vector<uint8_t> stored(ZSTD_compressBound(text.size()));
    const size_t size = ZSTD_compress(stored.data(), stored.size(), text.data(), text.size(), kCompressionLevel);
    if (ZSTD_isError(size))
      return Status(StatusCode::kOutOfMemory, std::string("cannot compress the header: ") + ZSTD_getErrorName(size));
    OTR_RETURN_IF_ERROR(file.write_at(at, stored.data(), size));
    const uint64_t fields[] = {kOtrVersion, at, size, text.size(), xxh64(stored.data(), size), 0};
    char preamble[kOtrPreambleBytes];
    std::memcpy(preamble, "OUTRIDER", 8);
    std::memcpy(preamble + 8, fields, sizeof fields);  // version and flags share the first word
    const uint64_t hash = xxh64(preamble, sizeof preamble - sizeof(uint64_t));
    std::memcpy(preamble + sizeof preamble - sizeof hash, &hash, sizeof hash);
    return file.write_at(0, preamble, sizeof preamble);
  }
};

OtrWriter::OtrWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OtrWriter::OtrWriter(OtrWriter&&) noexcept = default;
OtrWriter& OtrWriter::operator=(OtrWriter&&) noexcept = default;
OtrWriter::~OtrWriter() = default;

Result<OtrWriter> OtrWriter::create(const std::string& path, std::span<const OtrPlanned> items, bool compress) {
  if (const auto [bytes, values] = otr_header_size(items); bytes > kOtrMaxHeaderBytes || values > kMaxJsonValues) {
    return unsupported(path + ": too much for one .otr file: its header would have " + std::to_string(values) + " values in " +
                       std::to_string(bytes) + " bytes, and " + std::to_string(kMaxJsonValues) + " values in " +
                       std::to_string(kOtrMaxHeaderBytes) + " bytes are read");
  }
  auto impl = std::make_unique<Impl>(path, compress);
  OTR_RETURN_IF_ERROR(impl->file.created());
  return OtrWriter(std::move(impl));
}

Status OtrWriter::add_file(const std::string& name, std::string_view contents, ThreadPool& pool) {
  return impl_->add(&impl_->files, name, contents.data(), contents.size(), OtrCoding::kPlain, pool);
}

Status OtrWriter::add_weight(const std::string& piece, const void* data, uint64_t bytes, OtrCoding coding, ThreadPool& pool) {
  return impl_->add(&impl_->weights, piece, data, bytes, coding, pool);
}

Status OtrWriter::finish(const std::function<Status(const std::string& name)>& check) {
  OTR_RETURN_IF_ERROR(impl_->write_header());
  if (check) OTR_RETURN_IF_ERROR(check(impl_->file.name()));
  return impl_->file.rename();
}

}  // namespace otr
