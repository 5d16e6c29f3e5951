#include "spec/policy.h"

#include <gtest/gtest.h>

namespace otr {
namespace {

TEST(ParsePolicy, KnowsOff) {
  const Result<Policy> policy = parse_policy("off");
  ASSERT_TRUE(policy.ok());
  EXPECT_EQ(policy.value().kind, PolicyKind::kOff);
}

TEST(ParsePolicy, RefusesAllElseByName) {
  for (const char* text : {"", "Off", "off ", " off", "offline", "auto", "fixed:tiny:4"}) {
    const Result<Policy> policy = parse_policy(text);
    ASSERT_FALSE(policy.ok()) << text;
    EXPECT_EQ(policy.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(policy.status().message().find("'" + std::string(text) + "'"), std::string::npos);
  }
}

}  // namespace
}  // namespace otr
