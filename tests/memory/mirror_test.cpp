// Memory of a device: who owns it, and what the host may touch when.
#include "memory/mirror.h"

#include <gtest/gtest.h>

#include "memory/buffer.h"
#include "tests/memory/fake_accelerator.h"

namespace otr {
namespace {

TEST(DeviceBuffer, IsTheDevicesAndGoesBackToIt) {
  FakeAccelerator device(1000);
  {
    Result<Buffer<float>> buffer = Buffer<float>::create(200, "numbers", &device);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(device.free_bytes(), 200u);
    Buffer<float> moved = std::move(buffer.value());
    EXPECT_EQ(moved.bytes(), 800u);
    EXPECT_EQ(device.free_bytes(), 200u);
    const Result<Buffer<float>> refused = Buffer<float>::create(51, "more", &device);
    EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
    EXPECT_EQ(refused.status().message(), "more: cannot allocate 51 times 4 bytes on the device");
  }
  EXPECT_EQ(device.free_bytes(), 1000u);
}

TEST(Mirror, CarriesPiecesDownAndUp) {
  FakeAccelerator device(4096);
  Result<Mirror> made = Mirror::create(64, "test", &device);
  ASSERT_TRUE(made.ok());
  Mirror mirror = std::move(made.value());
  for (int i = 0; i < 16; ++i) mirror.host<int>()[i] = i;
  mirror.down(8, 16);
  ASSERT_TRUE(device.wait().ok());
  EXPECT_EQ(mirror.device<int>()[2], 2);
  EXPECT_EQ(mirror.device<int>(12)[0], 3);
  EXPECT_EQ(mirror.device<int>()[4], 0);  // not asked for
  mirror.device<int>()[5] = 55;
  mirror.up(20, 24);
  ASSERT_TRUE(mirror.begin().ok());
  EXPECT_EQ(mirror.host<int>()[5], 55);
  EXPECT_EQ(mirror.host<int>()[6], 6);
}

// The device reads the image when it comes to the copy, not when it is asked.
TEST(Mirror, BeginWaitsForCopiesThatAreUnderWayAndForNothingElse) {
  FakeAccelerator device(4096);
  Result<Mirror> mirror = Mirror::create(4, "test", &device);
  ASSERT_TRUE(mirror.ok());
  int* image = mirror.value().host<int>();
  const auto put = [&](int value, bool begins) {
    if (begins) {
      EXPECT_TRUE(mirror.value().begin().ok());
    }
    *image = value;
    mirror.value().down(0, 4);
  };
  int seen = 0;
  const auto look = [&] { device.ask([&seen, on_device = mirror.value().device<int>()] { seen += *on_device; }); };
  put(1, true), look();
  put(10, true), look();
  EXPECT_EQ(device.num_waits(), 1u);
  ASSERT_TRUE(device.wait().ok());
  EXPECT_EQ(seen, 11);
  put(100, true), look();  // nothing was under way
  EXPECT_EQ(device.num_waits(), 2u);
  put(1000, false), look();  // what begin() is there for: the image of the copy before is gone
  ASSERT_TRUE(device.wait().ok());
  EXPECT_EQ(seen, 11 + 1000 + 1000);
}

// With three images three batches are under way before the host waits, each with what was its own.
TEST(Mirror, SeveralImagesWaitSeldomer) {
  FakeAccelerator device(4096);
  Result<Mirror> made = Mirror::create(4, "test", &device, 3);
  ASSERT_TRUE(made.ok());
  Mirror& mirror = made.value();
  std::vector<int> seen;
  for (int value = 1; value <= 7; ++value) {
    ASSERT_TRUE(mirror.begin().ok());
    *mirror.host<int>() = value;
    mirror.down(0, 4);
    device.ask([&seen, at = mirror.device<int>()] { seen.push_back(*at); });
  }
  ASSERT_TRUE(device.wait().ok());
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(device.num_waits(), 3u);
}

TEST(Mirror, RefusedMemoryIsSaidAndGivenBack) {
  FakeAccelerator device(100);
  const Result<Mirror> refused = Mirror::create(101, "row descriptors", &device);
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(refused.status().message(), "row descriptors: cannot allocate 101 bytes on the device");
  EXPECT_EQ(device.free_bytes(), 100u);
}

}  // namespace
}  // namespace otr
