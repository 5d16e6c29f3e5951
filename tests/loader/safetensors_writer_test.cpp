#include "loader/safetensors_writer.h"

#include <algorithm>

#include "tests/loader/loader_fixture.h"

namespace otr {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(SafetensorsWriter, ReaderFindsWhatWasWritten) {
  const TempFolder folder;
  const std::string path = folder / "m.safetensors";
  const TensorEntry entries[] = {{"b\"", Dtype::kF32, {2, 1}}, {"scalar", Dtype::kU8, {}}, {"empty", Dtype::kI64, {3, 0}}};
  auto writer = SafetensorsWriter::create(path, entries);
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  for (const char* piece : {"abc", "defgh", "x"}) ASSERT_TRUE(writer.value().append(bytes_of(piece)).ok());
  ASSERT_TRUE(writer.value().finish().ok());

  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file.value().tensors().size(), 3u);
  for (const TensorEntry& entry : entries) {
    const auto found =
        std::ranges::find_if(file.value().tensors(), [&](const TensorInfo& tensor) { return tensor.name == entry.name; });
    ASSERT_NE(found, file.value().tensors().end()) << entry.name;
    EXPECT_EQ(found->dtype, entry.dtype);
    EXPECT_EQ(found->shape, entry.shape);
    EXPECT_EQ(found->end - found->begin, entry.bytes());
  }
  std::string data(9, '\0');
  ASSERT_TRUE(file.value().read(0, std::as_writable_bytes(std::span(data))).ok());
  EXPECT_EQ(data, "abcdefghx");
  EXPECT_EQ((read_whole(path).size() - 9) % 8, 0u);  // the data starts aligned
}

TEST(SafetensorsWriter, ErrorsNameTheFile) {
  const TempFolder folder;
  const std::string path = folder.write("m.safetensors", "there");
  expect_error(SafetensorsWriter::create(path, {}).status(), StatusCode::kIoError, {path, "cannot create"});
  EXPECT_EQ(read_whole(path), "there");
  const TensorEntry entry{"t", Dtype::kU8, {1}};
  auto full = SafetensorsWriter::create("/dev/full/t", std::span(&entry, 1));
  expect_error(full.status(), StatusCode::kIoError, {"/dev/full/t"});
}

}  // namespace
}  // namespace otr
