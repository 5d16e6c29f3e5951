#include "loader/otr_file.h"

#include <zstd.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "kernels/base/thread_pool.h"
#include "loader/frame_sum.h"
#include "loader/item_status.h"
#include "loader/json_document.h"
#include "loader/otr_nibbles.h"
#include "loader/otr_planes.h"
#include "loader/parallel_status.h"
#include "loader/xxh64.h"

namespace otr {
namespace {

constexpr char kMagic[8] = {'O', 'U', 'T', 'R', 'I', 'D', 'E', 'R'};
constexpr uint64_t kMaxItemBytes = uint64_t{64} << 20;

struct Preamble {
  char magic[8];
  uint32_t version;
  uint32_t flags;
  uint64_t header_offset;
  uint64_t header_stored;
  uint64_t header_raw;
  uint64_t header_hash;
  uint64_t zero;
  uint64_t preamble_hash;
};
static_assert(sizeof(Preamble) == kOtrPreambleBytes);

// A zstd frame's window is at most as large as what the writer compresses at once. ZSTD_getFrameContentSize has checked the
// header: magic (4 bytes), descriptor (its bit 5: no window is given, it is the content), window (exponent above 2^10,
// eighths).
bool window_fits(const uint8_t* stored) {
  if ((stored[4] & 0x20) != 0) return true;
  const uint64_t base = uint64_t{1} << (10 + (stored[5] >> 3));
  return base + base / 8 * (stored[5] & 7) <= kOtrFrameBytes;
}

struct FreeDecompressor {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};
using Context = std::unique_ptr<ZSTD_DCtx, FreeDecompressor>;

// Decompresses exactly `raw` bytes; false for anything else, a second frame or a wrong declared size included.
bool decompress(ZSTD_DCtx* context, const uint8_t* stored, size_t stored_size, uint8_t* out, size_t raw) {
  if (ZSTD_getFrameContentSize(stored, stored_size) != raw || !window_fits(stored)) return false;
  if (ZSTD_findFrameCompressedSize(stored, stored_size) != stored_size) return false;
  return ZSTD_decompressDCtx(context, out, raw, stored, stored_size) == raw;
}

// An unsigned integer of a header; nothing where it is not one.
std::optional<uint64_t> unsigned_number(JsonValue v) {
  if (!v) return std::nullopt;
  const auto number = v.as_int();
  if (!number || *number < 0) return std::nullopt;
  return static_cast<uint64_t>(*number);
}

std::optional<uint64_t> hex_number(JsonValue v) {
  if (!v || !v.is(JsonKind::kString)) return std::nullopt;
  const std::string_view text = v.as_string();
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<OtrFrame> parse_frame(JsonValue v) {
  if (!v || !v.is(JsonKind::kArray) || v.size() != 4) return std::nullopt;
  const JsonValue offset = v.first(), stored = offset.next(), raw = stored.next(), hash = raw.next();
  const auto o = unsigned_number(offset), s = unsigned_number(stored), r = unsigned_number(raw), h = hex_number(hash);
  if (!o || !s || !r || !h) return std::nullopt;
  return OtrFrame{*o, *s, *r, *h};
}

std::optional<OtrCoding> parse_coding(JsonValue v) {
  if (v && v.is(JsonKind::kBool)) return v.as_bool() ? OtrCoding::kPlanes : OtrCoding::kPlain;
  if (v && v.is(JsonKind::kString) && v.as_string() == "nibbles") return OtrCoding::kNibbles;
  return std::nullopt;
}

// "" if the item is well-formed, else the reason.
std::string parse_item(JsonValue v, OtrItem* item) {
  if (!v.is(JsonKind::kObject)) return "is not an object";
  const auto bytes = unsigned_number(v.find("bytes"));
  const auto coding = parse_coding(v.find("planes"));
  const JsonValue frames = v.find("frames");
  if (!bytes || !coding || !frames || !frames.is(JsonKind::kArray) || v.size() != 3) {
    return "does not have bytes, planes and frames";
  }
  item->bytes = *bytes;
  item->coding = *coding;
  uint64_t sum = 0;
  for (JsonValue f = frames.first(); f; f = f.next()) {
    const auto frame = parse_frame(f);
    if (!frame) return "has a malformed frame";
    if (frame->raw == 0 || frame->raw > kOtrFrameBytes || frame->stored == 0 || frame->stored > frame->raw) {
      return "has a frame of an impossible size";
    }
    if (item->coding != OtrCoding::kPlain && frame->raw % 2 != 0) return "has 16-bit values in a frame of odd size";
    sum += frame->raw;
    item->frames.push_back(*frame);
  }
  return sum == item->bytes ? "" : "has frames that do not add up to its bytes";
}

}  // namespace

bool looks_like_otr(const std::string& path) {
  const auto file = File::open(path);
  char magic[8];
  return file.ok() && file.value().size() >= sizeof magic &&
         file.value().read_exact(0, std::as_writable_bytes(std::span(magic))).ok() &&
         std::memcmp(magic, kMagic, sizeof magic) == 0;
}

Result<OtrFile> OtrFile::open(const std::string& path) {
  OTR_ASSIGN_OR_RETURN(File file, File::open(path));
  OtrFile otr(std::move(file));
  OTR_RETURN_IF_ERROR(otr.read_header());
  return otr;
}

Status OtrFile::read_header() {
  Preamble p;
  if (file_.size() < sizeof p) return bad_input(path() + ": too short for an .otr file");
  OTR_RETURN_IF_ERROR(file_.read_exact(0, std::as_writable_bytes(std::span(&p, 1))));
  if (std::memcmp(p.magic, kMagic, sizeof kMagic) != 0) return bad_input(path() + ": not an .otr file");
  if (xxh64(&p, offsetof(Preamble, preamble_hash)) != p.preamble_hash) return bad_item(path(), "preamble", "checksum mismatch");
  if (p.version != kOtrVersion) {
    return unsupported(path() + ": .otr version " + std::to_string(p.version) + "; this build reads " +
                       std::to_string(kOtrVersion));
  }
  if (p.flags != 0 || p.zero != 0) return bad_item(path(), "preamble", "reserved bytes are not zero");
  if (p.header_offset < sizeof p || p.header_offset > file_.size() || p.header_stored != file_.size() - p.header_offset ||
      p.header_stored > kOtrMaxHeaderBytes || p.header_raw > kOtrMaxHeaderBytes) {
    return bad_item(path(), "header",
                    "its place or size is impossible in a file of " + std::to_string(file_.size()) + " bytes");
  }
  std::string stored(p.header_stored, '\0'), text(p.header_raw, '\0');
  OTR_RETURN_IF_ERROR(file_.read_exact(p.header_offset, std::as_writable_bytes(std::span(stored.data(), stored.size()))));
  if (xxh64(stored.data(), stored.size()) != p.header_hash) return bad_item(path(), "header", "checksum mismatch");
  const Context context(ZSTD_createDCtx());
  if (context == nullptr) return Status(StatusCode::kOutOfMemory, path() + ": out of memory");
  if (!decompress(context.get(), reinterpret_cast<const uint8_t*>(stored.data()), stored.size(),
                  reinterpret_cast<uint8_t*>(text.data()), text.size())) {
    return bad_item(path(), "header", "does not decompress");
  }
  return parse_header(text, p.header_offset);
}

Status OtrFile::parse_header(std::string_view text, uint64_t data_end) {
  OTR_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(path() + ": header", text));
  const JsonValue layout = document.root().find("layout");
  if (!layout || !layout.is(JsonKind::kString)) return bad_item(path(), "header", "no layout");
  if (layout.as_string() != kOtrLayout)
    return unsupported_item(path(), "layout", std::string(layout.as_string()) + " is not known");
  std::vector<OtrFrame> all;
  for (const auto& [section, items] : {std::pair{"files", &files_}, std::pair{"weights", &weights_}}) {
    const JsonValue object = document.root().find(section);
    if (!object || !object.is(JsonKind::kObject)) return bad_item(path(), "header", std::string("no ") + section);
    for (JsonValue v = object.first(); v; v = v.next()) {
      OtrItem item;
      if (const std::string reason = parse_item(v, &item); !reason.empty()) return bad_item(path(), v.key(), reason);
      all.insert(all.end(), item.frames.begin(), item.frames.end());
      items->emplace(std::string(v.key()), std::move(item));
    }
  }
  std::sort(all.begin(), all.end(), [](const OtrFrame& a, const OtrFrame& b) { return a.offset < b.offset; });
  uint64_t at = kOtrPreambleBytes;
  for (const OtrFrame& f : all) {
    if (f.offset != at) return bad_item(path(), "frames", "overlap or leave a hole at byte " + std::to_string(at));
    at += f.stored;  // both bounded by the header's size: no overflow
  }
  if (at != data_end)
    return bad_item(path(), "frames",
                    "end at byte " + std::to_string(at) + ", the header begins at " + std::to_string(data_end));
  return {};
}

const OtrItem* OtrFile::file_item(const std::string& name) const {
  const auto it = files_.find(name);
  return it == files_.end() ? nullptr : &it->second;
}

const OtrItem* OtrFile::weight_item(const std::string& piece) const {
  const auto it = weights_.find(piece);
  return it == weights_.end() ? nullptr : &it->second;
}

// What one thread needs to read frames. Made before the threads start: an allocation that fails is an error there.
struct OtrFile::Scratch {
  Status reserve(std::span<const OtrRead> reads) {
    uint64_t most_stored = 0, most_raw = 0;
    for (const OtrRead& r : reads) {
      for (const OtrFrame& f : r.item->frames) {
        most_stored = std::max(most_stored, f.stored);
        if (r.item->coding == OtrCoding::kPlanes) most_raw = std::max(most_raw, f.raw);
      }
    }
    stored.resize(most_stored);
    planes.resize(most_raw);
    context.reset(ZSTD_createDCtx());
    return context != nullptr ? Status() : Status(StatusCode::kOutOfMemory, "out of memory");
  }

  std::vector<uint8_t> stored, planes;
  Context context;
};

Status OtrFile::read_frame(const OtrFrame& frame, OtrCoding coding, std::string_view what, void* out, Scratch* scratch) const {
  uint8_t* target = static_cast<uint8_t*>(out);
  const bool coded = frame.stored != frame.raw, planes = coding == OtrCoding::kPlanes;
  // Bytes that are stored as they are need no stop in between.
  uint8_t* stored = coded || planes ? scratch->stored.data() : target;
  OTR_RETURN_IF_ERROR(file_.read_exact(frame.offset, std::as_writable_bytes(std::span(stored, frame.stored))));
  if (frame_sum(stored, frame.stored) != frame.hash) {
    return bad_item(path(), what, "checksum mismatch in the frame at byte " + std::to_string(frame.offset));
  }
  bool good = true;
  if (coded && coding == OtrCoding::kNibbles) {
    good = decode_nibbles(stored, frame.stored, target, frame.raw);
  } else if (coded) {
    good = decompress(scratch->context.get(), stored, frame.stored, planes ? scratch->planes.data() : target, frame.raw);
  }
  if (!good) return bad_item(path(), what, "the frame at byte " + std::to_string(frame.offset) + " does not decompress");
  if (planes) join_planes(coded ? scratch->planes.data() : stored, frame.raw, target);
  return {};
}

Status OtrFile::read(std::span<const OtrRead> reads, ThreadPool& pool) const {
  struct Place {
    const OtrFrame* frame;
    const OtrRead* read;
    uint8_t* out;
  };
  std::vector<Place> places;
  for (const OtrRead& r : reads) {
    uint8_t* out = static_cast<uint8_t*>(r.out);
    for (const OtrFrame& f : r.item->frames) {
      places.push_back({&f, &r, out});
      out += f.raw;
    }
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.frame->offset < b.frame->offset; });
  std::vector<Scratch> scratch(static_cast<size_t>(pool.num_threads()));
  for (Scratch& s : scratch) OTR_RETURN_IF_ERROR(s.reserve(reads));
  // Two megabytes of small frames a task: threads that first touch one huge page at the same time both clear one.
  const size_t a_task = std::clamp<size_t>(places.size() / (scratch.size() * 4), 1, 8);
  const int num_tasks = static_cast<int>((places.size() + a_task - 1) / a_task);
  return parallel_status(pool, num_tasks, [&](int task, int thread) -> Status {
    const size_t first = static_cast<size_t>(task) * a_task;
    for (size_t i = first; i < std::min(first + a_task, places.size()); ++i) {
      const Place& p = places[i];
      OTR_RETURN_IF_ERROR(
          read_frame(*p.frame, p.read->item->coding, p.read->what, p.out, &scratch[static_cast<size_t>(thread)]));
    }
    return {};
  });
}

Result<std::string> OtrFile::read_text(const std::string& name) const {
  const OtrItem* item = file_item(name);
  if (item == nullptr) return std::string();
  if (item->bytes > kMaxItemBytes) return bad_item(path(), name, "larger than " + std::to_string(kMaxItemBytes) + " bytes");
  std::string text(item->bytes, '\0');
  const OtrRead read{item, name, text.data()};
  Scratch scratch;
  OTR_RETURN_IF_ERROR(scratch.reserve({&read, 1}));
  uint64_t at = 0;
  for (const OtrFrame& f : item->frames) {
    OTR_RETURN_IF_ERROR(read_frame(f, item->coding, name, text.data() + at, &scratch));
    at += f.raw;
  }
  return text;
}

}  // namespace otr
