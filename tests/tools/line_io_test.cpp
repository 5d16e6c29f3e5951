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
  LineReader folder("/");
  std::string_view line;
  EXPECT_THROW(folder.next(true, &line), Failure);
}

TEST_F(LineIo, OutputKeepsTheOldFileUntilItStarts) {
  put("old contents\n");
  OutputFile output(path_, -1);
  EXPECT_EQ(get(), "old contents\n");
  output.start();
  output.write_line("a");
  EXPECT_EQ(get(), "a\n");
  output.close();
}

TEST_F(LineIo, OutputRefusesTheInputAndAFullDevice) {
  put("{}\n");
  LineReader input(path_);
  try {
    OutputFile output(path_, input.fd());
    FAIL() << "the input would have been overwritten";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), kExitUsage);
  }
  OutputFile full("/dev/full", -1);
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
