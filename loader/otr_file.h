// The .otr container: a model in one file, its weights in the layout the CPU kernels read.
//
//   [0, 64)             preamble: "OUTRIDER", u32 version, u32 0, u64 header offset, u64 header size (compressed),
//                       u64 header size (raw), u64 XXH64 of the compressed header, 8 zero bytes, u64 XXH64 of the 56 bytes before
//   [64, header offset) frames, one after the other without holes
//   [header offset, …)  the header: JSON, zstd-compressed, up to the end of the file
//
// Header: {"layout": "vnni32", "files": {name: item}, "weights": {piece name: item}}, an item being
//   {"bytes": raw size, "planes": false | true | "nibbles", "frames": [[offset, stored size, raw size, "frame_sum of the stored bytes"], …]}
// "files" holds config.json, generation_config.json and tokenizer.json as they were; "weights" the pieces of the weight plan.
//
// A frame is up to 4 MiB of raw bytes; 256 KiB are written, so that a frame and what it becomes stay in a core's cache. Where
// coding does not help, it is stored: stored size == raw size. Else "planes" says how it is coded:
//   false      zstd
//   true       16-bit weights, small: all high bytes, then all low bytes (also where stored), then zstd. High bytes are sign and
//              exponent, and compress to a third; low bytes are noise. Two thirds of the size, decoded at 2.5 GB/s a core.
//   "nibbles"  16-bit weights, quick: otr_nibbles.h. Three quarters of the size, decoded at the speed of a copy.
// A zstd window is at most 4 MiB, the raw header at most kOtrMaxHeaderBytes of at most kMaxJsonValues values (json_document.h):
// frames of 256 KiB take about 50 bytes and 5 values each, so that 200 GB of weights fit. Every byte of the file is under one
// of the checksums or has one correct value.
//
// Little-endian. Thread safety: immutable after open.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "loader/file.h"

namespace otr {

class ThreadPool;

inline constexpr uint32_t kOtrVersion = 3;
inline constexpr std::string_view kOtrLayout = "vnni32";
inline constexpr uint64_t kOtrFrameBytes = uint64_t{4} << 20;           // the most a frame may hold
inline constexpr uint64_t kOtrWrittenFrameBytes = uint64_t{256} << 10;  // what the writer puts in one
inline constexpr uint64_t kOtrPreambleBytes = 64;
inline constexpr uint64_t kOtrMaxHeaderBytes = uint64_t{40} << 20;  // raw, and compressed

struct OtrFrame {
  uint64_t offset;  // in the file
  uint64_t stored;  // bytes there
  uint64_t raw;     // bytes after decompression
  uint64_t hash;    // frame_sum of the stored bytes
};

enum class OtrCoding { kPlain, kPlanes, kNibbles };

struct OtrItem {
  uint64_t bytes = 0;
  OtrCoding coding = OtrCoding::kPlain;
  std::vector<OtrFrame> frames;
};

struct OtrRead {
  const OtrItem* item;
  std::string_view what;  // its name in errors
  void* out;              // [item->bytes]
};

class OtrFile {
 public:
  // Reads and checks preamble and header: sizes, sums, frames that tile the file, nothing missing and nothing left over.
  static Result<OtrFile> open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  // Null if there is none.
  const OtrItem* file_item(const std::string& name) const;
  const OtrItem* weight_item(const std::string& piece) const;
  size_t num_weights() const { return weights_.size(); }

  // Decompresses items, frames in parallel and in the order of the file. Errors name the file, the item and the reason.
  Status read(std::span<const OtrRead> reads, ThreadPool& pool) const;
  Status read(const OtrItem& item, std::string_view what, void* out, ThreadPool& pool) const {
    const OtrRead one{&item, what, out};
    return read({&one, 1}, pool);
  }
  // A small item as text; "" if the file has no such item.
  Result<std::string> read_text(const std::string& name) const;

 private:
  explicit OtrFile(File file) : file_(std::move(file)) {}
  Status read_header();
  Status parse_header(std::string_view text, uint64_t data_end);
  struct Scratch;
  Status read_frame(const OtrFrame& frame, OtrCoding coding, std::string_view what, void* out, Scratch* scratch) const;

  File file_;
  std::map<std::string, OtrItem, std::less<>> files_, weights_;
};

// True if the file begins like an .otr file.
bool looks_like_otr(const std::string& path);

// What is to be added to a writer.
struct OtrPlanned {
  std::string name;
  uint64_t bytes;
};
// The most that the raw header of a file of these items has.
struct OtrHeaderSize {
  uint64_t bytes, values;
};
OtrHeaderSize otr_header_size(std::span<const OtrPlanned> items);

// Writes an .otr file: to a temporary name beside it, made durable and renamed over `path` by finish(); until then what was at
// `path` stays, and the temporary goes away with an unfinished writer.
class OtrWriter {
 public:
  // `items`: all that will be added. Of a file whose header OtrFile would refuse nothing is written (kUnsupported). Without
  // `compress` all is stored.
  static Result<OtrWriter> create(const std::string& path, std::span<const OtrPlanned> items, bool compress);
  OtrWriter(OtrWriter&&) noexcept;
  OtrWriter& operator=(OtrWriter&&) noexcept;
  ~OtrWriter();

  Status add_file(const std::string& name, std::string_view contents, ThreadPool& pool);
  // REQUIRES: only 16-bit values are coded as planes or nibbles.
  Status add_weight(const std::string& piece, const void* data, uint64_t bytes, OtrCoding coding, ThreadPool& pool);
  // `check`, if any, may read the complete file under its temporary name: where it fails, nothing is renamed.
  Status finish(const std::function<Status(const std::string& name)>& check = nullptr);

 private:
  struct Impl;
  explicit OtrWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace otr
