// The .otr container. A random file fails at its checksums, so most inputs get theirs repaired.
// Input: 'r' and a file as it is; 'p' and a file whose preamble gets right sums; or 'f' or 'g', a header (JSON, not
// compressed), a zero byte, and the frames: the target makes the preamble, compresses the header and puts in the hashes of the
// frames, and for 'g' their offsets, so that they tile the file.
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "loader/frame_sum.h"
#include "loader/otr_file.h"
#include "loader/weight_source.h"
#include "loader/xxh64.h"
#include "tests/fuzz/fuzz_target.h"

namespace otr::fuzz {
namespace {

using nlohmann::json;

constexpr size_t kMostFrames = 1 << 16;  // bytes of them that a repaired file may have

// [offset, stored, raw, hash], as far as it is one and lies in the file.
void repair_frame(json* frame, bool tile, uint64_t* end, std::string* file) {
  if (!frame->is_array() || frame->size() != 4 || !(*frame)[0].is_number_unsigned() || !(*frame)[1].is_number_unsigned())
    return;
  const uint64_t stored = (*frame)[1];
  if (tile && stored <= kMostFrames && *end <= kMostFrames) {
    (*frame)[0] = *end;
    *end += stored;
    file->resize(std::max<size_t>(file->size(), *end));
  }
  const uint64_t offset = (*frame)[0];
  if (offset > file->size() || stored > file->size() - offset) return;
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(frame_sum(file->data() + offset, stored)));
  (*frame)[3] = hash;
}

// The header's text with right hashes; `file` is the preamble and the frames.
std::string repaired_header(std::string_view text, bool tile, std::string* file) {
  json header = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return std::string(text);
  uint64_t end = kOtrPreambleBytes;
  for (const char* section : {"files", "weights"}) {
    if (!header.contains(section) || !header[section].is_object()) continue;
    for (json& item : header[section]) {
      if (!item.is_object() || !item.contains("frames") || !item["frames"].is_array()) continue;
      for (json& frame : item["frames"]) repair_frame(&frame, tile, &end, file);
    }
  }
  if (tile) file->resize(end);
  return header.dump();
}

void sum_preamble(std::string* file) {
  const uint64_t hash = xxh64(file->data(), kOtrPreambleBytes - sizeof(uint64_t));
  std::memcpy(file->data() + kOtrPreambleBytes - sizeof hash, &hash, sizeof hash);
}

std::string assembled(std::string_view text, std::string_view frames, bool tile) {
  std::string file = std::string(kOtrPreambleBytes, '\0').append(frames);
  const std::string header = repaired_header(text, tile, &file);
  std::vector<char> stored(ZSTD_compressBound(header.size()));
  stored.resize(ZSTD_compress(stored.data(), stored.size(), header.data(), header.size(), 1));
  const uint64_t fields[] = {kOtrVersion, file.size(), stored.size(), header.size(), xxh64(stored.data(), stored.size()), 0};
  std::memcpy(file.data(), "OUTRIDER", 8);
  std::memcpy(file.data() + 8, fields, sizeof fields);
  sum_preamble(&file);
  return file.append(stored.data(), stored.size());
}

std::string with_right_sums(std::string_view raw) {
  std::string file(raw);
  if (file.size() < kOtrPreambleBytes) return file;
  uint64_t offset = 0, stored = 0;
  std::memcpy(&offset, file.data() + 16, sizeof offset);
  std::memcpy(&stored, file.data() + 24, sizeof stored);
  if (offset <= file.size() && stored <= file.size() - offset) {
    const uint64_t hash = xxh64(file.data() + offset, stored);
    std::memcpy(file.data() + 40, &hash, sizeof hash);
  }
  sum_preamble(&file);
  return file;
}

bool is_stored(const OtrItem& item) {
  return std::all_of(item.frames.begin(), item.frames.end(), [](const OtrFrame& f) { return f.stored == f.raw; });
}

// Reads every item that `header` names. Their frames' sums are right, so that what is not coded can always be read.
void read_items(const OtrFile& file, std::string_view header, ThreadPool& pool) {
  const json names = json::parse(header.begin(), header.end(), nullptr, /*allow_exceptions=*/false);
  if (!names.is_object()) return;
  for (const char* section : {"files", "weights"}) {
    if (!names.contains(section) || !names[section].is_object()) continue;
    for (const auto& [name, ignored] : names[section].items()) {
      const bool is_text = section[0] == 'f';
      const OtrItem* item = is_text ? file.file_item(name) : file.weight_item(name);
      if (item == nullptr || item->bytes > (16 << 20)) continue;
      std::vector<char> out(item->bytes);
      const Status status = file.read(*item, name, out.data(), pool);
      if (!status.ok()) require_reason(status, file.path());
      require(status.ok() || !is_stored(*item), "what is stored as it is can be read");
      if (!is_text) continue;
      const auto text = file.read_text(name);
      require(text.ok() == status.ok(), "an item reads the same way twice");
      if (text.ok()) require(text.value() == std::string_view(out.data(), out.size()), "an item reads the same twice");
    }
  }
}

}  // namespace
}  // namespace otr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace otr::fuzz;
  static const MemoryFile memory;
  static otr::ThreadPool pool(1);
  std::string_view input = as_text(data, size);
  const char kind = input.empty() ? 'r' : input[0];
  if (!input.empty()) input.remove_prefix(1);
  const bool has_header = kind == 'f' || kind == 'g';
  const std::string_view header = has_header ? input.substr(0, input.find('\0')) : std::string_view();
  if (has_header) memory.write(assembled(header, input.substr(std::min(input.size(), header.size() + 1)), kind == 'g'));
  else memory.write(kind == 'p' ? with_right_sums(input) : std::string(input));
  const auto file = otr::OtrFile::open(memory.path());
  if (!file.ok()) require_reason(file.status(), memory.path());
  else read_items(file.value(), header, pool);
  const auto model = otr::open_model(memory.path());
  if (!model.ok()) require(model.status().message().starts_with(memory.path()), "an error names the file");
  return 0;
}
