// LineReader, OutputFile and the text of numbers.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "tools/outrider/failure.h"
#include "tools/outrider/flags.h"
#include "tools/outrider/json_text.h"
#include "tools/outrider/line_reader.h"
#include "tools/outrider/named_files.h"
#include "tools/outrider/output_file.h"

namespace otr::cli {
namespace {

class LineIo : public ::testing::Test {
 protected:
  LineIo() : path_(::testing::TempDir() + "line_io_" + std::to_string(::getpid())) {}
  ~LineIo() override { std::remove(path_.c_str()); }
  void put(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  std::string get() {
    std::ostringstream text;
    text << std::ifstream(path_, std::ios::binary).rdbuf();
    return text.str();
  }
  std::vector<std::string> lines() {
    LineReader reader(path_);
    std::vector<std::string> result;
    std::string_view line;
    for (auto kind = reader.next(true, &line); kind != LineReader::Next::kEnd; kind = reader.next(true, &line)) {
      result.push_back(kind == LineReader::Next::kTooLong ? "too long" : std::string(line));
      EXPECT_EQ(reader.line_number(), static_cast<int64_t>(result.size()));
    }
    EXPECT_EQ(reader.next(true, &line), LineReader::Next::kEnd);
    return result;
  }
  std::string path_;
};

using Lines = std::vector<std::string>;

TEST_F(LineIo, SplitsLines) {
  put("");
  EXPECT_EQ(lines(), Lines());
  put("a\n\nb");
  EXPECT_EQ(lines(), (Lines{"a", "", "b"}));
  put("a\n");
  EXPECT_EQ(lines(), (Lines{"a"}));
  const std::string longer(1 << 20, 'x');
  put(longer + "\n" + longer);
  EXPECT_EQ(lines(), (Lines{longer, longer}));
}

TEST_F(LineIo, SkipsALineThatIsTooLong) {
  put("a\n" + std::string(kMaxLineBytes + 1, 'x') + "\nb\n");
  EXPECT_EQ(lines(), (Lines{"a", "too long", "b"}));
  put(std::string(3 * kMaxLineBytes, 'x'));
  EXPECT_EQ(lines(), (Lines{"too long"}));
  put(std::string(kMaxLineBytes, 'x'));
  EXPECT_EQ(lines().front().size(), kMaxLineBytes);
}

TEST_F(LineIo, DoesNotWaitForAPipe) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  LineReader reader("/dev/fd/" + std::to_string(ends[0]));
  std::string_view line;
  EXPECT_EQ(reader.next(false, &line), LineReader::Next::kNotYet);
  ASSERT_EQ(::write(ends[1], "a\nb", 3), 3);
  EXPECT_EQ(reader.next(false, &line), LineReader::Next::kLine);
  EXPECT_EQ(line, "a");
  EXPECT_EQ(reader.next(false, &line), LineReader::Next::kNotYet);
  ::close(ends[1]);
  EXPECT_EQ(reader.next(false, &line), LineReader::Next::kLine);
  EXPECT_EQ(line, "b");
  EXPECT_EQ(reader.next(false, &line), LineReader::Next::kEnd);
  ::close(ends[0]);
}

TEST_F(LineIo, RefusesWhatCannotBeRead) {
  EXPECT_THROW(LineReader("/nonexistent/file"), Failure);
  EXPECT_THROW(LineReader("/"), Failure);  // before an output is begun
}

TEST_F(LineIo, OutputKeepsTheOldFileUntilItStarts) {
  put("old contents\n");
  OutputFile output(path_);
  EXPECT_EQ(get(), "old contents\n");
  output.start();
  output.write_line("a");
  EXPECT_EQ(get(), "a\n");
  output.close();
}

// What refuse_shared_files says of these arguments, "" if nothing.
std::string shared(std::vector<std::string> arguments) {
  const Flag table[] = {{"in", "FILE", ""}, {"out", "FILE", ""}, {"stats", "FILE", ""}, {"o", "FILE", ""}};
  arguments.insert(arguments.begin(), "test");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  const Flags flags(table, static_cast<int>(argv.size()), argv.data(), /*max_positional=*/1);
  try {
    refuse_shared_files(flags, {"in"}, {"out", "stats", "o"});
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), kExitUsage);
    return failure.what();
  }
  return "";
}

TEST_F(LineIo, NoFileIsNamedTwiceIfItIsWritten) {
  put("{}\n");
  const std::string link = path_ + ".link", missing = path_ + ".missing";
  ASSERT_EQ(::link(path_.c_str(), link.c_str()), 0);
  EXPECT_EQ(shared({"--in", path_, "--out", path_}), "--out " + path_ + ": the same file as --in");
  EXPECT_EQ(shared({"--in", path_, "--stats", link}), "--stats " + link + ": the same file as --in " + path_);
  EXPECT_EQ(shared({path_, "-o", link}), "-o " + link + ": the same file as the input " + path_);
  EXPECT_EQ(shared({"--out", missing, "--stats", missing}), "--stats " + missing + ": the same file as --out");
  EXPECT_NE(shared({"--out", missing, "--stats", "/./" + missing}), "");
  EXPECT_EQ(shared({"--in", path_, "--out", missing, "--stats", missing + "2"}), "");
  EXPECT_EQ(shared({"--in", path_, path_}), "");  // nothing is written
  EXPECT_EQ(shared({"--in", "/dev/null", "--out", "/dev/null", "--stats", "/dev/null"}), "");
  EXPECT_EQ(shared({"--out", "-", "--stats", "-"}), "");
  ::unlink(link.c_str());
}

TEST_F(LineIo, OutputRefusesAFullDevice) {
  OutputFile full("/dev/full");
  full.start();
  EXPECT_THROW(full.write_line("a"), Failure);
}

TEST(JsonText, NumbersReadBackEqual) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values = {0.0f, -0.0f, 1.0f, 0.1f, -1.5e-7f, 3e38f, 1e-45f};
  for (int i = 0; i < 2000; ++i) values.push_back(-std::exp(static_cast<float>(i) * 0.01f - 10.0f));
  std::string text;
  append_json_array(&text, values);
  std::istringstream in(text.substr(1));
  for (const float value : values) {
    std::string number;
    std::getline(in, number, ',');
    EXPECT_EQ(std::stod(number) == 0 ? std::signbit(std::stod(number)) : false, value == 0 && std::signbit(value));
    EXPECT_EQ(static_cast<float>(std::stod(number)), value) << number;
  }
  text.clear();
  append_json_array(&text, std::vector<float>{0.1f, infinity, -infinity, std::nanf("")});
  EXPECT_EQ(text, "[0.1,null,null,null]");
  EXPECT_EQ(json_string("a\"\n\x01é\xff"), "\"a\\\"\\n\\u0001é\xEF\xBF\xBD\"");
}

TEST(Flags, SwitchesTakeNoValue) {
  const Flag table[] = {{"json", nullptr, ""}, {"out", "FILE", ""}};
  const auto flags = [&table](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "test");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    return Flags(table, static_cast<int>(argv.size()), argv.data());
  };
  EXPECT_TRUE(flags({"--json", "--out=a=b"}).given("json"));
  EXPECT_EQ(flags({"--json", "--out=a=b"}).text("out", ""), "a=b");
  for (const char* bad : {"--json=false", "--json=0", "--json=true", "--json="}) EXPECT_THROW(flags({bad}), Failure) << bad;
}

TEST(Flags, Sizes) {
  EXPECT_EQ(size_flag("kv-bytes", "1048576"), 1048576u);
  EXPECT_EQ(size_flag("kv-bytes", "512M"), 512u << 20);
  EXPECT_EQ(size_flag("kv-bytes", "2g"), uint64_t{2} << 30);
  for (const char* bad : {"", "M", "0", "-1", "1.5G", "1GB", "99999999999T", " 1", "0x10"}) {
    EXPECT_THROW(size_flag("kv-bytes", bad), Failure) << bad;
  }
}

}  // namespace
}  // namespace otr::cli
