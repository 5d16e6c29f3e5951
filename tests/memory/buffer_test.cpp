#include "memory/buffer.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <limits>
#include <utility>

#include "kernels/base/thread_pool.h"
#include "tests/memory/fake_accelerator.h"
#include "tests/memory/file_size_limit.h"
#include "tests/memory/resident.h"

namespace otr {
namespace {

TEST(Buffer, IsZeroedAlignedAndWritable) {
  for (const int64_t size : {int64_t{1}, int64_t{1000}, int64_t{3} << 20}) {  // the last asks for huge pages
    auto buffer = Buffer<int32_t>::create(size, "test");
    ASSERT_TRUE(buffer.ok());
    Buffer<int32_t>& b = buffer.value();
    EXPECT_EQ(b.size(), static_cast<size_t>(size));
    EXPECT_EQ(b.bytes(), 4 * static_cast<size_t>(size));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 64, 0u);
    for (const int64_t i : {int64_t{0}, size / 2, size - 1}) EXPECT_EQ(b.data()[i], 0);
    for (const int64_t i : {int64_t{0}, size / 2, size - 1}) b.data()[i] = 7;
    EXPECT_EQ(b.data()[size - 1], 7);
  }
}

TEST(Buffer, WhatIsPopulatedIsThere) {
  auto buffer = Buffer<int32_t>::create(int64_t{3} << 20, "test");
  ASSERT_TRUE(buffer.ok());
  Buffer<int32_t>& b = buffer.value();
  EXPECT_FALSE(is_resident(b.data(), b.bytes()));
  b.populate();
  if (system_populates(b.data())) {
    EXPECT_TRUE(is_resident(b.data(), b.bytes()));
  }
  EXPECT_EQ(b.data()[b.size() - 1], 0);
  Buffer<int32_t>().populate();  // nothing
}

TEST(Buffer, NothingWantedIsNothingAllocated) {
  for (const int64_t size : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    auto buffer = Buffer<float>::create(size, "test");
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(buffer.value().data(), nullptr);
    EXPECT_EQ(buffer.value().size(), 0u);
  }
}

TEST(Buffer, WhatSleepsHasItsAddressAndComesBackZeroed) {
  auto made = Buffer<int32_t>::create(1 << 20, "test");
  ASSERT_TRUE(made.ok());
  Buffer<int32_t>& b = made.value();
  int32_t* const at = b.data();
  at[0] = at[(1 << 20) - 1] = 7;
  ASSERT_TRUE(b.sleep().ok());
  ASSERT_TRUE(b.sleep().ok());
  ASSERT_TRUE(b.wake().ok());
  ASSERT_TRUE(b.wake().ok());
  EXPECT_EQ(b.data(), at);
  EXPECT_EQ(at[0], 0);
  EXPECT_EQ(at[(1 << 20) - 1], 0);
  Buffer<int32_t> none;
  EXPECT_TRUE(none.sleep().ok() && none.wake().ok());
}

// Of a device's memory others may have had it meanwhile, and may have it still.
TEST(Buffer, ADevicesMemoryIsSomebodyElsesInSleep) {
  FakeAccelerator device(1000);
  auto made = Buffer<uint8_t>::create(600, "test", &device);
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(made.value().sleep().ok());
  EXPECT_EQ(device.free_bytes(), 1000u);
  auto other = Buffer<uint8_t>::create(500, "test", &device);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(made.value().wake().code(), StatusCode::kOutOfMemory);
  other.value() = {};
  EXPECT_TRUE(made.value().wake().ok());
  EXPECT_EQ(device.free_bytes(), 400u);
}

// Sizes that no machine has; the last two times four would wrap around to 0 and to 64 bytes.
TEST(Buffer, AbsurdSizesAreOutOfMemory) {
  for (const int64_t size :
       {int64_t{1} << 60, std::numeric_limits<int64_t>::max(), int64_t{1} << 62, (int64_t{1} << 62) + 16}) {
    auto buffer = Buffer<float>::create(size, "KV pages");
    ASSERT_FALSE(buffer.ok()) << size;
    EXPECT_EQ(buffer.status().code(), StatusCode::kOutOfMemory);
    EXPECT_NE(buffer.status().message().find("KV pages"), std::string::npos);
  }
}

TEST(Buffer, ASharedOneIsThereOrRefused) {
  ThreadPool pool(2);
  auto made = Buffer<int32_t>::create_shared(1 << 20, "weights", pool);
  ASSERT_TRUE(made.ok()) << made.status().message();
  Buffer<int32_t>& b = made.value();
  EXPECT_EQ(b.data()[(1 << 20) - 1], 0);
  b.data()[5] = 7;
  auto attached = Buffer<int32_t>::attach(b.fd(), 1 << 20, "weights");
  ASSERT_TRUE(attached.ok()) << attached.status().message();
  EXPECT_EQ(std::as_const(attached.value()).data()[5], 7);
  {
    const FileSizeLimit limit(4096);  // beyond it the system sends a signal that ends a process
    const auto refused = Buffer<int32_t>::create_shared(1 << 20, "weights", pool);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
    EXPECT_NE(refused.status().message().find("File too large"), std::string::npos) << refused.status().message();
    EXPECT_TRUE(Buffer<int32_t>::create_shared(1024, "weights", pool).ok());
  }
  sigset_t pending;
  EXPECT_EQ(sigpending(&pending), 0);
  EXPECT_EQ(sigismember(&pending, SIGXFSZ), 0);
  EXPECT_TRUE(Buffer<int32_t>::create_shared(1 << 20, "weights", pool).ok());
}

TEST(Buffer, MovesItsMemory) {
  auto made = Buffer<int32_t>::create(10, "test");
  ASSERT_TRUE(made.ok());
  Buffer<int32_t> a = std::move(made.value());
  int32_t* data = a.data();
  data[9] = 5;
  Buffer<int32_t> b = std::move(a);
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(a.size(), 0u);
  Buffer<int32_t> c;
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.data()[9], 5);
}

}  // namespace
}  // namespace otr
