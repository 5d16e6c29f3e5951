#include "runtime/remote_drafter.h"

#include <algorithm>
#include <new>
#include <utility>

namespace otr {
namespace {

// What a drafter needs to know of a sequence; it is sent before the drafter's worker sees it.
std::unique_ptr<Sequence> copy_for_drafter(const Sequence& s) {
  auto copy = std::make_unique<Sequence>();
  copy->group = s.group;
  copy->sample = s.sample;
  copy->noise = s.noise;
  copy->max_tokens = s.max_tokens;
  copy->tokens.reserve(static_cast<size_t>(s.max_tokens) + 1);
  copy->tokens = s.tokens;
  if (s.group->sampling.penalised()) {
    copy->penalties.reserve(static_cast<size_t>(s.max_tokens) + 1);
    copy->penalties = s.penalties;
  }
  return copy;
}

}  // namespace

RemoteDrafter::Request* RemoteDrafter::request(int32_t slot) {
  const int32_t at = static_cast<size_t>(slot) < request_of_.size() ? request_of_[static_cast<size_t>(slot)] : kNone;
  return at == kNone ? nullptr : &requests_[static_cast<size_t>(at)];
}

void RemoteDrafter::join(const DraftSequence& sequence) {
  const size_t slot = static_cast<size_t>(sequence.slot);
  if (request_of_.size() <= slot) request_of_.resize(slot + 1, kNone);
  if (free_.empty()) {
    requests_.emplace_back();
    free_.reserve(requests_.size());
    open_.reserve(requests_.size());
    free_.push_back(static_cast<int32_t>(requests_.size()) - 1);
  }
  const int32_t at = free_.back();
  const Sequence& s = *live_[slot];
  Request fresh;
  fresh.name = uint64_t{next_name_++} << 32 | static_cast<uint32_t>(at);
  fresh.window = std::make_unique<VerifyWindow>(fresh.name, s.num_tokens(), s.max_tokens);
  fresh.copy = copy_for_drafter(s);
  fresh.copy->age = fresh.name;
  fresh.slot = sequence.slot;
  requests_[static_cast<size_t>(at)] = std::move(fresh);
  free_.pop_back();
  request_of_[slot] = at;
}

bool RemoteDrafter::waits(int32_t slot) const {
  const Request* r = request(slot);
  return r != nullptr && r->wanted && !r->alone && r->window->next() == nullptr;
}

void RemoteDrafter::exchange() {
  if (!link_.is_current() && !begin_again()) {
    owes_ = true;
    return;
  }
  receive();
  owes_ = !link_.drafts.empty();
  const double now = clock_.seconds();
  for (size_t i = 0; i < open_.size();) {
    const int32_t at = open_[i];
    Request& r = requests_[static_cast<size_t>(at)];
    const bool told = send(&r);
    owes_ |= !told;
    if (r.slot == kNone && told) {  // its drafter knows
      r.window.reset();
      free_.push_back(at);
      open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    if (r.window->next() != nullptr) r.waits_since = now;
    else if (!r.alone && 1e3 * (now - r.waits_since) > kPatienceMs) r.alone = true, r.head_start = 0, ++num_impatient_;
    ++i;
  }
  ring();
}

void RemoteDrafter::ring() {
  if (std::exchange(rings_, false)) link_.server->ring();
}

// The other end was lost. False: what it was told last is not thrown away yet.
bool RemoteDrafter::begin_again() {
  const uint32_t generation = link_.generation.load(std::memory_order_acquire);
  link_.drafts.clear();
  if (!link_.opened.empty() || !link_.verdicts.empty()) return false;
  std::erase_if(open_, [this](int32_t at) {
    if (requests_[static_cast<size_t>(at)].slot != kNone) return false;
    requests_[static_cast<size_t>(at)] = Request{};
    free_.push_back(at);
    return true;
  });
  for (size_t at = 0; at < requests_.size(); ++at) {
    if (requests_[at].window != nullptr) reopen(static_cast<int32_t>(at));
  }
  link_.followed.store(generation, std::memory_order_release);
  link_.server->ring();
  return true;
}

// Under a new name: nobody answers to the old one. Without memory for that, its sequence drafts no more.
void RemoteDrafter::reopen(int32_t at) {
  Request& r = requests_[static_cast<size_t>(at)];
  const Sequence& s = *live_[static_cast<size_t>(r.slot)];
  try {
    const uint64_t name = uint64_t{next_name_++} << 32 | static_cast<uint32_t>(at);
    auto window = std::make_unique<VerifyWindow>(name, s.num_tokens(), s.max_tokens);
    r.copy = copy_for_drafter(s);
    r.copy->age = r.name = name;
    r.window = std::move(window);
    r.alone = true;
    r.quiet = false;
    r.head_start = r.wanted ? 0 : kHeadStart;
  } catch (const std::bad_alloc&) {
    request_of_[static_cast<size_t>(r.slot)] = kNone;
    std::erase(open_, at);
    r = Request{};
    free_.push_back(at);
  }
}

void RemoteDrafter::receive() {
  // Whoever drafts may wait for room, also where the queue has filled up meanwhile.
  for (const DraftMessage* m; (m = link_.drafts.front()) != nullptr; rings_ |= link_.drafts.full(), link_.drafts.pop()) {
    const size_t at = static_cast<uint32_t>(m->request);
    if (at >= requests_.size()) continue;
    Request& r = requests_[at];
    if (r.window == nullptr || r.name != m->request) continue;
    (void)r.window->offer(*m);              // a stale one too shows that the drafter lives
    const bool empty = m->num_tokens == 0;  // it finds no draft: nobody is to wait for the next
    if (r.alone && !empty) r.waits_since = clock_.seconds();
    r.alone = r.quiet = empty;
    r.head_start = 0;
  }
}

// The request itself first, then its verdicts. False: there was no room for all.
bool RemoteDrafter::send(Request* r) {
  if (!link_.is_current()) return false;
  if (r->copy != nullptr) {
    if (link_.opened.full()) return ++num_full_, false;
    link_.opened.push(std::move(r->copy));
    ++num_opened_;
    rings_ = true;
  }
  if (r->quiet && !r->window->ended() && r->window->num_untold() < kQuietTokens) return true;
  VerdictMessage verdict;
  while (r->window->is_due()) {
    if (link_.verdicts.full()) return ++num_full_, false;
    (void)r->window->report(&verdict);
    link_.verdicts.push(verdict);
    rings_ = true;
  }
  return true;
}

DraftWork RemoteDrafter::propose(std::span<const DraftRow> rows, const DraftLimits& limits) {
  for (const DraftRow& row : rows) {
    Request* const r = request(row.sequence.slot);
    if (r == nullptr) continue;
    if (!r->wanted && opens_ && may_open()) {
      r->wanted = true;
      open_.push_back(request_of_[static_cast<size_t>(row.sequence.slot)]);
      owes_ |= !send(r);
    }
    const DraftMessage* const draft = r->window->next();
    if (draft == nullptr) continue;
    const int32_t nodes = std::min({VerifyWindow::rows(*draft) - 1, row.max_depth, limits.max_nodes});
    int32_t parent = Forest::kRoot;
    float acceptance = 1;
    for (int32_t i = 0; i < nodes; ++i) {
      parent = row.forest->add(parent, draft->tokens[static_cast<size_t>(i)], acceptance *= rate_.value(), number_, 0);
    }
  }
  ring();
  return {};
}

void RemoteDrafter::observe(const DraftVerdict& v) {
  if (rest_tokens_ > 0) rest_tokens_ -= v.num_new;
  Request* const r = request(v.sequence.slot);
  if (r == nullptr) return;
  const auto found = v.sequence.tokens.last(static_cast<size_t>(v.num_new));
  int32_t judged = 0, kept = 0;
  if (const DraftMessage* const draft = r->window->next(); draft != nullptr) {
    judged = std::min(draft->num_tokens, v.num_new);
    while (kept < judged && draft->tokens[static_cast<size_t>(kept)] == found[static_cast<size_t>(kept)]) ++kept;
    rate_.add_chain(judged, kept);
    rate_.fade();
  }
  r->window->grow(found, false);
  if (!r->wanted) return;
  if (gives_up_ && judged > 0 && turns_useless(r, judged, kept)) return leave(v.sequence.slot);
  if (r->slot == kNone) return;  // with others
  owes_ |= !send(r);
  if (r->copy == nullptr && r->head_start > 0 && (r->head_start -= v.num_new) <= 0) {
    r->alone = false;
    r->waits_since = clock_.seconds();
  }
}

// ---- Giving up -----------------------------------------------------------------------------------------------------------

void RemoteDrafter::Trial::add(int32_t more, int32_t more_kept, int32_t most) {
  if (judged >= most) judged /= 2, kept /= 2;
  judged += more;
  kept += more_kept;
}

// After a rest one drafts alone: also where those that found better still do.
bool RemoteDrafter::may_open() {
  if (!rests_) return true;
  if (rest_tokens_ > 0) return false;
  return std::none_of(open_.begin(), open_.end(), [this](int32_t at) {
    const Request& r = requests_[static_cast<size_t>(at)];
    return r.slot != kNone && r.trial.judged < kJudged;
  });
}

bool RemoteDrafter::turns_useless(Request* r, int32_t judged, int32_t kept) {
  r->trial.add(judged, kept, 2 * kJudged);
  const bool useless = r->trial.judged >= kJudged && r->trial.is_poor();
  if (rest_tokens_ > 0) return useless;  // those who found better go on
  together_.add(judged, kept, 2 * kTogether);
  if (together_.judged >= (useless || rests_ ? kJudged : kTogether)) {
    rests_ = together_.is_poor();
    if (rests_) rest();
  }
  return useless;
}

// All but who has found better.
void RemoteDrafter::rest() {
  rest_tokens_ = kRestTokens;
  together_ = {};
  for (size_t at = 0; at < requests_.size(); ++at) {
    const Request& r = requests_[at];
    if (r.window != nullptr && r.slot != kNone && r.wanted && (r.trial.judged == 0 || r.trial.is_poor())) leave(r.slot);
  }
}

void RemoteDrafter::leave(int32_t slot) {
  Request* const r = request(slot);
  if (r == nullptr) return;  // memory ran out
  const int32_t at = std::exchange(request_of_[static_cast<size_t>(slot)], kNone);
  r->slot = kNone;
  if (r->copy != nullptr) {  // nobody knows of it
    std::erase(open_, at);
    *r = Request{};
    free_.push_back(at);
    return;
  }
  r->window->abandon();
  owes_ = true;  // that is to be told
}

}  // namespace otr
