// Handles are found out, not followed; room that is kept for an object is nobody's handle, and comes back where none comes.
#include "runtime/handle_registry.h"

#include <gtest/gtest.h>

namespace otr {
namespace {

struct Opaque;
using Registry = HandleRegistry<int, Opaque, 5>;

TEST(HandleRegistry, KnowsWhatItHas) {
  Registry registry;
  Opaque* const one = registry.insert(std::make_shared<int>(1));
  Opaque* const two = registry.insert(std::make_shared<int>(2));
  EXPECT_EQ(*registry.lookup(one), 1);
  EXPECT_EQ(*registry.take(two), 2);
  EXPECT_EQ(registry.lookup(two), nullptr);
  EXPECT_EQ(registry.take(two), nullptr);
  Opaque* const three = registry.insert(std::make_shared<int>(3));
  EXPECT_NE(three, two);  // another generation of its place
  EXPECT_EQ(registry.lookup(two), nullptr);
  EXPECT_EQ(*registry.lookup(three), 3);
}

TEST(HandleRegistry, APlaceIsNoHandleAndComesBack) {
  const auto number = [](Opaque* handle) { return reinterpret_cast<uintptr_t>(handle); };
  Registry registry;
  Opaque* const first = registry.insert(std::make_shared<int>(1));
  for (int i = 0; i < 100; ++i) {
    const Registry::Place unused(&registry);
    EXPECT_EQ(registry.lookup(reinterpret_cast<Opaque*>(number(first) + 1)), nullptr);  // what it would be
  }
  Registry::Place place(&registry), other(&registry);
  Opaque* const filled = place.fill(std::make_shared<int>(2));
  EXPECT_EQ(number(filled), number(first) + 1);  // a hundred later, still the second place
  EXPECT_EQ(*registry.lookup(filled), 2);
  EXPECT_EQ(number(other.fill(std::make_shared<int>(3))), number(first) + 2);
  EXPECT_EQ(*registry.lookup(first), 1);
}

}  // namespace
}  // namespace otr
