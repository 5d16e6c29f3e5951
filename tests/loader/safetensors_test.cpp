#include "loader/safetensors.h"

#include "tests/loader/loader_fixture.h"

namespace otr {
namespace {

Result<SafetensorsFile> open_bytes(const TempFolder& folder, std::string_view bytes) {
  return SafetensorsFile::open(folder.write("m.safetensors", bytes));
}

void expect_refused(std::string_view bytes, const std::vector<std::string>& parts) {
  const TempFolder folder;
  const auto file = open_bytes(folder, bytes);
  ASSERT_FALSE(file.ok()) << "accepted where this was expected: " << parts[0];
  expect_error(file.status(), StatusCode::kBadInput, {"/m.safetensors: "});
  expect_error(file.status(), StatusCode::kBadInput, parts);
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

// One tensor t in a file of `data_bytes` zero bytes.
void expect_entry_refused(const std::string& dtype, const std::string& shape, const std::string& offsets, size_t data_bytes,
                          const std::string& reason) {
  SCOPED_TRACE(dtype + " " + shape + " " + offsets);
  expect_refused(with_header("{" + entry("t", dtype, shape, offsets) + "}", std::string(data_bytes, '\0')), {": t: ", reason});
}

TEST(Safetensors, ReadsTensorsInFileOrder) {
  const TempFolder folder;
  const std::string bytes = safetensors_bytes({{"b", "F32", {2, 1}, bytes_of_values<float>({1.5f, -2})},
                                               {"scalar", "U8", {}, "x"},
                                               {"empty", "I64", {3, 0, 2}, ""},
                                               {"a", "BF16", {1}, "\x80\x3f"}},
                                              5);
  const auto file = open_bytes(folder, bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto& tensors = file.value().tensors();
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_EQ(tensors[0].name, "b");
  EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(tensors[0].num_elements(), 2);
  EXPECT_EQ(tensors[1].name, "scalar");
  EXPECT_EQ(tensors[1].num_elements(), 1);
  EXPECT_EQ(tensors[2].num_elements(), 0);
  EXPECT_EQ(tensors[3].begin, 9u);
  EXPECT_EQ(file.value().data_bytes(), 11u);
  std::byte word[2];
  ASSERT_TRUE(file.value().read(9, word).ok());
  EXPECT_EQ(word[1], std::byte{0x3f});
  EXPECT_TRUE(open_bytes(folder, with_header("{}")).ok());
}

TEST(Safetensors, RefusesBadLengths) {
  expect_refused("", {"header: a file of 0 bytes"});
  expect_refused("1234567", {"header: a file of 7 bytes"});
  const auto with_length = [](uint64_t length) { return std::string(reinterpret_cast<const char*>(&length), 8) + "{}"; };
  expect_refused(with_length(100'000'001), {"header: length 100000001 is above 100000000"});
  expect_refused(with_length(3), {"header: length 3 leaves the file of 10 bytes"});
  for (const uint64_t near : {UINT64_MAX, UINT64_MAX - 7, UINT64_MAX - 8, uint64_t{1} << 63}) {
    expect_refused(with_length(near), {"header: length " + std::to_string(near)});
  }
  expect_refused(with_length(0), {"header: does not start with '{'"});
}

TEST(Safetensors, RefusesBadJson) {
  expect_refused(with_header("[]"), {"does not start with '{'"});
  expect_refused(with_header(" {}"), {"does not start with '{'"});
  expect_refused(with_header("{\"a\":"), {"JSON: "});
  expect_refused(with_header("{}x"), {"JSON: "});
  expect_refused(with_header("{\"\xff\":1}"), {"ill-formed UTF-8"});
  expect_refused(with_header("{\"a\":" + std::string(100'000, '[')), {"nested deeper than 64"});
  const std::string t = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  expect_refused(with_header("{\"t\":" + t + ",\"t\":" + t + "}"), {"duplicate key 't'"});
  expect_refused(with_header("{\"t\":" + t + ",\"\\u0074\":" + t + "}"), {"duplicate key 't'"});
  expect_refused(with_header(R"({"__metadata__":[]})"), {"__metadata__: not an object"});
  expect_refused(with_header(R"({"__metadata__":{"format":1}})"), {"__metadata__: 'format' is not a string"});
  expect_refused(with_header(R"({"t":5})"), {": t: not an object"});
  expect_refused(with_header(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}})"), {": t: unknown key 'x'"});
  expect_refused(with_header(R"({"t":{"shape":[0],"data_offsets":[0,0]}})"), {": t: dtype is missing"});
  expect_refused(with_header(R"({"t":{"dtype":"U8","data_offsets":[0,0]}})"), {": t: shape is missing"});
  expect_refused(with_header(R"({"t":{"dtype":"U8","shape":[0]}})"), {": t: data_offsets is missing"});
  expect_refused(with_header("{\"\":" + t + "}"), {"empty name"});
}

TEST(Safetensors, RefusesBadOffsets) {
  for (const char* offsets :
       {"[-1,4]", "[0.0,4]", "[0,4.0]", "[0,9007199254740993]", "[0,18446744073709551615]", "[0,\"4\"]"}) {
    expect_entry_refused("\"U8\"", "[4]", offsets, 4, "something other than an offset");
  }
  for (const char* offsets : {"[0]", "[0,2,4]", "4", "[]"}) {
    expect_entry_refused("\"U8\"", "[4]", offsets, 4, "not an array of two");
  }
  expect_entry_refused("\"U8\"", "[4]", "[4,0]", 4, "[4, 0) ends before it begins");
  expect_entry_refused("\"U8\"", "[5]", "[0,5]", 4, "leaves the 4 bytes of data");
  expect_entry_refused("\"U8\"", "[3]", "[1,4]", 4, "a hole of 1 bytes");
}

TEST(Safetensors, RefusesBadShapesAndTypes) {
  for (const char* shape : {"[-1]", "[1.0]", "[\"4\"]", "[[4]]", "[9223372036854775808]", "[null]"}) {
    expect_entry_refused("\"U8\"", shape, "[0,4]", 4, "shape holds something other than a size");
  }
  expect_entry_refused("\"U8\"", "{}", "[0,4]", 4, "shape is missing or not an array");
  expect_entry_refused("\"F32\"", "[2]", "[0,4]", 4, "has not the 8 bytes of F32 [2]");
  expect_entry_refused("\"BF16\"", "[]", "[0,4]", 4, "has not the 2 bytes of BF16 []");
  // 2^64 and 2^66 wrap to exactly 0; 2^63 * 2 bytes does too; a zero dimension does not excuse an overflow.
  expect_entry_refused("\"U8\"", "[4294967296,4294967296]", "[0,0]", 0, "overflows");
  expect_entry_refused("\"F32\"", "[4294967296,4294967296]", "[0,0]", 0, "overflows");
  expect_entry_refused("\"F16\"", "[4611686018427387904,2]", "[0,0]", 0, "overflows");
  expect_entry_refused("\"U8\"", "[4294967296,4294967296,4294967296,0]", "[0,0]", 0, "overflows");
  expect_entry_refused("\"U8\"", "[9223372036854775807,3]", "[0,4]", 4, "overflows");
  for (const char* dtype : {"F4", "F6_E2M3", "bf16", "float32", "", "I4"}) {
    expect_entry_refused("\"" + std::string(dtype) + "\"", "[4]", "[0,4]", 4, "unknown dtype '" + std::string(dtype) + "'");
  }
  expect_entry_refused("7", "[4]", "[0,4]", 4, "dtype is missing or not a string");
}

TEST(Safetensors, KnowsEverySizeOfType) {
  const std::vector<std::pair<std::string, size_t>> sizes = {
      {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4},     {"I16", 2},     {"I8", 1},     {"U64", 8},
      {"U32", 4}, {"U16", 2}, {"U8", 1},  {"BOOL", 1}, {"C64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
  std::vector<TestTensor> tensors;
  for (const auto& [name, size] : sizes) tensors.push_back({name, name, {3}, std::string(3 * size, 'x')});
  const TempFolder folder;
  const auto file = open_bytes(folder, safetensors_bytes(tensors));
  ASSERT_TRUE(file.ok()) << file.status().message();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const TensorInfo& info = file.value().tensors()[i];
    EXPECT_EQ(dtype_name(info.dtype), sizes[i].first);
    EXPECT_EQ(info.num_elements(), 3);
    EXPECT_EQ(dtype_is_loadable(info.dtype), info.name == "F32" || info.name == "F16" || info.name == "BF16");
  }
}

TEST(Safetensors, RefusesOverlapHolesAndTails) {
  const auto two = [](const std::string& a, const std::string& b, size_t data) {
    return with_header("{" + entry("a", "\"U8\"", "[2]", a) + "," + entry("b", "\"U8\"", "[2]", b) + "}",
                       std::string(data, 'x'));
  };
  const TempFolder folder;
  EXPECT_TRUE(open_bytes(folder, two("[2,4]", "[0,2]", 4)).ok());
  expect_refused(two("[0,2]", "[1,3]", 3), {": b: range [1, 3) overlaps"});
  expect_refused(two("[0,2]", "[0,2]", 2), {": b: range [0, 2) overlaps"});
  expect_refused(two("[0,2]", "[3,5]", 5), {": b: a hole of 1 bytes before range [3, 5)"});
  expect_refused(two("[1,3]", "[3,5]", 5), {": a: a hole of 1 bytes"});
  expect_refused(two("[0,2]", "[2,4]", 7), {"header: 3 bytes after the last tensor"});
  expect_refused(with_header("{}", "x"), {"header: 1 bytes after the last tensor"});
}

TEST(Safetensors, ManyTensorsOverOneRangeTakeBoundedTime) {
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i) {
    header.append(i ? "," : "").append(entry(std::to_string(i), "\"U8\"", "[8]", "[0,8]"));
  }
  const double begin = cpu_seconds();
  expect_refused(with_header(header + "}", "12345678"), {"overlaps"});
  EXPECT_LT(cpu_seconds() - begin, 20);
}

TEST(Safetensors, OpensOnlyRegularFiles) {
  const TempFolder folder;
  expect_error(SafetensorsFile::open(folder.path()).status(), StatusCode::kBadInput, {folder.path(), "not a regular file"});
  expect_error(SafetensorsFile::open(folder / "none").status(), StatusCode::kIoError, {folder / "none", "No such file"});
  expect_error(SafetensorsFile::open("/dev/null").status(), StatusCode::kBadInput, {"/dev/null", "not a regular file"});
}

TEST(Safetensors, SurvivesMutations) {
  const std::string good =
      safetensors_bytes({{"a", "F32", {2, 1}, "12345678"}, {"b", "U8", {}, "x"}, {"c", "F16", {2, 3}, "123456789012"}});
  std::mt19937 random(2);
  const TempFolder folder;
  int accepted = 0;
  for (int i = 0; i < 4000; ++i) {
    const auto file = open_bytes(folder, mutated(good, random));
    accepted += file.ok();
    if (file.ok()) {
      for (const TensorInfo& info : file.value().tensors()) {
        std::vector<std::byte> bytes(info.end - info.begin);
        EXPECT_TRUE(file.value().read(info.begin, bytes).ok());
      }
    } else {
      EXPECT_NE(file.status().message().find("m.safetensors"), std::string::npos);
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 2000);
}

}  // namespace
}  // namespace otr
