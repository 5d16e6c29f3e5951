// Where samples have ended is known as long as no other has taken the entry.
#include "sched/home_table.h"

#include <gtest/gtest.h>

namespace otr {
namespace {

TEST(HomeTable, AreFoundUntilOthersTakeTheirPlace) {
  constexpr uint32_t kKeys = 8192;
  HomeTable homes(7);
  const auto key = [](uint32_t i) { return noise_stream({.seed = 3, .stream = i, .sample = 0}); };
  EXPECT_EQ(homes.find(key(0)), Placement::kNobody);
  EXPECT_EQ(homes.find(NoiseStream{}), Placement::kNobody);
  for (uint32_t i = 0; i < kKeys; ++i) homes.note(key(i), static_cast<int32_t>(i % 7));
  uint32_t found = 0;
  for (uint32_t i = 0; i < kKeys; ++i) {
    const int32_t home = homes.find(key(i));
    EXPECT_TRUE(home == static_cast<int32_t>(i % 7) || home == Placement::kNobody) << i;
    found += home != Placement::kNobody;
  }
  EXPECT_GT(found, kKeys * 9 / 10);
  homes.note(key(5), 6);
  EXPECT_EQ(homes.find(key(5)), 6);
  EXPECT_EQ(homes.find(key(kKeys)), Placement::kNobody);
}

}  // namespace
}  // namespace otr
