#include "runtime/history_file.h"

#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "kernels/base/descriptor.h"
#include "loader/file.h"
#include "loader/xxh64.h"
#include "runtime/file_fields.h"

namespace otr {
namespace {

constexpr char kHistoryMagic[] = "OUTRHIST", kFrameMagic[] = "OTRFRAME";
constexpr size_t kMagicBytes = 8;
constexpr uint64_t kVersion = 1;
constexpr uint64_t kMaxFrameBytes = uint64_t{1} << 30;  // raw; a prompt's further responses are not saved
constexpr int kCompressionLevel = 1;

struct HistoryHeader {
  char magic[kMagicBytes];
  uint64_t version, num_frames, hash;
};
struct FrameHeader {
  char magic[kMagicBytes];
  uint64_t raw, stored, stored_hash, hash;
};
static_assert(sizeof(HistoryHeader) == 32 && sizeof(FrameHeader) == 40);

template <typename T>
uint64_t hash_of(const T& header) {
  return xxh64(&header, sizeof header - sizeof header.hash);
}

// ---- Writing -------------------------------------------------------------------------------------------------------------

template <typename T>
void append(std::vector<char>* bytes, const T* values, size_t count) {
  const size_t at = bytes->size();
  bytes->resize(at + count * sizeof(T));
  if (count > 0) std::memcpy(bytes->data() + at, values, count * sizeof(T));
}

void append_u32(std::vector<char>* bytes, size_t value) {
  const uint32_t narrow = static_cast<uint32_t>(value);
  append(bytes, &narrow, 1);
}

std::vector<char> encode(std::span<const int32_t> prompt, const PromptHistory& history) {
  std::vector<char> raw;
  append_u32(&raw, prompt.size());
  append_u32(&raw, 0);  // responses: below
  append_u32(&raw, history.has_logprobs());
  append(&raw, prompt.data(), prompt.size());
  uint32_t count = 0;
  for (size_t i = 0; i < history.num_responses(); ++i) {
    const HistoryResponse r = history.response(i);
    if (raw.size() + 8 + 8 * r.tokens.size() > kMaxFrameBytes) break;
    append_u32(&raw, r.tokens.size());
    append(&raw, &r.reward, 1);
    append(&raw, r.tokens.data(), r.tokens.size());
    append(&raw, r.logprobs.data(), r.logprobs.size());
    ++count;
  }
  std::memcpy(raw.data() + sizeof count, &count, sizeof count);
  return raw;
}

// A file that somebody else has opened.
class OpenFile {
 public:
  explicit OpenFile(int fd) : fd_(fd) {}
  Status write(const void* data, size_t size) const {
    const NoSizeSignal no_signal;
    for (const char* at = static_cast<const char*>(data); size > 0;) {
      const ssize_t put = ::write(fd_, at, size);
      if (put < 0 && errno != EINTR) return io_error("cannot write the history: " + std::generic_category().message(errno));
      if (put > 0) at += put, size -= static_cast<size_t>(put);
    }
    return {};
  }

 private:
  const int fd_;
};

template <typename Out>
Status write_frame(Out&& file, std::span<const int32_t> prompt, const PromptHistory& history) {
  const std::vector<char> raw = encode(prompt, history);
  std::vector<char> stored(ZSTD_compressBound(raw.size()));
  const size_t size = ZSTD_compress(stored.data(), stored.size(), raw.data(), raw.size(), kCompressionLevel);
  if (ZSTD_isError(size))
    return Status(StatusCode::kOutOfMemory, std::string("cannot compress a prompt's history: ") + ZSTD_getErrorName(size));
  FrameHeader header{{}, raw.size(), size, xxh64(stored.data(), size), 0};
  std::memcpy(header.magic, kFrameMagic, kMagicBytes);
  header.hash = hash_of(header);
  OTR_RETURN_IF_ERROR(file.write(&header, sizeof header));
  return file.write(stored.data(), size);
}

template <typename Out>
Status write_all(Out&& file, const HistoryIndex& index) {
  HistoryHeader header{{}, kVersion, index.prompts().size(), 0};
  std::memcpy(header.magic, kHistoryMagic, kMagicBytes);
  header.hash = hash_of(header);
  OTR_RETURN_IF_ERROR(file.write(&header, sizeof header));
  for (const auto& [prompt, history] : index.prompts()) OTR_RETURN_IF_ERROR(write_frame(file, prompt, *history));
  return {};
}

// ---- Reading -------------------------------------------------------------------------------------------------------------

bool are_tokens(std::span<const int32_t> ids, int32_t vocab_size) {
  return std::all_of(ids.begin(), ids.end(), [vocab_size](int32_t id) { return id >= 0 && id < vocab_size; });
}

// Rounding may lift the log-prob of a certain token a little above 0.
bool are_logprobs(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x) && x < 0.01f; });
}

// "" if the frame was put into the index, else why not.
std::string decode(std::span<const char> raw, int32_t vocab_size, bool with_logprobs, HistoryIndex* index) {
  FieldReader in(std::as_bytes(raw));
  const uint32_t num_prompt = in.take<uint32_t>(), num_responses = in.take<uint32_t>();
  const bool has_logprobs = in.take<uint32_t>() == 1;
  std::vector<int32_t> prompt = in.take<int32_t>(num_prompt);
  bool in_vocabulary = are_tokens(prompt, vocab_size), finite = true;
  std::vector<HistoryResponse> responses;
  for (uint32_t i = 0; in.ok() && i < num_responses; ++i) {
    HistoryResponse r;
    const uint32_t num_tokens = in.take<uint32_t>();
    r.reward = in.take<float>();
    r.tokens = in.take<int32_t>(num_tokens);
    if (has_logprobs) r.logprobs = in.take<float>(num_tokens);
    in_vocabulary &= are_tokens(r.tokens, vocab_size);
    finite &= !std::isinf(r.reward) && are_logprobs(r.logprobs);
    if (!with_logprobs) r.logprobs.clear();
    responses.push_back(std::move(r));
  }
  if (!in.at_end()) return "its lengths do not add up";
  if (!in_vocabulary) return "a token id is outside the vocabulary of " + std::to_string(vocab_size);
  if (!finite) return "a reward or log-prob is no finite number";
  index->put(prompt, std::make_shared<const PromptHistory>(prompt, responses));
  return "";
}

class FileReader {
 public:
  FileReader(const File& file, int32_t vocab_size, bool with_logprobs)
      : file_(file), vocab_size_(vocab_size), with_logprobs_(with_logprobs) {}

  Result<LoadedHistory> read() {
    HistoryHeader header;
    if (file_.size() == 0) return bad_input(file_.path() + ": the file is empty");
    if (file_.size() < sizeof header) {
      return invalid_argument(file_.path() + ": not a history file: it has " + std::to_string(file_.size()) +
                              " bytes, and the header " + std::to_string(sizeof header));
    }
    OTR_RETURN_IF_ERROR(read_at(0, &header, sizeof header));
    if (std::memcmp(header.magic, kHistoryMagic, kMagicBytes) != 0)
      return invalid_argument(file_.path() + ": not a history file");
    if (header.hash != hash_of(header))
      return invalid_argument(file_.path() + ": not a history file, or its header is damaged");
    if (header.version != kVersion) {
      return unsupported(file_.path() + ": version " + std::to_string(header.version) +
                         " of the format; this library reads version " + std::to_string(kVersion));
    }
    uint64_t good = 0;
    for (uint64_t at = sizeof header; at < file_.size();) {
      FrameHeader frame;
      const std::string fault = read_frame(at, &frame);
      if (!unread_.ok()) return unread_;
      good += fault.empty();
      if (!fault.empty() && first_fault_.empty()) first_fault_ = "the frame at offset " + std::to_string(at) + ": " + fault;
      at = frame.stored > 0 ? at + sizeof frame + frame.stored : next_frame(at + 1);
      if (!unread_.ok()) return unread_;
    }
    if (good != header.num_frames && first_fault_.empty()) first_fault_ = "the file ends early";
    if (!first_fault_.empty()) {
      loaded_.damage = file_.path() + ": " + std::to_string(good) + " of " + std::to_string(header.num_frames) +
                       " prompts read; " + first_fault_;
    }
    return std::move(loaded_);
  }

 private:
  Status read_at(uint64_t offset, void* data, size_t size) const {
    return file_.read_exact(offset, {static_cast<std::byte*>(data), size});
  }

  // That a file has become shorter meanwhile is damage; what the system says is kept.
  Status read_frame_bytes(uint64_t offset, void* data, size_t size) {
    Status status = read_at(offset, data, size);
    if (status.code() == StatusCode::kIoError) unread_ = status;
    return status;
  }

  // "" if the frame is whole. frame->stored stays 0 if its length cannot be trusted.
  std::string read_frame(uint64_t at, FrameHeader* frame) {
    *frame = {};
    const uint64_t left = file_.size() - at;
    if (left < sizeof *frame) return "the file ends in its header";
    FrameHeader read;
    if (const Status s = read_frame_bytes(at, &read, sizeof read); !s.ok()) return s.message();
    if (std::memcmp(read.magic, kFrameMagic, kMagicBytes) != 0 || read.hash != hash_of(read)) return "its header is damaged";
    if (read.stored > left - sizeof read) return "the file ends in it";
    if (read.raw > kMaxFrameBytes || read.stored > ZSTD_compressBound(kMaxFrameBytes))
      return "it is larger than a frame may be";
    *frame = read;
    stored_.resize(read.stored);
    if (const Status s = read_frame_bytes(at + sizeof read, stored_.data(), stored_.size()); !s.ok()) return s.message();
    if (xxh64(stored_.data(), stored_.size()) != read.stored_hash) return "its checksum is wrong";
    if (ZSTD_getFrameContentSize(stored_.data(), stored_.size()) != read.raw) return "it does not hold what it declares";
    raw_.resize(read.raw);
    if (ZSTD_decompress(raw_.data(), raw_.size(), stored_.data(), stored_.size()) != read.raw)
      return "it cannot be decompressed";
    return decode(raw_, vocab_size_, with_logprobs_, &loaded_.index);
  }

  // The offset of the next frame's magic at or after `at`, or the file's size.
  uint64_t next_frame(uint64_t at) {
    constexpr uint64_t kWindow = uint64_t{1} << 20;
    while (at < file_.size()) {
      stored_.resize(std::min(kWindow, file_.size() - at));
      if (!read_frame_bytes(at, stored_.data(), stored_.size()).ok()) break;
      const auto found = std::search(stored_.begin(), stored_.end(), kFrameMagic, kFrameMagic + kMagicBytes);
      if (found != stored_.end()) return at + static_cast<uint64_t>(found - stored_.begin());
      if (stored_.size() < kWindow) break;
      at += kWindow - kMagicBytes + 1;
    }
    return file_.size();
  }

  const File& file_;
  const int32_t vocab_size_;
  const bool with_logprobs_;
  LoadedHistory loaded_;
  std::string first_fault_;
  Status unread_;
  std::vector<char> stored_, raw_;
};

}  // namespace

Status save_history(const std::string& path, const HistoryIndex& index) {
  ReplacedFile file(path);
  OTR_RETURN_IF_ERROR(file.created());
  OTR_RETURN_IF_ERROR(write_all(file, index));
  return file.rename();
}

Status write_history(int fd, const HistoryIndex& index) { return write_all(OpenFile(fd), index); }

Result<LoadedHistory> load_history(const std::string& path, int32_t vocab_size, bool with_logprobs) {
  OTR_ASSIGN_OR_RETURN(const File file, File::open(path));
  return FileReader(file, vocab_size, with_logprobs).read();
}

}  // namespace otr
