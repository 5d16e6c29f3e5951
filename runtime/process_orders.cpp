#include "runtime/process_orders.h"

namespace otr {

void ProcessOrders::discard() {
  SequenceQueue discarded;
  discarded.append(&starts);
  cancels.clear();
  move.reset();
  roles.reset();
  lend.reset();
  relinks.clear();
  handed_on.clear();
  end_step = weights = withdraw = false;
}

std::optional<WireType> ProcessOrders::take(WireBytes* bytes, std::unique_ptr<Sequence>* s) {
  if (std::exchange(withdraw, false)) return WireType::kWithdraw;  // before what is given it instead
  if (std::exchange(weights, false)) return WireType::kWeights;
  if (std::exchange(end_step, false)) return WireType::kEndStep;  // before the next one's samples come
  if (roles) return encode_roles(*std::exchange(roles, std::nullopt), bytes), WireType::kRoles;
  if (!relinks.empty()) {
    encode_relink(relinks.back(), bytes);
    relinks.pop_back();
    return WireType::kRelink;
  }
  if ((*s = starts.pop()) != nullptr) return WireType::kStart;
  if (!cancels.empty()) {
    encode_u64(cancels.back(), bytes);
    cancels.pop_back();
    return WireType::kCancel;
  }
  if (move) return encode_move(*std::exchange(move, std::nullopt), bytes), WireType::kGive;
  if (lend) return encode_lend(*std::exchange(lend, std::nullopt), bytes), WireType::kLend;
  if (!handed_on.empty()) {
    const WireType type = handed_on.front().first;
    bytes->swap(handed_on.front().second);
    handed_on.pop_front();
    return type;
  }
  return std::nullopt;
}

}  // namespace otr
