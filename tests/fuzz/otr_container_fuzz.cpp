// The .otr container. A random file fails at its checksums, so half of the inputs get theirs repaired.
// Input: 'r' and a file as it is; or 'f', u16 size of a header (JSON, not compressed), the header, and the frames: the target
// makes the preamble, compresses the header and puts in the hashes of the frames.
#include <zstd.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "loader/otr_file.h"
#include "loader/weight_source.h"
#include "loader/xxh64.h"
#include "tests/fuzz/fuzz_target.h"

namespace otr::fuzz {
namespace {

using nlohmann::json;

// [offset, stored, raw, hash], as far as it is one and lies in the file.
void repair_hash(json* frame, std::string_view file) {
  if (!frame->is_array() || frame->size() != 4 || !(*frame)[0].is_number_unsigned() || !(*frame)[1].is_number_unsigned())
    return;
  const uint64_t offset = (*frame)[0], stored = (*frame)[1];
  if (offset > file.size() || stored > file.size() - offset) return;
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(xxh64(file.data() + offset, stored)));
  (*frame)[3] = hash;
}

std::string repaired_header(std::string_view text, std::string_view file) {
  json header = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return std::string(text);
  for (const char* section : {"files", "weights"}) {
    if (!header.contains(section) || !header[section].is_object()) continue;
    for (json& item : header[section]) {
      if (!item.is_object() || !item.contains("frames") || !item["frames"].is_array()) continue;
      for (json& frame : item["frames"]) repair_hash(&frame, file);
    }
  }
  return header.dump();
}

std::string assembled(std::string_view input) {
  uint16_t header_size = 0;
  if (input.size() < sizeof header_size) return "";
  std::memcpy(&header_size, input.data(), sizeof header_size);
  input.remove_prefix(sizeof header_size);
  const std::string_view text = input.substr(0, header_size);
  std::string file(kOtrPreambleBytes, '\0');
  file += input.substr(text.size());
  const std::string header = repaired_header(text, file);
  std::vector<char> stored(ZSTD_compressBound(header.size()));
  stored.resize(ZSTD_compress(stored.data(), stored.size(), header.data(), header.size(), 1));
  const uint64_t fields[] = {kOtrVersion, file.size(), stored.size(), header.size(), xxh64(stored.data(), stored.size()), 0};
  std::memcpy(file.data(), "OUTRIDER", 8);
  std::memcpy(file.data() + 8, fields, sizeof fields);
  const uint64_t hash = xxh64(file.data(), kOtrPreambleBytes - sizeof(uint64_t));
  std::memcpy(file.data() + kOtrPreambleBytes - sizeof hash, &hash, sizeof hash);
  return file.append(stored.data(), stored.size());
}

// Reads every item that `header` names.
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
  const bool repair = input.starts_with('f');
  if (!input.empty()) input.remove_prefix(1);
  memory.write(repair ? assembled(input) : std::string(input));
  const auto file = otr::OtrFile::open(memory.path());
  if (!file.ok())
    require_reason(file.status(), memory.path());
  else if (repair)
    read_items(file.value(),
               input.substr(2, input.size() < 2 ? 0 : static_cast<uint8_t>(input[0]) | static_cast<uint8_t>(input[1]) << 8),
               pool);
  const auto model = otr::open_model(memory.path());
  if (!model.ok()) require(model.status().message().starts_with(memory.path()), "an error names the file");
  return 0;
}
