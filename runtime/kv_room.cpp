#include "runtime/kv_room.h"

#include <string>

namespace otr {
namespace {

constexpr uint64_t kUnknownFree = uint64_t{1} << 30;

// Pages that fit, as bytes of the model's own.
uint64_t own_share(uint64_t bytes, const KvRoom& room) {
  return bytes / (room.page_bytes + room.beside.page_bytes) * room.page_bytes;
}

uint64_t default_bytes(const KvRoom& room) {
  const uint64_t free = room.free.value_or(kUnknownFree);
  if (!room.on_device) return own_share(free / 4, room);
  const uint64_t most = free / 10 * 9, quantized = room.weight_bytes / 100 * 27;  // 4.25 bits of 16
  const uint64_t taken = quantized + room.beside.weight_bytes;
  return most > taken ? own_share(most - taken, room) * room.sharers / room.free_sharers : 0;
}

}  // namespace

// On the host the system would grant far too many pages, and kill the process much later.
Result<uint64_t> kv_bytes(uint64_t wanted, const KvRoom& room, bool is_settled) {
  const uint64_t bytes = wanted != 0 ? wanted : default_bytes(room);
  if (!room.free || is_settled) return bytes;
  const uint64_t here = bytes / room.sharers * room.free_sharers;
  const uint64_t beside = here / room.page_bytes * room.beside.page_bytes + room.beside.weight_bytes;
  if (here <= *room.free && beside <= *room.free - here) return bytes;
  return Status(StatusCode::kOutOfMemory,
                "kv_bytes of " + std::to_string(bytes) +
                    (beside > 0 ? ", with " + std::to_string(beside) + " for drafters beside them, is" : " is") +
                    " more than the free memory of " + std::to_string(*room.free));
}

}  // namespace otr
