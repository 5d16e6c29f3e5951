// The safetensors header and the index: a folder of an index and two shards, or of one file.
// Input: 's' and a file as it is; or 'h', a header, a zero byte, data; or 'i', an index, two headers, each with a zero byte
// after it, a byte n, n bytes of data of shard "a", data of shard "b". The target puts in the lengths of headers, which the
// fuzzer would only break.
#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "loader/checkpoint.h"
#include "tests/fuzz/fuzz_target.h"

namespace otr::fuzz {
namespace {

// Takes what comes before the next zero byte, or everything.
std::string_view take(std::string_view* input) {
  const std::string_view part = input->substr(0, input->find('\0'));
  input->remove_prefix(std::min(input->size(), part.size() + 1));
  return part;
}

std::string with_length(std::string_view header, std::string_view data) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size).append(header).append(data);
}

void write(const std::string& path, std::string_view contents) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  require(fd >= 0, "the folder takes files");
  write_all(fd, contents);
  ::close(fd);
}

bool has_size(const TensorInfo& info) {
  uint64_t product = std::count(info.shape.begin(), info.shape.end(), 0) > 0 ? 0 : 1;
  for (const int64_t dim : info.shape) {
    if (product != 0 && __builtin_mul_overflow(product, static_cast<uint64_t>(dim), &product)) return false;
  }
  return product * static_cast<uint64_t>(dtype_size(info.dtype)) == info.end - info.begin;
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
    require(has_size(*info), "the range has the size of the shape");
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
  const char kind = input.empty() ? 's' : input[0];
  if (!input.empty()) input.remove_prefix(1);
  const std::string& folder = (kind == 'i' ? sharded : single).path();
  if (kind == 'i') {
    const std::string_view index = take(&input), header_a = take(&input), header_b = take(&input);
    const size_t size_a = input.empty() ? 0 : static_cast<uint8_t>(input[0]);
    if (!input.empty()) input.remove_prefix(1);
    write(folder + "/model.safetensors.index.json", index);
    write(folder + "/a", with_length(header_a, input.substr(0, size_a)));
    write(folder + "/b", with_length(header_b, input.substr(std::min(size_a, input.size()))));
  } else if (kind == 'h') {
    const std::string_view header = take(&input);
    write(folder + "/model.safetensors", with_length(header, input));
  } else {
    write(folder + "/model.safetensors", input);
  }
  const auto checkpoint = otr::Checkpoint::open(folder);
  if (!checkpoint.ok()) require_reason(checkpoint.status(), folder);
  else require_readable(checkpoint.value());
  return 0;
}
