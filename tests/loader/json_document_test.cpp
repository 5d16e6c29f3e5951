#include "loader/json_document.h"

#include "tests/loader/loader_fixture.h"

namespace otr {
namespace {

void expect_bad_json(const std::string& text, const std::string& reason) {
  SCOPED_TRACE(text.substr(0, 80));
  expect_error(JsonDocument::parse("f.json", text).status(), StatusCode::kBadInput, {"f.json: JSON: ", reason});
}

TEST(JsonDocument, ReadsEveryKind) {
  const auto document = JsonDocument::parse(
      "f", R"( {"n":null,"t":true,"i":-3,"u":18446744073709551615,"d":2.5e3,"s":"a\u0000\ud83d\ude42","a":[1,[],2],"o":{}} )");
  ASSERT_TRUE(document.ok()) << document.status().message();
  const JsonValue root = document.value().root();
  EXPECT_EQ(root.size(), 8u);
  EXPECT_TRUE(root.find("n").is_null());
  EXPECT_TRUE(root.find("t").as_bool());
  EXPECT_EQ(root.find("i").as_int(), -3);
  EXPECT_EQ(root.find("u").as_int(), std::nullopt);
  EXPECT_EQ(root.find("u").as_double(), 0x1p64);
  EXPECT_EQ(root.find("d").as_int(), std::nullopt);
  EXPECT_EQ(root.find("d").as_double(), 2500.0);
  EXPECT_EQ(root.find("s").as_string(), std::string_view("a\0\xf0\x9f\x99\x82", 6));
  EXPECT_EQ(root.find("s").as_int(), std::nullopt);
  EXPECT_FALSE(root.find("missing"));
  std::vector<int64_t> numbers;
  for (JsonValue v = root.find("a").first(); v; v = v.next()) numbers.push_back(v.as_int().value_or(-1));
  EXPECT_EQ(numbers, (std::vector<int64_t>{1, -1, 2}));
  EXPECT_FALSE(root.find("o").first());
  EXPECT_FALSE(root.find("o").next());
  EXPECT_EQ(root.find("o").key(), "o");
}

TEST(JsonDocument, RefusesWhatIsNotJson) {
  expect_bad_json("", "unexpected end of input");
  expect_bad_json("{\"a\":1", "at byte 6");
  expect_bad_json("{} x", "at byte 3");
  expect_bad_json("{}{}", "at byte 2");
  expect_bad_json(std::string("{}\0{", 4), "zero byte at byte 2");
  expect_bad_json("\xef\xbb\xbf{}", "byte order mark");
  expect_bad_json("\"\xff\"", "ill-formed UTF-8");
  expect_bad_json("\"\xed\xa0\x80\"", "ill-formed UTF-8");
  expect_bad_json("\"\xc0\xaf\"", "ill-formed UTF-8");
  expect_bad_json("\"\\ud800\"", "U+D800");
  expect_bad_json("[1,]", "syntax error");
  expect_bad_json("[01]", "syntax error");
  expect_bad_json("[1e999]", "number overflow");
  expect_bad_json("[NaN]", "syntax error");
  expect_bad_json("/**/{}", "syntax error");
  expect_bad_json("\"" + std::string(1'000'000, 'x'), "missing closing quote");
}

TEST(JsonDocument, RefusesDuplicateKeysAlsoEscapedOnes) {
  expect_bad_json(R"({"a":1,"b":2,"a":3})", "duplicate key 'a'");
  expect_bad_json(R"({"x":[{"a":1,"\u0061":3}]})", "duplicate key 'a'");
  expect_bad_json(R"({"":1,"":3})", "duplicate key ''");
  EXPECT_TRUE(JsonDocument::parse("f", R"({"a":{"a":1},"b":{"a":1}})").ok());
}

TEST(JsonDocument, BoundsDepthAndCount) {
  EXPECT_TRUE(JsonDocument::parse("f", std::string(64, '[') + std::string(64, ']')).ok());
  expect_bad_json(std::string(65, '[') + std::string(65, ']'), "nested deeper than 64");
  expect_bad_json(std::string(10'000'000, '['), "nested deeper than 64");
  std::string many = "[0";
  for (uint32_t i = 0; i < kMaxJsonValues; ++i) many += ",0";
  expect_bad_json(many + "]", "more than 4000000 values");
}

TEST(JsonDocument, LoadRefusesLargeAndUnreadableFiles) {
  const TempFolder folder;
  const std::string path = folder.write("a.json", "[1,2,3]");
  EXPECT_TRUE(JsonDocument::load(path, 7).ok());
  expect_error(JsonDocument::load(path, 6).status(), StatusCode::kBadInput, {path, "7 bytes", "6"});
  expect_error(JsonDocument::load(folder / "none", 6).status(), StatusCode::kIoError, {folder / "none", "No such file"});
  expect_error(JsonDocument::load(folder.path(), 6).status(), StatusCode::kBadInput, {folder.path(), "not a regular file"});
}

}  // namespace
}  // namespace otr
