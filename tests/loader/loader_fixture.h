// What the loader's tests share: a temporary folder, writers of small model folders, and the check of an error's message.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/status.h"
#include "tests/kernels/temp_folder.h"

namespace otr {

inline std::string read_whole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A .safetensors file of a header and data.
inline std::string with_header(std::string_view header, std::string_view data = "") {
  const uint64_t size = header.size();
  std::string file(sizeof size, '\0');
  std::memcpy(file.data(), &size, sizeof size);
  return file.append(header).append(data);
}

struct TestTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

inline std::string safetensors_bytes(const std::vector<TestTensor>& tensors, size_t padding = 0) {
  std::string header = R"({"__metadata__":{"format":"pt"})", data;
  for (const TestTensor& t : tensors) {
    std::string shape;
    for (const int64_t dim : t.shape) shape.append(shape.empty() ? "" : ",").append(std::to_string(dim));
    const std::string begin = std::to_string(data.size()), end = std::to_string(data.size() + t.bytes.size());
    for (const std::string_view part :
         std::initializer_list<std::string_view>{",\"", t.name, "\":{\"dtype\":\"", t.dtype, "\",\"shape\":[", shape,
                                                 "],\"data_offsets\":[", begin, ",", end, "]}"}) {
      header += part;
    }
    data += t.bytes;
  }
  return with_header(header + "}" + std::string(padding, ' '), data);
}

template <typename T>
std::string bytes_of_values(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The message must hold every part: the file, the item and the reason.
inline void expect_error(const Status& status, StatusCode code, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), code) << status.message();
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos) << "'" << part << "' is not in: " << status.message();
  }
}

// Processor time of this test program so far: unlike the clock on the wall it does not depend on what else runs.
inline double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// `text` with one to four random edits: bytes changed, removed, inserted or repeated. Deterministic on every platform.
inline std::string mutated(std::string text, std::mt19937& random) {
  static constexpr std::string_view kBytes = "\"{}[]:,\\0159-.eE+ ntfu\xff\x80\xc3\x00\n";
  for (uint32_t edits = 1 + random() % 4; edits > 0 && !text.empty(); --edits) {
    const size_t at = random() % text.size();
    switch (random() % 5) {
      case 0: text[at] = static_cast<char>(random()); break;
      case 1: text[at] = kBytes[random() % kBytes.size()]; break;
      case 2: text.erase(at, 1 + random() % 8); break;
      case 3: text.insert(at, 1, kBytes[random() % kBytes.size()]); break;
      default: text.insert(at, text.substr(random() % text.size(), random() % 40));
    }
  }
  return text;
}

}  // namespace otr
