#include "runtime/draft_server.h"

#include <algorithm>
#include <new>
#include <utility>

#include "runtime/worker_stats.h"

namespace otr {
namespace {

constexpr int32_t kMostMisses = 2;  // then a window is closed: in the first pass another sample may have run the prompt

// Takes the last token back from what penalties look at.
void drop_penalty(const Sequence& s, int32_t token, std::vector<PenaltyEntry>* penalties) {
  const auto at =
      std::find_if(penalties->begin(), penalties->end(), [token](const PenaltyEntry& e) { return e.token == token; });
  const auto prompt_end = s.tokens.begin() + s.num_prompt();
  if (--at->output_count == 0 && std::find(s.tokens.begin(), prompt_end, token) == prompt_end) penalties->erase(at);
}

}  // namespace

void DraftStats::add(const DraftStats& o) {
  ticks += o.ticks;
  requests += o.requests;
  ended_requests += o.ended_requests;
  drafted_tokens += o.drafted_tokens;
  kept_tokens += o.kept_tokens;
  wasted_tokens += o.wasted_tokens;
  rollbacks += o.rollbacks;
  closed_windows += o.closed_windows;
  reconfigured += o.reconfigured;
  full_links += o.full_links;
  kv_pages_in_use += o.kv_pages_in_use;
  busy_seconds += o.busy_seconds;
}

std::string DraftStats::json() const {
  std::string text = "{";
  const auto put = [&text](const char* name, const std::string& value) {
    text += std::string(text.size() > 1 ? "," : "") + "\"" + name + "\":" + value;
  };
  put("ticks", std::to_string(ticks));
  put("requests", std::to_string(requests));
  put("ended_requests", std::to_string(ended_requests));
  put("drafted_tokens", std::to_string(drafted_tokens));
  put("kept_tokens", std::to_string(kept_tokens));
  put("wasted_tokens", std::to_string(wasted_tokens));
  put("rollbacks", std::to_string(rollbacks));
  put("closed_windows", std::to_string(closed_windows));
  put("reconfigured", std::to_string(reconfigured));
  put("full_links", std::to_string(full_links));
  put("kv_pages_in_use", std::to_string(kv_pages_in_use));
  put("busy_seconds", decimal(busy_seconds));
  return text + "}";
}

Result<std::unique_ptr<DraftServer>> DraftServer::create(const DraftServerOptions& options, Device& device,
                                                         const ModelRunner* share) {
  std::unique_ptr<DraftServer> server(new DraftServer(options));
  OTR_ASSIGN_OR_RETURN(server->drafter_, ModelDrafter::create(options.tree, options.model, device, server->live_, share));
  if (share == nullptr) server->own_weight_bytes_ = server->model().weight_bytes() + server->model().quantized_bytes();
  return server;
}

DraftServer::DraftServer(const DraftServerOptions& options) : options_(options) {
  const size_t batch = static_cast<size_t>(options.tree.max_batch);
  rows_.reserve(batch);
  forests_.resize(batch);
  for (Forest& forest : forests_) forest.reserve(1);
}

DraftServer::~DraftServer() {
  for (const auto& s : live_) {
    if (s != nullptr) drafter_->leave(s->slot);
  }
}

bool DraftServer::tick() {
  const PacedStopwatch clock(options_.tree.paced.pace);
  const bool received = receive();
  const bool drafted = draft();
  const bool sent = send();
  if (!received && !drafted && !sent) return false;
  const int64_t every = options_.reconfigure_every;
  if (!options_.costs.empty() && every > 0 && drafted && stats_.ticks % every == every - 1) reconfigure();
  ++stats_.ticks;
  stats_.busy_seconds += clock.seconds();
  return true;
}

bool DraftServer::busy() const {
  for (const DraftLink* link : links_) {
    if (!link->is_current() || !link->opened.empty() || !link->verdicts.empty() || link->drafts.full()) return true;
  }
  return std::any_of(requests_.begin(), requests_.end(), [this](const Request& r) { return may_draft(r); });
}

bool DraftServer::may_draft(const Request& r) const {
  return r.window && r.window->may_draft() && (r.window->judged() >= r.rests_until || stats_.ended_requests != r.rests_since);
}

// ---- What comes ----------------------------------------------------------------------------------------------------------

bool DraftServer::receive() {
  bool any = false;
  for (DraftLink* const link : links_) {
    if (!link->is_current()) {
      any = true;
      if (!begin_again(link)) continue;
    }
    bool was_full = false;  // looked at before each pop: it may fill up meanwhile
    for (std::unique_ptr<Sequence>* s; (s = link->opened.front()) != nullptr; any = true) {
      std::unique_ptr<Sequence> opened = std::move(*s);
      was_full |= link->opened.full();
      link->opened.pop();
      try {
        start(link, std::move(opened));
      } catch (const std::bad_alloc&) {  // it is verified without drafts: its verdicts find nobody
        ++stats_.requests, ++stats_.ended_requests;
      }
    }
    for (const VerdictMessage* verdict; (verdict = link->verdicts.front()) != nullptr; any = true) {
      was_full |= link->verdicts.full();
      const auto at = std::find(names_.begin(), names_.end(), Name{link, verdict->request});
      if (at == names_.end()) {
        if (link->opened.empty()) link->verdicts.pop();  // there was no memory for the request
        break;                                           // else it has come meanwhile, and is first
      }
      judge(static_cast<int32_t>(at - names_.begin()), *verdict);
      link->verdicts.pop();
    }
    if (was_full) link->verifier->ring();  // whose queue it is may wait for room
  }
  return any;
}

// The other end was lost, and nobody waits for its drafts. False: those on their way are not thrown away yet.
bool DraftServer::begin_again(DraftLink* link) {
  const uint32_t generation = link->generation.load(std::memory_order_acquire);
  link->opened.clear();
  link->verdicts.clear();
  for (size_t slot = 0; slot < names_.size(); ++slot) {
    if (names_[slot].link == link) finish(static_cast<int32_t>(slot));
  }
  if (!link->drafts.empty()) return false;
  link->followed.store(generation, std::memory_order_release);
  link->verifier->ring();
  return true;
}

void DraftServer::start(const DraftLink* link, std::unique_ptr<Sequence> s) {
  if (free_slots_.empty()) {
    free_slots_.reserve(live_.size() + 1);
    windows_.reserve(live_.size() + 1);
    names_.reserve(live_.size() + 1);
    requests_.reserve(live_.size() + 1);
    live_.emplace_back();
    requests_.emplace_back();
    names_.push_back({});
    free_slots_.push_back(static_cast<int32_t>(live_.size()) - 1);
  }
  const int32_t slot = free_slots_.back();
  s->slot = slot;
  // The drafter's own worker has samples too, which must not fail for another's: what join() has made is taken back.
  try {
    drafter_->join(
        {.slot = slot, .group = s->group->id, .tokens = s->tokens, .num_prompt = s->num_prompt(), .noise = s->noise});
  } catch (...) {
    drafter_->leave(slot);
    throw;
  }
  free_slots_.pop_back();
  request(slot).window.emplace(s->age, s->num_tokens(), s->max_tokens, setting_);
  request(slot).misses = request(slot).rests_until = 0;
  names_[static_cast<size_t>(slot)] = {link, s->age};
  live_[static_cast<size_t>(slot)] = std::move(s);
  ++stats_.requests;
}

void DraftServer::judge(int32_t slot, const VerdictMessage& verdict) {
  Request& r = request(slot);
  const int32_t judged = r.window->judged();
  const DraftWindow::Effect effect = r.window->judge(verdict);
  if (effect == DraftWindow::Effect::kEnded) return finish(slot);
  if (effect != DraftWindow::Effect::kNone) replace_tokens(slot, judged, verdict);
}

// What was drafted, from position `judged` on, is replaced from the first token on that is not the target's.
void DraftServer::replace_tokens(int32_t slot, int32_t judged, const VerdictMessage& verdict) {
  Sequence& s = *live_[static_cast<size_t>(slot)];
  for (int32_t at = std::max(verdict.begin, judged); at < verdict.end(); ++at) {
    const int32_t token = verdict.tokens[static_cast<size_t>(at - verdict.begin)];
    if (at < s.num_tokens()) {
      if (s.tokens[static_cast<size_t>(at)] == token) continue;
      while (s.num_tokens() > at) {
        if (s.group->sampling.penalised()) drop_penalty(s, s.tokens.back(), &s.penalties);
        s.tokens.pop_back();
      }
      drafter_->rewind(slot, at);
    }
    s.tokens.push_back(token);
    s.note_penalty(token, true);
  }
}

void DraftServer::finish(int32_t slot) {
  Request& r = request(slot);
  stats_.kept_tokens += r.window->num_kept();
  stats_.wasted_tokens += r.window->num_wasted();
  stats_.rollbacks += r.window->num_rollbacks();
  names_[static_cast<size_t>(slot)] = {};
  r.window.reset();
  ++stats_.ended_requests;
  drafter_->leave(slot);
  live_[static_cast<size_t>(slot)].reset();
  free_slots_.push_back(slot);
}

// ---- What goes -----------------------------------------------------------------------------------------------------------

// One level, for whoever may have one.
bool DraftServer::draft() {
  rows_.clear();
  const size_t count = requests_.size();
  for (size_t i = 0; i < count && rows_.size() < forests_.size(); ++i) {
    const size_t slot = (turn_ + i) % count;
    if (!may_draft(requests_[slot])) continue;
    const Sequence& s = *live_[slot];
    Forest& forest = forests_[rows_.size()];
    forest.clear();
    rows_.push_back({.sequence = {.slot = s.slot,
                                  .group = s.group->id,
                                  .tokens = s.tokens,
                                  .num_prompt = s.num_prompt(),
                                  .noise = s.noise,
                                  .temperature = s.group->sampling.temperature},
                     .max_depth = 1,
                     .forest = &forest});
  }
  if (rows_.empty()) return false;
  turn_ = (static_cast<size_t>(rows_.back().sequence.slot) + 1) % count;
  drafter_->propose(rows_, {.top_k = 1, .max_nodes = 1});
  for (const DraftRow& row : rows_) add_token(row.sequence.slot, *row.forest);
  return true;
}

void DraftServer::add_token(int32_t slot, const Forest& forest) {
  Request& r = request(slot);
  if (forest.empty()) {
    if (++r.misses < kMostMisses) return;
    r.misses = 0;
    r.rests_until = r.window->judged() + kRestTokens;
    r.rests_since = stats_.ended_requests;
    r.window->close();
    ++stats_.closed_windows;
    return;
  }
  r.misses = 0;
  Sequence& s = *live_[static_cast<size_t>(slot)];
  const int32_t token = forest[0].token;
  r.window->add(token);
  s.tokens.push_back(token);
  s.note_penalty(token, true);
  ++stats_.drafted_tokens;
  if (s.stops_at(token)) r.window->close();  // nothing comes behind it
}

bool DraftServer::send() {
  bool any = false;
  for (DraftLink* const link : links_) {
    bool rings = false;
    for (size_t slot = 0; slot < requests_.size(); ++slot) {
      if (names_[slot].link != link) continue;
      DraftWindow& window = *requests_[slot].window;
      for (DraftMessage message; !link->drafts.full() && window.send(&message); rings = true) link->drafts.push(message);
      stats_.full_links += link->drafts.full() && window.is_due();
    }
    if (rings) link->verifier->ring();
    any |= rings;
  }
  return any;
}

// ---- Numbers -------------------------------------------------------------------------------------------------------------

void DraftServer::reconfigure() {
  windows_.clear();
  double context = 0;
  for (size_t slot = 0; slot < requests_.size(); ++slot) {
    const std::optional<DraftWindow>& w = requests_[slot].window;
    if (!w) continue;
    KeepRate rate{.tried = w->num_kept() + w->num_rollbacks(), .kept = w->num_kept()};
    windows_.push_back({.request = slot, .p = rate.value(), .setting = w->setting()});
    context += live_[slot]->num_tokens();
  }
  if (windows_.empty()) return;
  const double batch = static_cast<double>(windows_.size());
  const WindowCosts costs{.verify = options_.costs.data(),
                          .draft = options_.costs.data(),
                          .drafters = 1 / options_.verifiers,
                          .context = context / batch};
  stats_.reconfigured += otr::reconfigure({.batch = 1, .line = std::max(2.0, batch / options_.verifiers)}, options_.form, costs,
                                          options_.most, windows_);
  for (const RequestWindow& w : windows_) request(static_cast<int32_t>(w.request)).window->set(w.setting);
}

DraftStats DraftServer::stats() const {
  DraftStats stats = stats_;
  for (const Request& r : requests_) {
    if (!r.window) continue;
    stats.kept_tokens += r.window->num_kept();
    stats.wasted_tokens += r.window->num_wasted();
    stats.rollbacks += r.window->num_rollbacks();
  }
  stats.kv_pages_in_use = model().page_pool().num_in_use();
  return stats;
}

}  // namespace otr
