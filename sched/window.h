// Decoupled speculation of one request: a drafter and a verifier on different workers, joined by messages.
//
// The drafter runs ahead of the verdicts by at most two windows of w tokens: one at the verifier, one being drafted or ready. A
// wrong token costs what was drafted behind it: at most 2 w - 1 tokens.
//
//   drafter   d d d d|d d d d|. . . .|d d d d|x . . .        d: drafts a token, .: waits or drafts for others
//   verifier          V V V V V V|V V V V V V|               a mismatch there ----^ rolls back: a new epoch
//
// A message may close: the drafter then waits for the verdict, which brings one token more, the target's own behind a window
// that is kept whole. Coupled speculation is that every window closes. Window and mode may be set at any time.
//
// The verifier owns the epoch, and raises it with every mismatch, and whenever it goes on without the draft. By epoch and place
// duplicates, late and early messages are told; they do nothing. What was lost is sent again on demand. A verdict holds the
// target's own tokens, so nothing here can change a response.
//
// Thread safety: each half belongs to one thread; messages are values. Nothing is allocated after construction.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "spec/forest.h"

namespace otr {

enum class DraftMode { kCoupled, kDecoupled };
struct WindowSetting {
  int32_t window = 1;  // 1 to kMaxDraftDepth
  DraftMode mode = DraftMode::kDecoupled;
};

// Tokens at the positions begin, begin + 1, … of a request's prompt and response.
struct TokenMessage {
  static constexpr int32_t kMaxTokens = 2 * kMaxDraftDepth + 1;  // all that a drafter can be behind

  uint64_t request = 0;
  uint32_t epoch = 0;
  int32_t begin = 0;
  int32_t num_tokens = 0;
  std::array<int32_t, kMaxTokens> tokens;

  int32_t end() const { return begin + num_tokens; }
  std::span<const int32_t> view() const { return {tokens.data(), static_cast<size_t>(num_tokens)}; }
};
struct DraftMessage : TokenMessage {
  bool closes = false;  // the drafter waits: one more of the target's tokens is wanted
  bool again = false;   // sent once more: whoever knows its verdict should repeat it
};
struct VerdictMessage : TokenMessage {
  bool ended = false;  // with these the response is complete
};

// The drafter's half.
class DraftWindow {
 public:
  // `begin`: tokens known at first, the prompt's; `limit`: of prompt and response.
  DraftWindow(uint64_t request, int32_t begin, int32_t limit, WindowSetting setting);

  void set(WindowSetting setting) { setting_ = setting; }
  WindowSetting setting() const { return setting_; }
  // The next token is wanted: the one at position next().
  bool may_draft() const;
  int32_t next() const { return judged_ + num_drafted_; }
  void add(int32_t token);  // REQUIRES: may_draft()
  // The drafter finds no more: what it has goes to the verifier as it is, also if that is nothing.
  void close() { closing_ = true; }
  bool is_due() const { return next_due().has_value(); }
  bool send(DraftMessage* message);  // the next that is due: ask until there is none
  // The messages that wait for a verdict, once more; from the first on until false.
  bool resend(int32_t index, DraftMessage* message) const;

  enum class Effect { kNone, kKept, kRolledBack, kEnded };  // kNone: known before, another request's, or tokens before it miss
  Effect judge(const VerdictMessage& verdict);

  int32_t judged() const { return judged_; }  // tokens that are the target's
  bool ended() const { return ended_; }
  uint32_t epoch() const { return epoch_; }
  std::span<const int32_t> drafted() const { return {tokens_.data(), static_cast<size_t>(num_drafted_)}; }  // from judged() on
  int64_t num_rollbacks() const { return num_rollbacks_; }
  int64_t num_wasted() const { return num_wasted_; }  // thrown away, without the wrong ones that a verdict replaced
  int64_t num_kept() const { return num_kept_; }      // drafted, and the target's

 private:
  struct Sent {
    int32_t begin, num_tokens;
    bool closes;
  };
  std::optional<Sent> next_due() const;
  bool waits() const { return num_messages_ > 0 && messages_[static_cast<size_t>(num_messages_ - 1)].closes; }
  void fill(const Sent& sent, bool again, DraftMessage* message) const;

  const uint64_t request_;
  const int32_t limit_;
  WindowSetting setting_;
  int32_t judged_;
  uint32_t epoch_ = 0;
  bool closing_ = false, ended_ = false;
  int32_t num_drafted_ = 0, num_sent_ = 0, num_messages_ = 0;
  std::array<int32_t, 2 * kMaxDraftDepth> tokens_;
  std::array<Sent, 2> messages_;  // of this epoch and without a verdict, oldest first
  int64_t num_wasted_ = 0, num_rollbacks_ = 0, num_kept_ = 0;
};

// The verifier's half.
class VerifyWindow {
 public:
  VerifyWindow(uint64_t request, int32_t begin, int32_t limit);  // as DraftWindow's
  enum class Receipt { kTaken, kStale };  // kStale: of an older epoch, judged or here before, or beyond what can be
  Receipt offer(const DraftMessage& draft);
  // What to verify now: behind the last token known, so many rows. Null: there is nothing, or the response is complete.
  const DraftMessage* next() const;
  // Rows of the verification: the last token and the drafted ones that are needed to judge.
  static int32_t rows(const DraftMessage& draft) { return draft.num_tokens + (draft.closes ? 1 : 0); }
  // The target's own tokens behind each row of next(), as many as rows(). `stop`: the index among them of a token that ends the
  // response if it is reached, or rows(). Returns what grow() made of them. REQUIRES: next() is not null
  VerdictMessage judge(std::span<const int32_t> own, int32_t stop);
  // The target's own tokens behind length(), however they were found: by running next(), a part or nothing of it, or by another
  // verifier. What keeps all of next() and ends with it keeps the epoch; else a new one begins, in which the drafter sends
  // again what it had right.
  void grow(std::span<const int32_t> tokens, bool ended);
  void abandon() { ended_ = true; }  // the request leaves this verifier: its drafter may forget it
  // The next verdict that is due: what the drafter has not been told. Ask until there is none.
  bool is_due() const { return told_length_ != length() || told_epoch_ != epoch_ || told_end_ != ended_; }
  int32_t num_untold() const { return length() - told_length_; }  // tokens
  bool report(VerdictMessage* verdict);
  // Whatever is known from position `begin` on: for a draft that was sent again, or a new drafter.
  VerdictMessage since(int32_t begin) const;
  void replace_drafter();  // another takes over, in a new epoch, which since() tells it

  int32_t length() const { return begin_ + static_cast<int32_t>(response_.size()); }
  bool ended() const { return ended_; }
  uint32_t epoch() const { return epoch_; }
  const std::vector<int32_t>& response() const { return response_; }

 private:
  const uint64_t request_;
  const int32_t begin_, limit_;
  uint32_t epoch_ = 0;
  int32_t told_length_;  // what the drafter was told, with told_epoch_ and told_end_
  uint32_t told_epoch_ = 0;
  bool ended_ = false, told_end_ = false;
  int32_t num_waiting_ = 0;
  std::array<DraftMessage, 2> waiting_;  // of this epoch and not judged, in any order
  std::vector<int32_t> response_;
};

}  // namespace otr
