#include "runtime/growing_wait.h"

#include <gtest/gtest.h>

namespace otr {
namespace {

TEST(GrowingWait, DoublesUpToItsMost) {
  GrowingWait wait;
  EXPECT_EQ(wait.next_ms(), GrowingWait::kLeastMs);
  EXPECT_EQ(wait.next_ms(), 2 * GrowingWait::kLeastMs);
  for (int i = 0; i < 20; ++i) wait.next_ms();
  EXPECT_EQ(wait.next_ms(), GrowingWait::kMostMs);
  wait.reset();
  EXPECT_EQ(wait.next_ms(), GrowingWait::kLeastMs);
}

}  // namespace
}  // namespace otr
