// The safetensors header and the index: a folder of an index and two shards, or of one file.
// Input: 'i' or 's' (index or single file), u16 size of the index, the index, u16 size of shard a, a, and the rest is shard b.
// A single file is all that follows the letter. The shards are called "a" and "b".
#include <fcntl.h>

#include <cstring>
#include <vector>

#include "loader/checkpoint.h"
#include "tests/fuzz/fuzz_target.h"

namespace otr::fuzz {
namespace {

// Takes a u16 size and as many bytes, or as many as there are, from the front of `input`.
std::string_view take(std::string_view* input) {
  uint16_t size = 0;
  if (input->size() < sizeof size) return {};
  std::memcpy(&size, input->data(), sizeof size);
  input->remove_prefix(sizeof size);
  const std::string_view part = input->substr(0, size);
  input->remove_prefix(part.size());
  return part;
}

void write(const std::string& path, std::string_view contents) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  require(fd >= 0, "the folder takes files");
  write_all(fd, contents);
  ::close(fd);
}

void require_readable(const Checkpoint& checkpoint) {
  uint64_t bytes = 0;
  std::string_view last;
  for (const std::string_view name : checkpoint.names()) {
    require(last < name, "names ascend and differ");
    last = name;
    const TensorInfo* info = checkpoint.find(name);
    require(info != nullptr && info->name == name, "a listed tensor is found");
    bytes += info->end - info->begin;
    std::vector<Element> elements(static_cast<size_t>(info->num_elements()));
    std::vector<float> floats(elements.size());
    require(checkpoint.read_as_element(name, info->shape, elements.data()).ok() == dtype_is_loadable(info->dtype) &&
                checkpoint.read_as_float(name, info->shape, floats.data()).ok() == dtype_is_loadable(info->dtype),
            "every tensor of a loadable type reads");
    for (size_t i = 0; i < floats.size(); ++i) {
      const float widened = to_float(elements[i]);
      require(info->dtype != Dtype::kBf16 || std::memcmp(&widened, &floats[i], sizeof widened) == 0, "bf16 widens exactly");
    }
    require(!checkpoint.read_as_float(name, std::vector<int64_t>{-1}, floats.data()).ok(), "another shape is refused");
  }
  require(bytes == checkpoint.data_bytes(), "tensors tile the files");
}

}  // namespace
}  // namespace otr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace otr::fuzz;
  static const Folder sharded, single;
  std::string_view input = as_text(data, size);
  const bool has_index = input.starts_with('i');
  if (!input.empty()) input.remove_prefix(1);
  const std::string& folder = (has_index ? sharded : single).path();
  if (has_index) {
    write(folder + "/model.safetensors.index.json", take(&input));
    write(folder + "/a", take(&input));
    write(folder + "/b", input);
  } else {
    write(folder + "/model.safetensors", input);
  }
  const auto checkpoint = otr::Checkpoint::open(folder);
  if (!checkpoint.ok())
    require_reason(checkpoint.status(), folder);
  else
    require_readable(checkpoint.value());
  return 0;
}
