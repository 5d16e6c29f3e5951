#include "sched/window.h"

#include <algorithm>
#include <cassert>

namespace otr {
namespace {

bool is_older(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

}  // namespace

// ---- The drafter's half --------------------------------------------------------------------------------------------------

DraftWindow::DraftWindow(uint64_t request, int32_t begin, int32_t limit, WindowSetting setting)
    : request_(request), limit_(limit), setting_(setting), judged_(begin) {}

bool DraftWindow::may_draft() const {
  if (ended_ || closing_ || waits() || next() >= limit_) return false;
  return num_drafted_ < (setting_.mode == DraftMode::kCoupled ? 1 : 2) * setting_.window;
}

void DraftWindow::add(int32_t token) {
  assert(may_draft());
  tokens_[static_cast<size_t>(num_drafted_++)] = token;
}

std::optional<DraftWindow::Sent> DraftWindow::next_due() const {
  const int32_t unsent = num_drafted_ - num_sent_, count = std::min(unsent, setting_.window);
  if (ended_ || waits() || num_messages_ == static_cast<int32_t>(messages_.size())) return std::nullopt;
  const int32_t begin = judged_ + num_sent_;
  const bool last = count == unsent, at_limit = begin + count >= limit_;
  const bool closes = last && !at_limit && (closing_ || (setting_.mode == DraftMode::kCoupled && count == setting_.window));
  const bool due = count == setting_.window || closing_ || (last && at_limit);
  if (!due || (count == 0 && !closes)) return std::nullopt;
  return Sent{.begin = begin, .num_tokens = count, .closes = closes};
}

bool DraftWindow::send(DraftMessage* message) {
  const std::optional<Sent> next = next_due();
  if (!next) return false;
  if (next->closes) closing_ = false;
  messages_[static_cast<size_t>(num_messages_++)] = *next;
  num_sent_ += next->num_tokens;
  fill(*next, false, message);
  return true;
}

bool DraftWindow::resend(int32_t index, DraftMessage* message) const {
  if (ended_ || index >= num_messages_) return false;
  fill(messages_[static_cast<size_t>(index)], true, message);
  return true;
}

void DraftWindow::fill(const Sent& sent, bool again, DraftMessage* message) const {
  message->request = request_;
  message->epoch = epoch_;
  message->begin = sent.begin;
  message->num_tokens = sent.num_tokens;
  message->closes = sent.closes;
  message->again = again;
  std::copy_n(tokens_.begin() + (sent.begin - judged_), sent.num_tokens, message->tokens.begin());
}

DraftWindow::Effect DraftWindow::judge(const VerdictMessage& verdict) {
  if (ended_ || verdict.request != request_ || is_older(verdict.epoch, epoch_)) return Effect::kNone;
  const int32_t skip = judged_ - verdict.begin, count = verdict.num_tokens - skip;
  if (skip < 0 || count < 0 || (count == 0 && verdict.epoch == epoch_ && !verdict.ended)) return Effect::kNone;
  const int32_t* const own = verdict.tokens.data() + skip;
  int32_t matched = 0;
  while (matched < count && matched < num_drafted_ && own[matched] == tokens_[static_cast<size_t>(matched)]) ++matched;
  const bool wrong = matched < count && matched < num_drafted_;
  num_kept_ += matched;
  if (wrong) {
    if (!verdict.ended) num_wasted_ += num_drafted_ - matched - 1;
    ++num_rollbacks_;
  }
  const int32_t dropped = matched < count ? num_drafted_ : matched;
  std::copy(tokens_.begin() + dropped, tokens_.begin() + num_drafted_, tokens_.begin());
  num_drafted_ -= dropped;
  num_sent_ = std::max(0, num_sent_ - dropped);
  judged_ += count;
  if (matched < count) closing_ = false;  // the drafter has more to go by now
  if (verdict.epoch != epoch_) {
    // What the verdict left is a draft of the new epoch.
    epoch_ = verdict.epoch;
    num_messages_ = num_sent_ = 0;
  }
  while (num_messages_ > 0 && messages_[0].begin + messages_[0].num_tokens + (messages_[0].closes ? 1 : 0) <= judged_) {
    messages_[0] = messages_[1];
    --num_messages_;
  }
  ended_ = verdict.ended;
  return ended_ ? Effect::kEnded : wrong ? Effect::kRolledBack : Effect::kKept;
}

// ---- The verifier's half -------------------------------------------------------------------------------------------------

VerifyWindow::VerifyWindow(uint64_t request, int32_t begin, int32_t limit)
    : request_(request), begin_(begin), limit_(limit), told_length_(begin) {
  response_.reserve(static_cast<size_t>(std::max(0, limit - begin)));
}

VerifyWindow::Receipt VerifyWindow::offer(const DraftMessage& draft) {
  if (ended_ || draft.request != request_ || draft.epoch != epoch_ || draft.begin < length() || draft.end() > limit_ ||
      draft.num_tokens < (draft.closes ? 0 : 1) || draft.num_tokens > kMaxDraftDepth ||
      num_waiting_ == static_cast<int32_t>(waiting_.size())) {
    return Receipt::kStale;
  }
  for (int32_t i = 0; i < num_waiting_; ++i) {
    if (waiting_[static_cast<size_t>(i)].begin == draft.begin) return Receipt::kStale;
  }
  waiting_[static_cast<size_t>(num_waiting_++)] = draft;
  return Receipt::kTaken;
}

const DraftMessage* VerifyWindow::next() const {
  for (int32_t i = 0; i < num_waiting_ && !ended_; ++i) {
    if (waiting_[static_cast<size_t>(i)].begin == length()) return &waiting_[static_cast<size_t>(i)];
  }
  return nullptr;
}

VerdictMessage VerifyWindow::judge(std::span<const int32_t> own, int32_t stop) {
  const DraftMessage* const draft = next();
  assert(draft != nullptr && static_cast<int32_t>(own.size()) == rows(*draft));
  int32_t kept = 0;
  while (kept < draft->num_tokens && own[static_cast<size_t>(kept)] == draft->tokens[static_cast<size_t>(kept)]) ++kept;
  int32_t count = kept < draft->num_tokens ? kept + 1 : rows(*draft);
  const bool stops = stop < count;
  if (stops) count = stop + 1;
  const int32_t begin = length();
  grow(own.first(static_cast<size_t>(count)), stops);
  return since(begin);
}

void VerifyWindow::grow(std::span<const int32_t> tokens, bool ended) {
  const DraftMessage* const draft = next();
  const bool whole = draft != nullptr && static_cast<int32_t>(tokens.size()) == rows(*draft) &&
                     std::equal(draft->view().begin(), draft->view().end(), tokens.begin());
  const int32_t room = limit_ - length();
  response_.insert(response_.end(), tokens.begin(), tokens.begin() + std::min(room, static_cast<int32_t>(tokens.size())));
  ended_ = ended || length() >= limit_;
  if (!whole) return replace_drafter();  // what it has drafted behind is void, or begins elsewhere
  if (draft == &waiting_[0]) waiting_[0] = waiting_[1];
  --num_waiting_;
}

bool VerifyWindow::report(VerdictMessage* verdict) {
  if (!is_due()) return false;
  *verdict = since(told_length_);
  told_length_ = verdict->end();
  told_epoch_ = verdict->epoch;
  told_end_ = verdict->ended;
  // A drafter that is told the rest later drafts from here meanwhile: in an epoch of its own.
  if (told_length_ < length()) replace_drafter();
  return true;
}

VerdictMessage VerifyWindow::since(int32_t begin) const {
  VerdictMessage verdict;
  verdict.request = request_;
  verdict.epoch = epoch_;
  verdict.begin = std::clamp(begin, begin_, length());
  verdict.num_tokens = std::min(length() - verdict.begin, VerdictMessage::kMaxTokens);
  verdict.ended = ended_ && verdict.end() == length();
  std::copy_n(response_.begin() + (verdict.begin - begin_), verdict.num_tokens, verdict.tokens.begin());
  return verdict;
}

void VerifyWindow::replace_drafter() {
  ++epoch_;
  num_waiting_ = 0;
}

}  // namespace otr
