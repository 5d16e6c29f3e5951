#include "tools/outrider/json_line.h"

#include <gtest/gtest.h>

#include <string>

#include "tools/outrider/failure.h"

namespace otr::cli {
namespace {

std::string reason(const std::string& text) {
  try {
    parse_json_line(text);
  } catch (const BadLine& bad) {
    return bad.what();
  }
  return "";
}

TEST(JsonLine, TakesAnObject) { EXPECT_EQ(parse_json_line("{\"a\": [1, {\"a\": null}], \"b\": \"\\u00e9\"}\r").size(), 2u); }

TEST(JsonLine, RefusesWithAReason) {
  EXPECT_EQ(reason("[1]"), "not a JSON object");
  EXPECT_EQ(reason("{\"a\":1,\"\\u0061\":2}"), "key \"a\" is given twice");
  EXPECT_EQ(reason("{\"b\":{\"a\":1,\"a\":2}}"), "key \"a\" is given twice");
  EXPECT_EQ(reason("\xEF\xBB\xBF{}"), "begins with a byte order mark");
  EXPECT_EQ(reason(std::string("{}\0", 3)), "holds a zero byte");
  EXPECT_EQ(reason("{\"a\":tru}"), "invalid JSON at byte 9: invalid literal");
  EXPECT_EQ(reason("{\"a\":1"), "invalid JSON at byte 7: unexpected end of input; expected '}'");
  EXPECT_NE(reason("{} {}").find("invalid JSON at byte 4"), std::string::npos);
  EXPECT_NE(reason("{\"a\":\"\xff\"}").find("invalid JSON at byte 7"), std::string::npos);
  EXPECT_NE(reason("{\"a\":NaN}"), "");
  EXPECT_NE(reason("{\"a\":\"\\ud800\"}"), "");
  EXPECT_NE(reason("{\"a\":1e999}").find("number overflow"), std::string::npos);
}

TEST(JsonLine, ReasonsStayShort) { EXPECT_LT(reason("{\"a\":\"" + std::string(1 << 20, 'x')).size(), 200u); }

TEST(JsonLine, LimitsDepthAndSize) {
  const auto nested = [](int depth) {
    return "{\"a\":" + std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']') + "}";
  };
  EXPECT_EQ(reason(nested(20)), "");
  EXPECT_NE(reason(nested(100000)).find("nested deeper"), std::string::npos);
  std::string many = "{\"a\":[0";
  for (int i = 0; i < kMaxLineValues; ++i) many += ",0";
  EXPECT_NE(reason(many + "]}").find("more than"), std::string::npos);
}

}  // namespace
}  // namespace otr::cli
