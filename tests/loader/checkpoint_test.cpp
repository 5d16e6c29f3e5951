// Built twice: with Element = Bf16 and with Element = float.
#include "loader/checkpoint.h"

#include <array>
#include <cmath>
#include <limits>
#include <thread>
#include <type_traits>

#include "tests/loader/loader_fixture.h"

namespace otr {
namespace {

namespace fs = std::filesystem;

constexpr bool kIsFloat = std::is_same_v<Element, float>;

// One of the two is Element.
[[maybe_unused]] uint32_t bits_of(float e) { return bits_from_float(e); }
[[maybe_unused]] uint32_t bits_of(Bf16 e) { return e.bits; }

Result<Checkpoint> open_single(const TempFolder& folder, const std::vector<TestTensor>& tensors, size_t padding = 0) {
  folder.write("model.safetensors", safetensors_bytes(tensors, padding));
  return Checkpoint::open(folder.path());
}

TestTensor tiny(const std::string& name) { return {name, "BF16", {2}, bytes_of_values<uint16_t>({0x3f80, 0x4000})}; }  // 1, 2

std::string index_of(const std::vector<std::pair<std::string, std::string>>& lines) {
  std::string map;
  for (const auto& [tensor, shard] : lines) map += (map.empty() ? "\"" : ",\"") + tensor + "\":\"" + shard + "\"";
  return R"({"metadata":{"total_size":8},"weight_map":{)" + map + "}}";
}

// The value of float16 bits, from the definition.
double f16_value(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const double mantissa = bits & 1023;
  double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) {
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  return bits & 0x8000 ? -magnitude : magnitude;
}

// The bf16 nearest to a value, ties to even, found by comparing distances: not the way the library rounds.
uint32_t nearest_bf16(double value) {
  const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  const auto at = [](uint32_t bits) { return static_cast<double>(float_from_bits(bits << 16)); };
  uint32_t low = 0, high = 0x7f80;  // at(low) <= magnitude < at(high)
  if (!(magnitude < at(high))) return sign | high;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (at(middle) <= magnitude ? low : high) = middle;
  }
  const double up = high == 0x7f80 ? std::ldexp(1, 128) : at(high);
  const double to_low = magnitude - at(low), to_high = up - magnitude;
  return sign | (to_low < to_high || (to_low == to_high && low % 2 == 0) ? low : high);
}

void expect_converted(const std::vector<double>& expected, const std::vector<Element>& found,
                      const std::vector<float>& floats) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const double value = expected[i];
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(to_float(found[i])) && std::isnan(floats[i])) << i;
      continue;
    }
    const auto as_float = static_cast<float>(value);
    ASSERT_EQ(bits_from_float(floats[i]), bits_from_float(as_float)) << i;
    ASSERT_EQ(bits_of(found[i]), kIsFloat ? bits_from_float(as_float) : nearest_bf16(value)) << i << ": " << value;
  }
}

TEST(Checkpoint, ConvertsEveryFloat16) {
  std::vector<uint16_t> all(65536);
  std::vector<double> expected(65536);
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    all[bits] = static_cast<uint16_t>(bits);
    expected[bits] = f16_value(bits);
  }
  const TempFolder folder;
  const auto checkpoint = open_single(folder, {{"odd", "U8", {1}, "x"}, {"t", "F16", {256, 256}, bytes_of_values(all)}});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  std::vector<Element> out(65536);
  std::vector<float> floats(65536);
  const int64_t shape[] = {256, 256};
  ASSERT_TRUE(checkpoint.value().read_as_float("t", shape, floats.data()).ok());
  EXPECT_EQ(checkpoint.value().converted_tensors(), 0);
  ASSERT_TRUE(checkpoint.value().read_as_element("t", shape, out.data()).ok());
  ASSERT_TRUE(checkpoint.value().read_as_element("t", shape, out.data()).ok());
  EXPECT_EQ(checkpoint.value().converted_tensors(), 1);
  expect_converted(expected, out, floats);
}

// Rows of a matrix are what they are in the whole; a stored type that must be converted is noted.
TEST(Checkpoint, ReadsRows) {
  std::vector<uint16_t> bf16(50 * 7);
  std::vector<float> f32(bf16.size());
  for (size_t i = 0; i < bf16.size(); ++i) {
    bf16[i] = static_cast<uint16_t>(0x3f00 + i);
    f32[i] = to_float(Bf16{bf16[i]});
  }
  const TempFolder folder;
  const auto checkpoint =
      open_single(folder, {{"b", "BF16", {50, 7}, bytes_of_values(bf16)}, {"f", "F32", {50, 7}, bytes_of_values(f32)}});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const std::array<int64_t, 2> shape{50, 7};
  for (const char* name : {"b", "f"}) {
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 50}, {0, 1}, {17, 20}, {49, 1}, {50, 0}}) {
      std::vector<Element> out(static_cast<size_t>(count * 7) + 1, to_element(9.0f));
      ASSERT_TRUE(checkpoint.value().read_rows(name, shape, first, count, out.data()).ok());
      for (size_t i = 0; i + 1 < out.size(); ++i) {
        ASSERT_EQ(to_float(out[i]), f32[static_cast<size_t>(first * 7) + i]) << name << " row " << first << " element " << i;
      }
      EXPECT_EQ(to_float(out.back()), 9.0f);
    }
  }
  EXPECT_EQ(checkpoint.value().converted_tensors(), 1);
  Element out[7];
  expect_error(checkpoint.value().read_rows("b", std::array<int64_t, 2>{7, 50}, 0, 1, out), StatusCode::kBadInput,
               {"expected shape [7, 50]"});
}

// More than one chunk; ties, neighbours of ties, overflow to infinity, subnormals, NaN, and random bits. Unaligned.
TEST(Checkpoint, ConvertsFloat32) {
  std::mt19937 random(3);
  std::vector<float> values = {0.0f,
                               -0.0f,
                               1e-45f,
                               -1e-40f,
                               3.4e38f,
                               -3.4028235e38f,
                               std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN(),
                               float_from_bits(0x7f800001)};
  for (const uint32_t top : {0x3f80u, 0x3f81u, 0x0001u, 0x7f7fu, 0xbf80u, 0x8000u}) {
    for (const uint32_t low : {0x7fffu, 0x8000u, 0x8001u, 0xffffu}) values.push_back(float_from_bits(top << 16 | low));
  }
  while (values.size() < 200'000) values.push_back(float_from_bits(static_cast<uint32_t>(random())));
  const TempFolder folder;
  const auto checkpoint = open_single(folder, {{"odd", "U8", {1}, "x"}, {"t", "F32", {200'000}, bytes_of_values(values)}}, 2);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  std::vector<Element> out(values.size());
  std::vector<float> floats(values.size());
  const int64_t shape[] = {200'000};
  ASSERT_TRUE(checkpoint.value().read_as_element("t", shape, out.data()).ok());
  ASSERT_TRUE(checkpoint.value().read_as_float("t", shape, floats.data()).ok());
  EXPECT_EQ(checkpoint.value().converted_tensors(), kIsFloat ? 0 : 1);
  expect_converted({values.begin(), values.end()}, out, floats);
  EXPECT_EQ(bytes_of_values(floats), bytes_of_values(values));
}

TEST(Checkpoint, ReadsBf16FromSeveralThreads) {
  std::vector<uint16_t> bits(300'000);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i * 7);
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back({"t" + std::to_string(i), "BF16", {3, 100'000}, bytes_of_values(bits)});
  const TempFolder folder;
  const auto checkpoint = open_single(folder, tensors, 1);
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ(checkpoint.value().data_bytes(), 4u * 600'000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      std::vector<Element> out(bits.size());
      const int64_t shape[] = {3, 100'000};
      ASSERT_TRUE(checkpoint.value().read_as_element("t" + std::to_string(i), shape, out.data()).ok());
      for (size_t k = 0; k < bits.size(); ++k) ASSERT_EQ(bits_of(out[k]), kIsFloat ? uint32_t{bits[k]} << 16 : bits[k]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(checkpoint.value().converted_tensors(), kIsFloat ? 4 : 0);
}

TEST(Checkpoint, ReadsShards) {
  const TempFolder folder;
  folder.write("s1.safetensors", safetensors_bytes({tiny("b"), tiny("a")}));
  folder.write("s2.safetensors", safetensors_bytes({tiny("c")}));
  folder.write("model.safetensors.index.json",
               index_of({{"c", "s2.safetensors"}, {"a", "s1.safetensors"}, {"b", "s1.safetensors"}}));
  auto opened = Checkpoint::open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const Checkpoint checkpoint = std::move(opened.value());
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string_view>{"a", "b", "c"}));
  EXPECT_EQ(checkpoint.file_of("c"), folder / "s2.safetensors");
  EXPECT_EQ(checkpoint.file_of("zzz"), folder / "model.safetensors.index.json");
  EXPECT_EQ(checkpoint.find("zzz"), nullptr);
  ASSERT_NE(checkpoint.find("b"), nullptr);
  float out[2];
  const int64_t shape[] = {2};
  ASSERT_TRUE(checkpoint.read_as_float("c", shape, out).ok());
  EXPECT_EQ(out[1], 2.0f);
}

// Several chunks of 256 KiB, from two files, with and without conversion: whoever reads one compares it, just where it reads.
TEST(Checkpoint, ComparesTiedTensors) {
  constexpr int64_t kRows = 400, kColumns = 1000;
  for (const std::string dtype : {"BF16", "F32"}) {
    const size_t width = dtype == "F32" ? 4 : 2, row_bytes = kColumns * width;
    std::string values(kRows * row_bytes, '\0');
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<char>(i * 7 / 5 % 63);
    for (const int64_t wrong : {int64_t{-1}, int64_t{0}, int64_t{233}, kRows - 1}) {
      SCOPED_TRACE(dtype + " " + std::to_string(wrong));
      std::string other = values;
      if (wrong >= 0) other[static_cast<size_t>(wrong) * row_bytes + row_bytes - 1] ^= 1;
      const TempFolder folder;
      folder.write("s1", safetensors_bytes({{"a", dtype, {kRows, kColumns}, values}, tiny("b")}));
      folder.write("s2", safetensors_bytes({{"twin", dtype, {kRows, kColumns}, other}}, 3));
      folder.write("model.safetensors.index.json", index_of({{"a", "s1"}, {"b", "s1"}, {"twin", "s2"}}));
      const auto opened = Checkpoint::open(folder.path());
      ASSERT_TRUE(opened.ok()) << opened.status().message();
      const Checkpoint& checkpoint = opened.value();
      checkpoint.tie("a", "twin");
      std::vector<Element> out(kRows * kColumns);
      std::vector<float> floats(kRows * kColumns);
      const std::array<int64_t, 2> shape{kRows, kColumns};
      const auto expect = [&](const Status& status, bool is_equal) {
        expect_error(status, is_equal ? StatusCode::kOk : StatusCode::kBadInput, {});
        if (!is_equal)
          expect_error(status, status.code(), {(folder / "s2") + ": twin: differs from a, ", "tie_word_embeddings"});
      };
      expect(checkpoint.read_as_element("a", shape, out.data()), wrong < 0);
      expect(checkpoint.read_as_float("a", shape, floats.data()), wrong < 0);
      for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {1, 232}, {233, 1}, {234, 165}, {234, 166}, {5, 0}})
        expect(checkpoint.read_rows("a", shape, first, count, out.data()), wrong < first || wrong >= first + count);
      EXPECT_TRUE(checkpoint.read_as_element("twin", shape, out.data()).ok());
    }
  }
}

TEST(Checkpoint, ReadErrorsNameFileAndTensor) {
  const TempFolder folder;
  const auto checkpoint = open_single(folder, {tiny("t"), {"q", "I8", {2}, "xx"}, {"none", "F16", {0, 3}, ""}});
  ASSERT_TRUE(checkpoint.ok());
  const std::string path = folder / "model.safetensors";
  Element out[4];
  const int64_t two[] = {2}, wide[] = {1, 2}, empty[] = {0, 3};
  expect_error(checkpoint.value().read_as_element("x", two, out), StatusCode::kBadInput, {path + ": x: missing"});
  expect_error(checkpoint.value().read_as_element("t", wide, out), StatusCode::kBadInput,
               {path + ": t: expected shape [1, 2], found [2]"});
  expect_error(checkpoint.value().read_as_element("q", two, out), StatusCode::kUnsupported, {path + ": q: dtype I8"});
  EXPECT_TRUE(checkpoint.value().read_as_element("none", empty, out).ok());
}

TEST(Checkpoint, ShrinkingFileIsAnErrorNotASignal) {
  for (const char* dtype : {"BF16", "F32"}) {
    const TempFolder folder;
    const int64_t count = 1 << 20;
    const size_t bytes = static_cast<size_t>(count) * (dtype[0] == 'B' ? 2 : 4);
    const auto checkpoint = open_single(folder, {{"t", dtype, {count}, std::string(bytes, 'x')}});
    ASSERT_TRUE(checkpoint.ok());
    const std::string path = folder / "model.safetensors";
    fs::resize_file(path, bytes / 2);
    std::vector<Element> out(static_cast<size_t>(count));
    expect_error(checkpoint.value().read_as_element("t", std::span(&count, 1), out.data()), StatusCode::kBadInput,
                 {path + ": t: ", "the file ends at offset " + std::to_string(bytes / 2)});
  }
}

// A folder with shards s1 (a, b) and s2 (c), opened with another index.
class CheckpointIndex : public testing::Test {
 protected:
  CheckpointIndex() {
    folder_.write("s1.safetensors", safetensors_bytes({tiny("a"), tiny("b")}));
    folder_.write("s2.safetensors", safetensors_bytes({tiny("c")}));
  }

  void expect_refused(const std::string& index, const std::vector<std::string>& parts) {
    folder_.write("model.safetensors.index.json", index);
    expect_error(Checkpoint::open(folder_.path()).status(), StatusCode::kBadInput, parts);
  }

  const TempFolder folder_;
  const std::string index_ = folder_ / "model.safetensors.index.json";
};

TEST_F(CheckpointIndex, RefusesWrongLists) {
  expect_refused(index_of({{"a", "s1.safetensors"}, {"b", "s1.safetensors"}, {"c", "s3.safetensors"}}),
                 {index_ + ": c: file 's3.safetensors' does not exist"});
  expect_refused(index_of({{"a", "s1.safetensors"}, {"b", "s1.safetensors"}, {"c", "s2.safetensors"}, {"d", "s2.safetensors"}}),
                 {index_ + ": d: listed for 's2.safetensors', which does not hold it"});
  expect_refused(index_of({{"a", "s1.safetensors"}, {"c", "s2.safetensors"}}),
                 {folder_ / "s1.safetensors", ": b: in this file, but not listed in " + index_});
  expect_refused(index_of({{"a", "s1.safetensors"}, {"b", "s2.safetensors"}, {"c", "s2.safetensors"}}),
                 {index_ + ": b: listed for 's2.safetensors', but found in " + (folder_ / "s1.safetensors")});
  expect_refused(index_of({{"a", "s1.safetensors"}, {"a", "s2.safetensors"}}), {index_, "duplicate key 'a'"});
  folder_.write("s2.safetensors", safetensors_bytes({tiny("c"), tiny("b")}));
  expect_refused(index_of({{"a", "s1.safetensors"}, {"b", "s1.safetensors"}, {"c", "s2.safetensors"}}),
                 {folder_ / "s1.safetensors", ": b: also in " + (folder_ / "s2.safetensors")});
}

TEST_F(CheckpointIndex, RefusesASingleFileOfAnotherSave) {
  const std::string shards = index_of({{"a", "s1.safetensors"}, {"b", "s1.safetensors"}, {"c", "s2.safetensors"}});
  folder_.write("model.safetensors.index.json", shards);
  EXPECT_TRUE(Checkpoint::open(folder_.path()).ok());
  folder_.write("model.safetensors", safetensors_bytes({tiny("d")}));
  const std::string refusal = index_ + ": model.safetensors: is there too";
  expect_refused(shards, {refusal, "remove the stale one"});
  expect_refused(index_of({{"a", "s1.safetensors"}, {"b", "s1.safetensors"}}), {refusal});
  expect_refused(index_of({{"c", "s2.safetensors"}, {"d", "model.safetensors"}}), {refusal});
  expect_refused(index_of({}), {refusal});
  folder_.write("model.safetensors.index.json", index_of({{"d", "model.safetensors"}}));
  const auto one = Checkpoint::open(folder_.path());
  ASSERT_TRUE(one.ok()) << one.status().message();
  EXPECT_EQ(one.value().names(), std::vector<std::string_view>{"d"});
}

TEST_F(CheckpointIndex, RefusesPathsOutOfTheFolder) {
  const TempFolder outside;
  const std::string elsewhere = outside.write("out.safetensors", safetensors_bytes({tiny("a")}));
  expect_refused(index_of({{"a", elsewhere}}), {index_ + ": a: shard '" + elsewhere.substr(0, 100), "is an absolute path"});
  const std::string relative = "../" + fs::path(outside.path()).filename().string() + "/out.safetensors";
  for (const std::string& shard :
       {relative, std::string(".."), std::string("."), std::string(""), std::string("x/../s1.safetensors"),
        std::string("./s1.safetensors"), std::string("s1.safetensors\\u0000")}) {
    expect_refused(index_of({{"a", shard}}), {index_ + ": a: shard '", "is not the name of a file in the folder"});
  }
  fs::create_symlink(elsewhere, folder_ / "link.safetensors");
  expect_refused(index_of({{"a", "link.safetensors"}}),
                 {(folder_ / "link.safetensors") + ": a: a symbolic link out of the folder, to ", "out.safetensors", "cp -rL"});
  fs::create_symlink("s1.safetensors", folder_ / "inside.safetensors");
  folder_.write("model.safetensors.index.json", index_of({{"a", "inside.safetensors"}, {"b", "inside.safetensors"}}));
  EXPECT_TRUE(Checkpoint::open(folder_.path()).ok());
}

TEST_F(CheckpointIndex, RefusesBrokenIndexes) {
  expect_refused("", {index_, "JSON"});
  expect_refused("[]", {index_ + ": weight_map: missing"});
  expect_refused(R"({"weight_map":[]})", {index_ + ": weight_map: missing or not an object"});
  expect_refused(R"({"weight_map":{"a":1}})", {index_ + ": a: its shard is not a string"});
  folder_.write("s2.safetensors", "short");
  expect_refused(index_of({{"c", "s2.safetensors"}}), {folder_ / "s2.safetensors", "header: a file of 5 bytes"});
  fs::remove(folder_ / "s2.safetensors");
  fs::create_directory(folder_ / "s2.safetensors");
  expect_refused(index_of({{"c", "s2.safetensors"}}), {folder_ / "s2.safetensors", "not a regular file"});
}

TEST_F(CheckpointIndex, SurvivesMutations) {
  const std::string good = index_of({{"a", "s1.safetensors"}, {"b", "s1.safetensors"}, {"c", "s2.safetensors"}});
  std::mt19937 random(5);
  int accepted = 0;
  for (int i = 0; i < 2000; ++i) {
    folder_.write("model.safetensors.index.json", mutated(good, random));
    const auto checkpoint = Checkpoint::open(folder_.path());
    accepted += checkpoint.ok();
    if (!checkpoint.ok()) expect_error(checkpoint.status(), checkpoint.status().code(), {folder_.path()});
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 1500);
}

TEST(Checkpoint, RefusesBadFolders) {
  const TempFolder folder, other;
  expect_error(Checkpoint::open(folder.path()).status(), StatusCode::kBadInput,
               {folder.path(), "holds neither model.safetensors nor model.safetensors.index.json"});
  expect_error(Checkpoint::open(folder / "none").status(), StatusCode::kBadInput, {"none", "holds neither"});
  const TempFolder adapted;
  ASSERT_TRUE(open_single(adapted, {tiny("a")}).ok());
  adapted.write("adapter_config.json", "{}");
  expect_error(Checkpoint::open(adapted.path()).status(), StatusCode::kUnsupported,
               {adapted / "adapter_config.json", "is not applied; merge it"});
  // What a Hugging Face cache looks like.
  other.write("blob", safetensors_bytes({tiny("a")}));
  fs::create_symlink(other / "blob", folder / "model.safetensors");
  expect_error(Checkpoint::open(folder.path()).status(), StatusCode::kBadInput,
               {folder / "model.safetensors", "a symbolic link out of the folder", "cp -rL"});
  fs::remove(other / "blob");
  expect_error(Checkpoint::open(folder.path()).status(), StatusCode::kBadInput, {"model.safetensors", "does not exist"});
}

}  // namespace
}  // namespace otr
