#include "runtime/link_wire.h"

#include <algorithm>
#include <limits>

#include "runtime/wire_fields.h"

namespace otr {
namespace {

constexpr size_t kLeastTokenBytes = 8 + 4 + 4 + 4;  // of a message without tokens

void put_tokens(const TokenMessage& m, WireWriter* w) {
  w->put(m.request);
  w->put(m.epoch);
  w->put(m.begin);
  w->put_array(m.view());
}

void read_tokens(int32_t vocab_size, WireReader* r, TokenMessage* m) {
  m->request = r->integer<uint64_t>("request", 0, UINT64_MAX);
  m->epoch = r->integer<uint32_t>("epoch", 0, UINT32_MAX);
  m->begin = r->integer("begin", 0, kMaxInt - TokenMessage::kMaxTokens);
  m->num_tokens = r->integer<int32_t>("num_tokens", 0, TokenMessage::kMaxTokens);
  for (int32_t i = 0; i < m->num_tokens; ++i) m->tokens[static_cast<size_t>(i)] = r->integer("token", 0, vocab_size - 1);
}

}  // namespace

void encode_relink(const Relink& relink, WireBytes* out) {
  WireWriter w(out);
  w.put(relink.link);
  w.put(relink.generation);
}

Result<Relink> decode_relink(WireView in, int32_t num_workers) {
  WireReader r(in);
  Relink relink;
  relink.link = r.integer("link", 0, num_workers - 1);
  relink.generation = r.integer<uint32_t>("generation", 1, UINT32_MAX);
  OTR_RETURN_IF_ERROR(r.finish("relink"));
  return relink;
}

bool LinkMessage::empty() const {
  const auto none = [](uint32_t n) { return n == 0; };
  return opened.empty() && verdicts.empty() && drafts.empty() && std::all_of(taken.begin(), taken.end(), none);
}

void LinkMessage::clear() {
  opened.clear();
  verdicts.clear();
  drafts.clear();
  taken = {};
}

void encode_link(const LinkMessage& m, WireBytes* out) {
  WireWriter w(out);
  w.put(m.link);
  w.put(m.generation);
  for (const uint32_t n : m.taken) w.put(n);
  w.put(static_cast<uint32_t>(m.opened.size()));
  WireBytes request;
  for (const auto& s : m.opened) {
    request.clear();
    encode_draft_request(*s, &request);
    w.put_array(WireView(request));
  }
  w.put(static_cast<uint32_t>(m.verdicts.size()));
  for (const VerdictMessage& v : m.verdicts) {
    put_tokens(v, &w);
    w.put(static_cast<uint8_t>(v.ended));
  }
  w.put(static_cast<uint32_t>(m.drafts.size()));
  for (const DraftMessage& d : m.drafts) {
    put_tokens(d, &w);
    w.put(static_cast<uint8_t>(d.closes));
    w.put(static_cast<uint8_t>(d.again));
  }
}

Result<LinkMessage> decode_link(WireView in, const LinkLimits& limits) {
  WireReader r(in);
  LinkMessage m;
  m.link = r.integer("link", 0, limits.num_workers - 1);
  m.generation = r.integer<uint32_t>("generation", 0, UINT32_MAX);
  for (uint32_t& n : m.taken) n = r.integer<uint32_t>("taken", 0, limits.capacity);
  const auto count = [&](const char* field, size_t bytes_each) {
    const uint32_t n = r.count(field, bytes_each);
    if (n > limits.capacity) r.fail(field, "are more than there is room for");
    return r.ok() ? n : 0;
  };
  std::vector<std::byte> request;
  for (uint32_t left = count("opened", sizeof(uint32_t)); left > 0 && r.ok(); --left) {
    r.array("request", &request);
    if (!r.ok()) break;
    OTR_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> s, decode_start(request, limits.start));
    m.opened.push_back(std::move(s));
    const Group& g = *m.opened.back()->group;
    if (!g.is_score && g.blocked.empty()) continue;
    m.opened.back()->group->disband();
    r.fail("opened", "is no sample that decodes");
  }
  m.verdicts.resize(count("verdicts", kLeastTokenBytes + 1));
  for (VerdictMessage& v : m.verdicts) {
    read_tokens(limits.start.vocab_size, &r, &v);
    v.ended = r.flag("ended");
  }
  m.drafts.resize(count("drafts", kLeastTokenBytes + 2));
  for (DraftMessage& d : m.drafts) {
    read_tokens(limits.start.vocab_size, &r, &d);
    d.closes = r.flag("closes");
    d.again = r.flag("again");
  }
  OTR_RETURN_IF_ERROR(r.finish("link"));
  return m;
}

uint32_t LinkAccount::lose() {
  under_way_ = {};
  return ++generation_;
}

Status LinkAccount::pass(const LinkMessage& m, bool from_server) {
  const bool foreign = from_server
                           ? !m.opened.empty() || !m.verdicts.empty() || m.taken[LinkMessage::kDrafts] > 0
                           : !m.drafts.empty() || m.taken[LinkMessage::kOpened] > 0 || m.taken[LinkMessage::kVerdicts] > 0;
  if (foreign || m.empty()) return bad_input("it says on a link what its end does not say");
  for (size_t queue = 0; queue < under_way_.size(); ++queue) {
    const size_t sent = m.size(static_cast<LinkMessage::Queue>(queue));
    if (m.taken[queue] > under_way_[queue]) return bad_input("it has taken messages that were not sent");
    if (sent > capacity_ - under_way_[queue]) return bad_input("it sends more than a link has room for");
    under_way_[queue] += static_cast<uint32_t>(sent) - m.taken[queue];
  }
  return {};
}

}  // namespace otr
