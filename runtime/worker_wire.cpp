// Orders. What a process is set up with is in worker_setup.cpp, what it says in report_wire.cpp.
#include "runtime/worker_wire.h"

#include <algorithm>

#include "kernels/page/page.h"
#include "runtime/race.h"
#include "runtime/wire_fields.h"
#include "runtime/wire_orders.h"

namespace otr {
namespace {

// ---- Sequences -----------------------------------------------------------------------------------------------------------

void put_sampling(const SamplingParams& s, WireWriter* w) {
  w->put(s.temperature);
  w->put(s.top_k);
  w->put(s.top_p);
  w->put(s.min_p);
  w->put(s.repetition_penalty);
  w->put(s.presence_penalty);
  w->put(s.frequency_penalty);
  w->put(s.seed);
  w->put(s.max_new_tokens);
}

SamplingParams read_sampling(WireReader* r) {
  SamplingParams s;
  s.temperature = r->number("temperature", 0.0f, 100.0f);
  s.top_k = r->integer("top_k", 0, kMaxInt);
  s.top_p = r->number("top_p", 0.0f, 1.0f);
  s.min_p = r->number("min_p", 0.0f, 1.0f);
  s.repetition_penalty = r->number("repetition_penalty", 1e-3f, 1e3f);
  s.presence_penalty = r->number("presence_penalty", -100.0f, 100.0f);
  s.frequency_penalty = r->number("frequency_penalty", -100.0f, 100.0f);
  s.seed = r->integer<uint64_t>("seed", 0, UINT64_MAX);
  s.max_new_tokens = r->integer("max_new_tokens", 1, kMaxInt);
  return s;
}

// What a sequence has of its own, before its tokens.
void put_key(const Sequence& s, WireWriter* w) {
  w->put(s.sample);
  w->put(s.age);
  w->put(s.max_tokens);
  for (const uint32_t word : s.noise.r) w->put(word);
}

void read_key(const StartLimits& limits, int32_t least_tokens, WireReader* r, Sequence* s) {
  s->sample = r->integer<uint32_t>("sample", 0, UINT32_MAX);
  s->age = r->integer<uint64_t>("age", 0, UINT64_MAX);
  const int64_t most =
      std::min<int64_t>(limits.context_limit, limits.num_pages * kPageTokens + 1);  // a score's last token has no row
  s->max_tokens = r->integer("max_tokens", least_tokens, static_cast<int32_t>(std::min<int64_t>(most, kMaxInt)));
  for (uint32_t& word : s->noise.r) word = r->integer<uint32_t>("noise", 0, UINT32_MAX);
}

// Room for all that it may come to, and what follows of what it has.
void furnish(int32_t num_accepted, Sequence* s) {
  const size_t most = static_cast<size_t>(s->max_tokens), prompt = static_cast<size_t>(s->num_prompt());
  s->tokens.reserve(most);
  s->logprobs.reserve(most - prompt);
  s->raw_logprobs.reserve(most - prompt);
  s->logprobs.resize(static_cast<size_t>(num_accepted));
  s->raw_logprobs.resize(static_cast<size_t>(num_accepted));
  s->num_reported = num_accepted;
  s->pages.reserve((s->max_tokens + kPageTokens - 1) / kPageTokens);
  if (!s->group->sampling.penalised()) return;
  s->penalties.reserve(most);
  const std::span<const int32_t> seen(s->tokens.data(), prompt + static_cast<size_t>(num_accepted));
  const std::vector<PenaltyEntry> penalties = penalties_of(seen, prompt);
  s->penalties.assign(penalties.begin(), penalties.end());
}

}  // namespace

bool is_wire_type(uint16_t type) {
  return (type >= static_cast<uint16_t>(WireType::kSetup) && type <= static_cast<uint16_t>(WireType::kWithdraw)) ||
         (type >= static_cast<uint16_t>(WireType::kReady) && type <= static_cast<uint16_t>(WireType::kTries));
}

namespace {

void put_start(const Sequence& s, int32_t num_accepted, const StartPages& pages, WireBytes* out) {
  const Group& g = *s.group;
  WireWriter w(out);
  w.put(g.id);
  put_sampling(g.sampling, &w);
  w.put_array(std::span(g.stop_ids));
  w.put(g.num_prompt);
  w.put(static_cast<uint8_t>(g.is_score));
  w.put(static_cast<uint8_t>(g.cancelled));
  put_key(s, &w);
  w.put_array(std::span(s.tokens));
  w.put(num_accepted);
  put_spec(s.spec, &w);
  w.put(pages.num_positions);
  w.put(pages.parcel);
  w.put(pages.generation);
  w.put(pages.worker);
  w.put(s.rung);
  w.put(static_cast<uint8_t>(s.race == nullptr ? 0 : s.race->leaps() ? 2 : 1));
  w.put(static_cast<uint8_t>(s.is_on_trial));
  const bool leads = !g.is_score && num_accepted == 0;  // else whoever the group has blocked waits for another sample
  w.put(static_cast<uint32_t>(leads ? g.blocked.size() : 0));
  for (size_t i = 0; leads && i < g.blocked.size(); ++i) put_key(*g.blocked[i], &w);
}

}  // namespace

void encode_start(const Sequence& s, WireBytes* out, const StartPages& pages) {
  put_start(s, static_cast<int32_t>(s.raw_logprobs.size()), pages, out);
}

void encode_draft_request(const Sequence& s, WireBytes* out) { put_start(s, s.num_tokens() - s.num_prompt(), {}, out); }

Result<std::unique_ptr<Sequence>> decode_start(WireView in, const StartLimits& limits, StartPages* pages) {
  WireReader r(in);
  auto g = std::make_shared<Group>();
  auto s = std::make_unique<Sequence>();
  s->group = g;
  g->id = r.integer<uint64_t>("group", 0, UINT64_MAX);
  g->sampling = read_sampling(&r);
  r.array("stop_ids", &g->stop_ids);
  check_tokens("stop_ids", g->stop_ids, limits.vocab_size, &r);
  if (!std::is_sorted(g->stop_ids.begin(), g->stop_ids.end())) r.fail("stop_ids", "are out of order");
  g->num_prompt = r.integer("num_prompt", 0, kMaxInt);
  g->is_score = r.flag("is_score");
  g->cancelled = r.flag("cancelled");
  read_key(limits, std::max(1, g->num_prompt), &r, s.get());
  r.array("tokens", &s->tokens);
  check_tokens("tokens", s->tokens, limits.vocab_size, &r);
  const int32_t size = static_cast<int32_t>(std::min<size_t>(s->tokens.size(), kMaxInt));
  if (size < std::max(1, g->num_prompt) || size > s->max_tokens || (g->is_score && size != s->max_tokens))
    r.fail("tokens", "are too few or too many");
  const int32_t num_accepted = r.integer("num_accepted", 0, std::max(0, size - g->num_prompt));
  if (!g->is_score && num_accepted != size - g->num_prompt) r.fail("num_accepted", "contradicts the tokens");
  if (!g->is_score && (g->num_prompt == 0 || size >= s->max_tokens)) r.fail("tokens", "leave nothing to draw");
  if (g->is_score && size > 1 && num_accepted == size - g->num_prompt) r.fail("num_accepted", "leaves nothing to score");
  if (g->is_score && g->num_prompt == 0 && num_accepted == 0) r.fail("num_accepted", "lacks the first token");
  s->spec = read_spec(&r);
  StartPages found;
  found.num_positions = r.integer("num_positions", 0, pages == nullptr ? 0 : std::max(0, size - 1));
  found.parcel = r.integer<uint64_t>("parcel", 0, found.num_positions == 0 ? 0 : UINT64_MAX);
  found.generation = r.integer<uint64_t>("generation", 0, found.parcel == 0 ? 0 : UINT64_MAX);
  found.worker = r.integer("worker", 0, found.parcel == 0 ? 0 : kMaxWorkers - 1);
  if (pages != nullptr) *pages = found;
  s->rung = r.integer("rung", 0, kMaxRung);
  const uint8_t races = r.integer<uint8_t>("races", 0, 2);
  s->is_on_trial = r.flag("is_on_trial");
  if (races > 0 && (g->is_score || s->rung == 0 || num_accepted == 0)) r.fail("races", "is no replica's");
  constexpr size_t kKeyBytes = 4 + 8 + 4 + 16;
  const uint32_t num_blocked = r.count("num_blocked", kKeyBytes);
  if (num_blocked > 0 && (g->is_score || num_accepted > 0)) r.fail("num_blocked", "is not 0 though the prompt was run");
  for (uint32_t i = 0; i < num_blocked && r.ok(); ++i) {
    auto blocked = std::make_unique<Sequence>();
    blocked->group = g;
    read_key(limits, g->num_prompt + 1, &r, blocked.get());
    blocked->tokens = s->tokens;
    if (r.ok()) furnish(0, blocked.get());
    g->blocked.push_back(std::move(blocked));
  }
  const Status status = r.finish("start");
  if (!status.ok()) {
    g->disband();
    return status;
  }
  furnish(num_accepted, s.get());
  if (races > 0) s->race = std::make_shared<Race>(*s, races == 2);
  return s;
}

// ---- Small ones ----------------------------------------------------------------------------------------------------------

void encode_move(const Move& move, WireBytes* out) {
  WireWriter w(out);
  put_move(move, &w);
}

Result<Move> decode_move(WireView in, int32_t num_workers) {
  WireReader r(in);
  const Move move = read_move(num_workers, &r);
  OTR_RETURN_IF_ERROR(r.finish("give"));
  return move;
}

void encode_lend(const Lend& lend, WireBytes* out) {
  WireWriter w(out);
  put_lend(lend, &w);
}

Result<Lend> decode_lend(WireView in, int32_t num_workers) {
  WireReader r(in);
  const Lend lend = read_lend(num_workers, &r);
  OTR_RETURN_IF_ERROR(r.finish("lend"));
  return lend;
}

void encode_roles(const DraftRoles& roles, WireBytes* out) {
  WireWriter w(out);
  w.put(static_cast<uint8_t>(roles.decoupled));
  w.put(roles.setting.window);
  w.put(static_cast<uint8_t>(roles.setting.mode));
}

Result<DraftRoles> decode_roles(WireView in) {
  WireReader r(in);
  DraftRoles roles;
  roles.decoupled = r.flag("decoupled");
  roles.setting.window = r.integer("window", 1, kMaxDraftDepth);
  roles.setting.mode = static_cast<DraftMode>(r.integer<uint8_t>("mode", 0, static_cast<uint8_t>(DraftMode::kDecoupled)));
  OTR_RETURN_IF_ERROR(r.finish("roles"));
  return roles;
}

void encode_u64(uint64_t value, WireBytes* out) { WireWriter(out).put(value); }

Result<uint64_t> decode_u64(WireView in) {
  WireReader r(in);
  const uint64_t value = r.integer<uint64_t>("value", 0, UINT64_MAX);
  OTR_RETURN_IF_ERROR(r.finish("number"));
  return value;
}

void encode_name(const SampleName& name, WireBytes* out) {
  WireWriter w(out);
  w.put(name.group);
  w.put(name.sample);
}

Result<SampleName> decode_name(WireView in) {
  WireReader r(in);
  SampleName name;
  name.group = r.integer<uint64_t>("group", 0, UINT64_MAX);
  name.sample = r.integer<uint32_t>("sample", 0, UINT32_MAX);
  OTR_RETURN_IF_ERROR(r.finish("name"));
  return name;
}

}  // namespace otr
