// RemoteDrafter: the drafter whose drafts come from another worker (decoupled speculation): the verifier's half of
// sched/window.h for each sequence.
//
// A sequence is opened at the drafting worker when it may draft for the first time. From then on it waits for each window: it
// has no row in the ticks until that has come, while others have theirs. It waits for kPatienceMs at most. Whoever has waited
// longer decodes plainly and does not wait until a message shows that its drafter lives. At first a sequence decodes kHeadStart
// tokens plainly, while its drafter computes what it missed; without an end to that, a drafter no faster than the target would
// never catch up. Each token found without the draft begins a new epoch (VerifyWindow::grow). Nor does it wait where its
// drafter has said, with an empty message, that it finds nothing: its pages are all taken, or its context is full. Such a
// drafter hears of kQuietTokens at once.
//
// A useless drafter costs a wait for every token. So a sequence may give its request up: where fewer than one in kLeastKept of
// its last kJudged to 2 kJudged judged tokens was kept. It then decodes plainly here to its end. One such finding is enough for
// a while where all sequences' last tokens together say the same, and so are those together (of kTogether): all that have not
// found better themselves give up too, and none is opened while the worker finds kRestTokens. Then one is, and so on, until
// kJudged tokens of whoever drafts are good.
//
// A sequence that leaves, by its end, cancelled or to another worker, ends its request here; where it goes it opens another. A
// drafting worker that is lost takes its requests along: they are opened anew at the one that takes its place, and go on
// plainly until that is heard of.
//
// Thread safety: used by the worker's thread. Errors: none.
#pragma once

#include <memory>
#include <vector>

#include "runtime/draft_link.h"
#include "runtime/pace.h"
#include "spec/drafter.h"
#include "spec/keep_rate.h"

namespace otr {

class RemoteDrafter final : public Drafter {
 public:
  static constexpr double kPatienceMs = 1000;  // several windows of a large drafter

  // `link` and `live`, the worker's sequences by slot, outlive the drafter. `pace`: whose clock it waits by; null: the wall's.
  // `gives_up`: requests whose drafts are no use are.
  RemoteDrafter(int number, DraftLink* link, const std::vector<std::unique_ptr<Sequence>>& live, const Pace* pace,
                bool gives_up)
      : number_(number), link_(*link), live_(live), clock_(pace), gives_up_(gives_up) {}
  // Whether sequences are opened. At first they are not.
  void set_open(bool open) { opens_ = open; }

  void join(const DraftSequence& sequence) override;
  DraftWork propose(std::span<const DraftRow> rows, const DraftLimits& limits) override;
  void observe(const DraftVerdict& verdict) override;
  void leave(int32_t slot) override;

  // Takes the drafts that have come and sends what is due. Before each tick.
  void exchange();
  // The verdicts of the tick are out: wakes the drafting worker.
  void ring();
  // The sequence's draft will come: it should have no row until then. The same between two calls of exchange().
  bool waits(int32_t slot) const;
  // Something found no room, or has not been seen yet: exchange() is to be called again soon.
  bool owes() const { return owes_; }
  int64_t num_opened() const { return num_opened_; }        // requests
  int64_t num_impatient() const { return num_impatient_; }  // times that a sequence has waited in vain
  int64_t num_full() const { return num_full_; }            // times that something found no room

 private:
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kHeadStart = 8;  // tokens
  static constexpr int32_t kJudged = 32, kLeastKept = 10, kTogether = 4 * kJudged;
  static constexpr int64_t kRestTokens = 4096;  // for a trial of some 40: a hundredth of the tokens waits
  struct Trial {
    int32_t judged = 0, kept = 0;  // of the last drafted tokens: older ones count less and less
    void add(int32_t more, int32_t more_kept, int32_t most);
    bool is_poor() const { return kept * kLeastKept < judged; }
  };
  struct Request {
    std::unique_ptr<VerifyWindow> window;  // null: the entry is free
    std::unique_ptr<Sequence> copy;        // the drafter's, until it is sent
    uint64_t name = 0;                     // its number in requests_ in the lower half
    int32_t slot = kNone;                  // kNone: it has left
    bool wanted = false;                   // it may draft
    bool alone = true;                     // it does not wait
    bool quiet = false;                    // nor does its drafter, which finds nothing
    int32_t head_start = kHeadStart;       // tokens that it still decodes alone
    double waits_since = 0;                // seconds
    Trial trial;
  };
  Request* request(int32_t slot);
  const Request* request(int32_t slot) const { return const_cast<RemoteDrafter*>(this)->request(slot); }
  bool begin_again();
  void reopen(int32_t at);
  void receive();
  bool send(Request* r);
  bool may_open();
  bool turns_useless(Request* r, int32_t judged, int32_t kept);
  void rest();

  const int number_;
  DraftLink& link_;
  const std::vector<std::unique_ptr<Sequence>>& live_;
  const PacedStopwatch clock_;
  const bool gives_up_;
  std::vector<Request> requests_;
  std::vector<int32_t> free_;        // of requests_
  std::vector<int32_t> request_of_;  // by slot
  std::vector<int32_t> open_;        // of requests_: wanted, or left and not told yet
  uint32_t next_name_ = 0;
  bool opens_ = false, owes_ = false, rings_ = false;
  int64_t num_opened_ = 0, num_impatient_ = 0, num_full_ = 0;
  KeepRate rate_;
  Trial together_;           // of all sequences; since the rest
  int64_t rest_tokens_ = 0;  // that the worker is to find before one is opened again
  bool rests_ = false;       // one at most is opened
};

}  // namespace otr
