// Files that take the place of others: what they hold, and who may read it.
#include "loader/file.h"

#include <sys/stat.h>

#include "loader/otr_file.h"
#include "tests/loader/loader_fixture.h"
#include "tests/memory/file_size_limit.h"

namespace otr {
namespace {

mode_t permissions(const std::string& path) {
  struct stat info;
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

class Umask {
 public:
  explicit Umask(mode_t mask) : before_(::umask(mask)) {}
  ~Umask() { ::umask(before_); }
  Umask(const Umask&) = delete;
  Umask& operator=(const Umask&) = delete;

 private:
  const mode_t before_;
};

void replace(const std::string& path, std::string_view text) {
  ReplacedFile file(path);
  ASSERT_TRUE(file.created().ok());
  ASSERT_TRUE(file.write(text.data(), text.size()).ok());
  ASSERT_TRUE(file.rename().ok());
}

// A link stays, and leads to the new file. What is no file is not made one.
TEST(ReplacedFile, ReplacesFilesAlone) {
  const TempFolder folder;
  std::filesystem::create_symlink("text", folder / "link");
  std::ofstream(folder / "text") << "old";
  {
    ReplacedFile file(folder / "link");
    ASSERT_TRUE(file.created().ok());
    ASSERT_TRUE(file.write("new", 3).ok());
    ASSERT_TRUE(file.rename().ok());
  }
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  std::string text;
  std::ifstream(folder / "text") >> text;
  EXPECT_EQ(text, "new");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const char* name : {"pipe", "."}) {
    const Status status = ReplacedFile(folder / name).created();
    EXPECT_EQ(status.code(), StatusCode::kIoError);
    EXPECT_NE(status.message().find("not a regular file"), std::string::npos) << status.message();
  }
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
}

TEST(ReplacedFile, IsWrittenAnywhere) {
  const TempFolder folder;
  const std::string path = folder.write("text", "old");
  {
    ReplacedFile file(path);
    ASSERT_TRUE(file.created().ok());
    EXPECT_TRUE(file.write("abc", 3).ok());
    EXPECT_TRUE(file.write_at(5, "xyz", 3).ok());
    EXPECT_TRUE(file.write("de", 2).ok());
    EXPECT_EQ(read_whole(path), "old");
    EXPECT_TRUE(file.rename().ok());
  }
  EXPECT_EQ(read_whole(path), "abcdexyz");
  { ReplacedFile dropped(path); }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_EQ(ReplacedFile(folder / "no/such/folder/text").created().code(), StatusCode::kIoError);
}

TEST(ReplacedFile, MayNotGrowBeyondTheProcessLimit) {
  const TempFolder folder;
  const std::string path = folder / "text";
  const std::string text(10'000, 'x');
  const FileSizeLimit limit(4096);
  ReplacedFile file(path);
  ASSERT_TRUE(file.created().ok());
  const Status status = file.write(text.data(), text.size());
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_NE(status.message().find("File too large"), std::string::npos) << status.message();
  EXPECT_TRUE(file.write_at(0, text.data(), 4096).ok());
}

TEST(ReplacedFile, ANewOneIsWhatTheUmaskLeaves) {
  for (const mode_t mask : {077u, 027u, 022u, 002u}) {
    const TempFolder folder;
    const Umask set(mask);
    replace(folder / "text", "a");
    EXPECT_EQ(permissions(folder / "text"), 0666 & ~mask);
    auto writer = OtrWriter::create(folder / "model.otr", {}, true);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer.value().finish().ok());
    EXPECT_EQ(permissions(folder / "model.otr"), 0666 & ~mask);
  }
}

// Before it holds anything, too: a checkpoint that only its owner may read is not open to others while it is written.
TEST(ReplacedFile, KeepsThePermissionsOfWhatItReplaces) {
  for (const mode_t mode : {0600u, 0640u, 0664u, 0400u}) {
    const TempFolder folder;
    const std::string path = folder.write("text", "old");
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    const Umask set(022);
    {
      const ReplacedFile file(path);
      ASSERT_TRUE(file.created().ok());
      for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
        EXPECT_EQ(permissions(entry.path()), mode) << entry.path();
    }
    replace(path, "new");
    EXPECT_EQ(permissions(path), mode);
    EXPECT_EQ(read_whole(path), "new");
  }
}

}  // namespace
}  // namespace otr
