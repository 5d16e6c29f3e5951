// What an engine and its worker processes say about pages that go from one GPU straight to another's (page_net.h).
//
// A generation is one joining of all processes that are there; whatever belongs to another one is thrown away. A parcel is what
// a process keeps of a sequence that it has given away. Whoever goes on with the sequence asks for pages of it (kPull); the
// engine orders both ends to move them (kMove), in one order for all, or says that they will not come (kRefuse).
//
// Thread safety: functions of their arguments. Errors: as worker_wire.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/worker_wire.h"

namespace otr {

using NetId = std::array<std::byte, 128>;  // what all ends of a generation have in common: an ncclUniqueId

// Pages first … first + count - 1 of a parcel.
struct PagePull {
  uint64_t number = 0;  // of the asking process'
  uint64_t parcel = 0;
  int32_t from = 0;  // the worker that has the parcel
  int32_t first = 0, count = 0;
};

struct NetOrder {
  enum class Kind : uint8_t { kJoin, kLeave, kMove, kRefuse, kEndParcel };

  Kind kind = Kind::kLeave;
  uint64_t generation = 0;
  NetId id = {};               // kJoin: of the generation
  int32_t size = 1, rank = 0;  // kJoin: of the processes; this one's
  PagePull pull;               // kMove, kRefuse; of kEndParcel its parcel
  int32_t peer = 0;            // kMove: the other end's rank
  bool sends = false;          // kMove
};
void encode_net_order(const NetOrder& order, WireBytes* out);
Result<NetOrder> decode_net_order(WireView in, int32_t num_workers);

struct NetNews {
  enum class Kind : uint8_t { kUp, kFailed, kPull, kEndParcel };

  Kind kind = Kind::kUp;
  uint64_t generation = 0;
  std::string why;  // kFailed
  PagePull pull;    // kPull; of kEndParcel its parcel, and whose it is
};
void encode_net_news(const NetNews& news, WireBytes* out);
Result<NetNews> decode_net_news(WireView in, int32_t num_workers);

}  // namespace otr
