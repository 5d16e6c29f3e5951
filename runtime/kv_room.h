// How much memory a model's KV pages get, and whether there is so much.
//
// Thread safety: pure functions of values.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/base/status.h"

namespace otr {

// What models that come later need of the same memory: bytes for each KV page of the first one's, since they have as many, and
// for their weights.
struct RoomBeside {
  uint64_t page_bytes = 0, weight_bytes = 0;
};

struct KvRoom {
  std::optional<uint64_t> free = {};  // bytes; empty: the system does not say
  bool on_device = false;             // else on the host, where pages cost memory once they are touched
  uint64_t page_bytes = 0;            // of one page
  uint64_t weight_bytes = 0;          // of the model, which are there; on a device its copy in 4 bits may be to come
  RoomBeside beside = {};
  uint64_t sharers = 1;       // models that have the pages between them
  uint64_t free_sharers = 1;  // of those, the ones in this memory
};

// The bytes of the pages of all sharers: `wanted`, or, if that is 0, as many as leave room for what is beside them, in nine
// tenths of a device's free memory or a quarter of the host's. kOutOfMemory: there is less than that, unless `is_settled`.
Result<uint64_t> kv_bytes(uint64_t wanted, const KvRoom& room, bool is_settled = false);

}  // namespace otr
