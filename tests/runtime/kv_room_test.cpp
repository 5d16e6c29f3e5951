// How much memory KV pages get, with models beside them.

#include "runtime/kv_room.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/drafter_model.h"
#include "tests/runtime/tiny_model.h"

namespace otr {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

uint64_t bytes_in(const KvRoom& room) {
  const Result<uint64_t> bytes = kv_bytes(0, room);
  EXPECT_TRUE(bytes.ok()) << bytes.status().message();
  return bytes.ok() ? bytes.value() : 0;
}

// What all of it takes: pages of all models in this memory, and weights that are to come.
uint64_t taken(uint64_t bytes, const KvRoom& room) {
  const uint64_t pages = bytes / room.sharers * room.free_sharers / room.page_bytes;
  return pages * (room.page_bytes + room.beside.page_bytes) + room.beside.weight_bytes;
}

TEST(KvRoom, AQuarterOfTheHostsMemoryIsForThePagesOfAll) {
  KvRoom room{.free = 64 * kGiB, .page_bytes = 1000};
  EXPECT_EQ(bytes_in(room), 16 * kGiB / 1000 * 1000);
  room.beside = {.page_bytes = 250, .weight_bytes = kGiB};
  EXPECT_EQ(bytes_in(room), 16 * kGiB / 1250 * 1000);
  room.free.reset();
  room.beside = {};
  EXPECT_GT(bytes_in(room), 0u);
}

// A 7B beside which a 0.5B drafts, on a GPU of 80 GB: both have their pages, the drafter its weights, and the copy in 4 bits
// room.
TEST(KvRoom, ADevicesDraftersFitBesideTheDefault) {
  KvRoom room{.free = 63 * kGiB, .on_device = true, .page_bytes = 64 * 57344, .weight_bytes = 15 * kGiB};
  const uint64_t alone = bytes_in(room), in_4_bits = room.weight_bytes * 17 / 64;
  EXPECT_LE(alone + in_4_bits, *room.free / 10 * 9);
  EXPECT_GT(alone, 52 * kGiB);
  room.beside = {.page_bytes = 64 * 12288, .weight_bytes = kGiB};
  const uint64_t bytes = bytes_in(room);
  EXPECT_LE(taken(bytes, room) + in_4_bits, *room.free / 10 * 9);
  EXPECT_GT(taken(bytes, room) + in_4_bits, *room.free / 10 * 9 - kGiB);
  room.sharers = 4, room.free_sharers = 2;  // two GPUs of two workers
  EXPECT_LE(taken(bytes_in(room), room) + in_4_bits, *room.free / 10 * 9);
  EXPECT_GT(bytes_in(room), bytes / 10 * 19);
  room.beside.weight_bytes = 63 * kGiB;
  EXPECT_EQ(bytes_in(room), 0u);
}

TEST(KvRoom, WhatIsAskedForMustBeThereWithAllThatIsBesideIt) {
  KvRoom room{.free = 1000, .page_bytes = 10};
  EXPECT_EQ(kv_bytes(1000, room).value(), 1000u);
  EXPECT_EQ(kv_bytes(1010, room).status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(kv_bytes(1010, room, /*is_settled=*/true).value(), 1010u);
  EXPECT_EQ(kv_bytes(1010, {.page_bytes = 10}).value(), 1010u) << "the system does not say";
  room.beside = {.page_bytes = 5, .weight_bytes = 100};
  EXPECT_EQ(kv_bytes(600, room).value(), 600u);
  const Status refused = kv_bytes(610, room).status();
  EXPECT_EQ(refused.code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(refused.message(), "kv_bytes of 610, with 405 for drafters beside them, is more than the free memory of 1000");
  EXPECT_EQ(kv_bytes(~uint64_t{0}, room).status().code(), StatusCode::kOutOfMemory);
  room.sharers = 2;  // the other one is elsewhere
  EXPECT_EQ(kv_bytes(1200, room).value(), 1200u);
  EXPECT_FALSE(kv_bytes(1220, room).ok());
}

TEST(RoomBeside, IsThatOfTheDraftersThatAreNamed) {
  const TinyModel one({.num_layers = 3}), other({.hidden_size = 64, .head_dim = 64});
  const std::vector<DrafterModel> models = {{.name = "one", .path = one.path()},
                                            {.name = "other", .path = other.path(), .in_4_bits = true},
                                            {.name = "nobody", .path = "/nowhere"}};
  const auto room = [&models](const std::vector<std::string>& drafters) { return room_beside(models, drafters).value(); };
  EXPECT_EQ(room({"self", "ngram"}).page_bytes, 0u);
  EXPECT_EQ(room({"self", "ngram"}).weight_bytes, 0u);
  EXPECT_EQ(room({"one"}).page_bytes, one.kv_bytes(1));
  EXPECT_EQ(room({"one", "self", "other"}).page_bytes, one.kv_bytes(1) + other.kv_bytes(1));
  EXPECT_EQ(room({"one", "one"}).page_bytes, 2 * one.kv_bytes(1)) << "for others too";
  EXPECT_EQ(room({"one", "one"}).weight_bytes, room({"one"}).weight_bytes);
  EXPECT_GT(room({"other"}).weight_bytes, room({"one"}).weight_bytes);
  EXPECT_FALSE(room_beside(models, std::vector<std::string>{"nobody"}).ok());
}

}  // namespace
}  // namespace otr
