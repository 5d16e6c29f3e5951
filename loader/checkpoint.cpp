#include "loader/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "loader/file.h"
#include "loader/item_status.h"
#include "loader/json_document.h"
#include "loader/tensor_data.h"

namespace otr {
namespace {

constexpr uint64_t kMaxIndexBytes = 64 << 20;
constexpr size_t kChunkBytes = 256 << 10;  // of stored data in memory at once, where it must be converted or compared

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kAdapterFile = "adapter_config.json";

// A tensor and the file (its place in Impl::files) that holds it.
struct Entry {
  const TensorInfo* info;
  size_t file;
};

// One line of the index.
struct Listed {
  std::string_view tensor;
  std::string_view shard;
};

// Shard names come from the index, which may be hostile: nothing outside the folder may be opened.
Status check_shard_name(const std::string& index_path, std::string_view tensor, std::string_view shard) {
  const std::string named = "shard " + in_quotes(shard);
  if (shard.starts_with('/')) return bad_item(index_path, tensor, named + " is an absolute path");
  if (shard.empty() || shard == "." || shard == ".." || shard.find('/') != shard.npos || shard.find('\0') != shard.npos) {
    return bad_item(index_path, tensor, named + " is not the name of a file in the folder");
  }
  return {};
}

struct FreeChars {
  void operator()(char* p) const { std::free(p); }
};
using CPath = std::unique_ptr<char, FreeChars>;

// Opens `name`, unless it is a link to somewhere outside the folder. `lister` and `item` name who asks for it in errors.
Result<SafetensorsFile> open_inside(const std::string& folder, const std::string& name, const std::string& lister,
                                    std::string_view item) {
  const std::string path = join_path(folder, name);
  const CPath real_folder(::realpath(folder.c_str(), nullptr));
  if (!real_folder) return io_error(folder + ": " + std::strerror(errno));
  const CPath real_path(::realpath(path.c_str(), nullptr));
  if (!real_path) {
    if (errno != ENOENT) return io_error(path + ": " + std::strerror(errno));
    return bad_item(lister, item, "file " + in_quotes(name) + " does not exist");
  }
  if (!std::string_view(real_path.get()).starts_with(join_path(real_folder.get(), ""))) {
    return bad_item(path, item,
                    "a symbolic link out of the folder, to " + std::string(real_path.get()) +
                        "; copy the folder with its links resolved (cp -rL)");
  }
  return SafetensorsFile::open(path);
}

}  // namespace

struct Checkpoint::Impl {
  std::string source;  // the index, or the single file
  std::vector<SafetensorsFile> files;
  std::vector<Entry> entries;                       // by name
  std::unique_ptr<std::atomic<bool>[]> converted;   // by entry
  const Entry *tied = nullptr, *tied_to = nullptr;  // whoever reads the one compares it with the other

  const Entry* find(std::string_view name) const {
    const auto at = std::lower_bound(entries.begin(), entries.end(), name,
                                     [](const Entry& e, std::string_view n) { return e.info->name < n; });
    return at != entries.end() && at->info->name == name ? &*at : nullptr;
  }

  Status open_single(const std::string& folder);
  Status open_shards(const std::string& folder);
  Status merge_files();
  Status compare_with_index(const std::vector<Listed>& listed, const std::vector<std::string_view>& shards) const;

  // Whether `bytes`, which begin at `offset` of `tied`, are those of `tied_to`.
  Status compare_tied(uint64_t offset, std::span<const std::byte> bytes) const;

  // Elements [begin, begin + count) of a tensor; count < 0: all. `out` holds those.
  template <typename Out>
  Status read(std::string_view name, std::span<const int64_t> shape, int64_t begin, int64_t count, Out* out) const;

  // Called after a tensor has been read as Element.
  void note_conversion(std::string_view name) const {
    constexpr Dtype kOwn = std::is_same_v<Element, float> ? Dtype::kF32 : Dtype::kBf16;
    const Entry* entry = find(name);
    if (entry->info->dtype != kOwn) converted[static_cast<size_t>(entry - entries.data())] = true;
  }
};

Status Checkpoint::Impl::open_single(const std::string& folder) {
  source = join_path(folder, std::string(kSingleFile));
  if (!path_exists(source)) {
    return bad_input(folder + ": holds neither " + std::string(kSingleFile) + " nor " + std::string(kIndexFile));
  }
  OTR_ASSIGN_OR_RETURN(SafetensorsFile file, open_inside(folder, std::string(kSingleFile), source, kSingleFile));
  files.push_back(std::move(file));
  return merge_files();
}

Status Checkpoint::Impl::open_shards(const std::string& folder) {
  source = join_path(folder, std::string(kIndexFile));
  OTR_ASSIGN_OR_RETURN(const JsonDocument index, JsonDocument::load(source, kMaxIndexBytes));
  const JsonValue weight_map = index.root().find("weight_map");
  if (!weight_map || !weight_map.is(JsonKind::kObject)) return bad_item(source, "weight_map", "missing or not an object");
  std::vector<Listed> listed;
  listed.reserve(weight_map.size());
  for (JsonValue line = weight_map.first(); line; line = line.next()) {
    if (!line.is(JsonKind::kString)) return bad_item(source, line.key(), "its shard is not a string");
    OTR_RETURN_IF_ERROR(check_shard_name(source, line.key(), line.as_string()));
    listed.push_back({line.key(), line.as_string()});
  }
  std::sort(listed.begin(), listed.end(), [](const Listed& a, const Listed& b) { return a.tensor < b.tensor; });
  std::vector<Listed> firsts = listed;  // one line of every shard, so that an error can name a tensor
  const auto by_shard = [](const Listed& a, const Listed& b) { return a.shard < b.shard; };
  const auto same_shard = [](const Listed& a, const Listed& b) { return a.shard == b.shard; };
  std::stable_sort(firsts.begin(), firsts.end(), by_shard);
  firsts.erase(std::unique(firsts.begin(), firsts.end(), same_shard), firsts.end());
  const bool is_one_file = firsts.size() == 1 && firsts.front().shard == kSingleFile;
  if (!is_one_file && path_exists(join_path(folder, std::string(kSingleFile)))) {
    return bad_item(source, kSingleFile,
                    "is there too, but not the one file that the index names; one of the two is left from another save: remove "
                    "the stale one");
  }
  std::vector<std::string_view> shards;
  for (const Listed& first : firsts) {
    OTR_ASSIGN_OR_RETURN(SafetensorsFile file, open_inside(folder, std::string(first.shard), source, first.tensor));
    files.push_back(std::move(file));
    shards.push_back(first.shard);
  }
  OTR_RETURN_IF_ERROR(merge_files());
  return compare_with_index(listed, shards);
}

// Fills `entries`; a tensor in two files is an error.
Status Checkpoint::Impl::merge_files() {
  for (size_t i = 0; i < files.size(); ++i) {
    for (const TensorInfo& info : files[i].tensors()) entries.push_back({&info, i});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.info->name < b.info->name; });
  const auto twin = std::adjacent_find(entries.begin(), entries.end(),
                                       [](const Entry& a, const Entry& b) { return a.info->name == b.info->name; });
  if (twin != entries.end()) {
    return bad_item(files[twin->file].path(), twin->info->name, "also in " + files[(twin + 1)->file].path());
  }
  converted = std::make_unique<std::atomic<bool>[]>(entries.size());
  return {};
}

// Both lists are sorted by tensor: one walk finds the first difference.
Status Checkpoint::Impl::compare_with_index(const std::vector<Listed>& listed,
                                            const std::vector<std::string_view>& shards) const {
  auto line = listed.begin();
  auto entry = entries.begin();
  while (line != listed.end() || entry != entries.end()) {
    if (line == listed.end() || (entry != entries.end() && entry->info->name < line->tensor)) {
      return bad_item(files[entry->file].path(), entry->info->name, "in this file, but not listed in " + source);
    }
    if (entry == entries.end() || line->tensor < entry->info->name) {
      return bad_item(source, line->tensor, "listed for " + in_quotes(line->shard) + ", which does not hold it");
    }
    if (shards[entry->file] != line->shard) {
      return bad_item(source, line->tensor,
                      "listed for " + in_quotes(line->shard) + ", but found in " + files[entry->file].path());
    }
    ++line, ++entry;
  }
  return {};
}

Status Checkpoint::Impl::compare_tied(uint64_t offset, std::span<const std::byte> bytes) const {
  const SafetensorsFile& file = files[tied_to->file];
  const std::string& name = tied_to->info->name;
  const size_t chunk = std::min(bytes.size(), kChunkBytes);
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(chunk);
  for (size_t done = 0; done < bytes.size();) {
    const size_t now = std::min(chunk, bytes.size() - done);
    const Status status = file.read(tied_to->info->begin + offset + done, {buffer.get(), now});
    if (!status.ok()) return Status(status.code(), item_message(file.path(), name, status.message()));
    if (std::memcmp(buffer.get(), bytes.data() + done, now) != 0) {
      return bad_item(file.path(), name,
                      "differs from " + tied->info->name + ", but config.json's tie_word_embeddings says that they are one");
    }
    done += now;
  }
  return {};
}

template <typename Out>
Status Checkpoint::Impl::read(std::string_view name, std::span<const int64_t> shape, int64_t begin, int64_t count,
                              Out* out) const {
  const Entry* entry = find(name);
  if (!entry) return bad_item(source, name, "missing");
  const TensorInfo& info = *entry->info;
  const SafetensorsFile& file = files[entry->file];
  if (!std::ranges::equal(info.shape, shape)) {
    return bad_item(file.path(), name, "expected shape " + shape_text(shape) + ", found " + shape_text(info.shape));
  }
  if (!dtype_is_loadable(info.dtype)) {
    return unsupported_item(file.path(), name, "dtype " + std::string(dtype_name(info.dtype)) + " cannot be loaded");
  }
  const auto fail = [&](const Status& s) { return Status(s.code(), item_message(file.path(), name, s.message())); };
  const size_t total = static_cast<size_t>(count < 0 ? info.num_elements() : count);
  const size_t width = static_cast<size_t>(dtype_size(info.dtype));
  const uint64_t start = info.begin + static_cast<uint64_t>(begin) * width;
  if (info.dtype == (std::is_same_v<Out, float> ? Dtype::kF32 : Dtype::kBf16)) {
    const auto bytes = std::as_writable_bytes(std::span(out, total));
    const Status status = file.read(start, bytes);
    if (!status.ok()) return fail(status);
    return entry == tied ? compare_tied(start - info.begin, bytes) : Status();
  }
  const size_t chunk = std::min(total, kChunkBytes / width);
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(chunk * width);
  for (size_t done = 0; done < total;) {
    const size_t now = std::min(chunk, total - done);
    const Status status = file.read(start + done * width, {buffer.get(), now * width});
    if (!status.ok()) return fail(status);
    if (entry == tied) OTR_RETURN_IF_ERROR(compare_tied(start + done * width - info.begin, {buffer.get(), now * width}));
    convert_tensor(info.dtype, buffer.get(), now, out + done);
    done += now;
  }
  return {};
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Result<Checkpoint> Checkpoint::open(const std::string& folder) {
  const std::string adapter = join_path(folder, std::string(kAdapterFile));
  if (path_exists(adapter))
    return unsupported(adapter + ": an adapter beside the weights is not applied; merge it into them first");
  auto impl = std::make_unique<Impl>();
  const bool has_index = path_exists(join_path(folder, std::string(kIndexFile)));
  OTR_RETURN_IF_ERROR(has_index ? impl->open_shards(folder) : impl->open_single(folder));
  return Checkpoint(std::move(impl));
}

std::vector<std::string_view> Checkpoint::names() const {
  std::vector<std::string_view> names;
  names.reserve(impl_->entries.size());
  for (const Entry& entry : impl_->entries) names.push_back(entry.info->name);
  return names;
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const Entry* entry = impl_->find(name);
  return entry ? entry->info : nullptr;
}

const std::string& Checkpoint::file_of(std::string_view name) const {
  const Entry* entry = impl_->find(name);
  return entry ? impl_->files[entry->file].path() : impl_->source;
}

Status Checkpoint::read_as_element(std::string_view name, std::span<const int64_t> expected_shape, Element* out) const {
  OTR_RETURN_IF_ERROR(impl_->read(name, expected_shape, 0, -1, out));
  impl_->note_conversion(name);
  return {};
}

Status Checkpoint::read_as_float(std::string_view name, std::span<const int64_t> expected_shape, float* out) const {
  return impl_->read(name, expected_shape, 0, -1, out);
}

Status Checkpoint::read_rows(std::string_view name, std::span<const int64_t, 2> expected_shape, int64_t first_row,
                             int64_t num_rows, Element* out) const {
  assert(first_row >= 0 && num_rows >= 0 && first_row + num_rows <= expected_shape[0]);
  OTR_RETURN_IF_ERROR(impl_->read(name, expected_shape, first_row * expected_shape[1], num_rows * expected_shape[1], out));
  impl_->note_conversion(name);
  return {};
}

void Checkpoint::tie(std::string_view name, std::string_view twin) const {
  impl_->tied = impl_->find(name);
  impl_->tied_to = impl_->find(twin);
  assert(impl_->tied && impl_->tied_to && impl_->tied->info->shape == impl_->tied_to->info->shape &&
         impl_->tied->info->dtype == impl_->tied_to->info->dtype);
}

int64_t Checkpoint::converted_tensors() const {
  return std::count_if(impl_->converted.get(), impl_->converted.get() + impl_->entries.size(),
                       [](const std::atomic<bool>& c) { return c.load(); });
}

uint64_t Checkpoint::data_bytes() const {
  uint64_t bytes = 0;
  for (const SafetensorsFile& file : impl_->files) bytes += file.data_bytes();
  return bytes;
}

}  // namespace otr
