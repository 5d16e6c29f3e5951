#include "spec/keep_rate.h"

#include <gtest/gtest.h>

namespace otr {
namespace {

TEST(KeepRate, AChainIsJudgedUpToItsFirstWrongToken) {
  KeepRate rate;
  EXPECT_EQ(rate.value(), 0.5f);
  rate.add_chain(3, 3);
  EXPECT_EQ(rate.tried, 3);
  rate.add_chain(3, 1);
  EXPECT_EQ(rate.tried, 5);
  EXPECT_EQ(rate.kept, 4);
  rate.add_chain(3, 0);
  rate.add_chain(0, 0);
  EXPECT_EQ(rate.tried, 6);
  EXPECT_EQ(rate.value(), 5.0f / 8);
}

TEST(KeepRate, ManyTokensCountHalf) {
  KeepRate rate{.tried = 1 << 14, .kept = 1000};
  rate.fade();
  EXPECT_EQ(rate.tried, 1 << 14);
  ++rate.tried;
  rate.fade();
  EXPECT_EQ(rate.tried, 1 << 13);
  EXPECT_EQ(rate.kept, 500);
}

}  // namespace
}  // namespace otr
