#include "runtime/page_net_wire.h"

#include <limits>

#include "runtime/wire_fields.h"

namespace otr {
namespace {

constexpr int32_t kMostRanks = 1 << 20;

void put_pull(const PagePull& p, WireWriter* w) {
  w->put(p.number);
  w->put(p.parcel);
  for (const int32_t n : {p.from, p.first, p.count}) w->put(n);
}

PagePull read_pull(int32_t num_workers, WireReader* r) {
  PagePull p;
  p.number = r->integer<uint64_t>("number", 0, UINT64_MAX);
  p.parcel = r->integer<uint64_t>("parcel", 0, UINT64_MAX);
  p.from = r->integer("from", 0, num_workers - 1);
  p.first = r->integer("first", 0, kMaxInt / 2);
  p.count = r->integer("count", 0, kMaxInt / 2);
  return p;
}

}  // namespace

void encode_net_order(const NetOrder& o, WireBytes* out) {
  WireWriter w(out);
  w.put(static_cast<uint8_t>(o.kind));
  w.put(o.generation);
  for (const std::byte b : o.id) w.put(static_cast<uint8_t>(b));
  w.put(o.size);
  w.put(o.rank);
  put_pull(o.pull, &w);
  w.put(o.peer);
  w.put(static_cast<uint8_t>(o.sends));
}

Result<NetOrder> decode_net_order(WireView in, int32_t num_workers) {
  WireReader r(in);
  NetOrder o;
  o.kind = static_cast<NetOrder::Kind>(r.integer<uint8_t>("kind", 0, static_cast<uint8_t>(NetOrder::Kind::kEndParcel)));
  o.generation = r.integer<uint64_t>("generation", 0, UINT64_MAX);
  for (std::byte& b : o.id) b = static_cast<std::byte>(r.integer<uint8_t>("id", 0, UINT8_MAX));
  o.size = r.integer("size", 1, kMostRanks);
  o.rank = r.integer("rank", 0, o.size - 1);
  o.pull = read_pull(num_workers, &r);
  o.peer = r.integer("peer", 0, kMostRanks - 1);
  o.sends = r.flag("sends");
  OTR_RETURN_IF_ERROR(r.finish("net order"));
  return o;
}

void encode_net_news(const NetNews& n, WireBytes* out) {
  WireWriter w(out);
  w.put(static_cast<uint8_t>(n.kind));
  w.put(n.generation);
  w.put(n.why);
  put_pull(n.pull, &w);
}

Result<NetNews> decode_net_news(WireView in, int32_t num_workers) {
  WireReader r(in);
  NetNews n;
  n.kind = static_cast<NetNews::Kind>(r.integer<uint8_t>("kind", 0, static_cast<uint8_t>(NetNews::Kind::kEndParcel)));
  n.generation = r.integer<uint64_t>("generation", 0, UINT64_MAX);
  n.why = r.text("why");
  n.pull = read_pull(num_workers, &r);
  if (r.ok() && n.kind == NetNews::Kind::kPull && n.pull.count == 0) r.fail("count", "is 0");
  OTR_RETURN_IF_ERROR(r.finish("net news"));
  return n;
}

}  // namespace otr
