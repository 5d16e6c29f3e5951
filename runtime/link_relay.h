// LinkRelay: the DraftLinks of a worker process whose other ends are in other processes. It reads what the worker writes to
// them and hands it on as LinkMessages, and writes what comes as such.
//
// Thread safety: ring() may be called from any thread; links before any thread begins; everything else belongs to the serving
// thread, which is one end of every queue. Errors: kBadInput for a message of a link that does not end here, or with more than
// there is room for.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/draft_link.h"
#include "runtime/link_wire.h"
#include "runtime/worker_channel.h"

namespace otr {

class LinkRelay final : public LinkBell {
 public:
  struct Options {
    int32_t worker = 0, num_workers = 1, num_draft_workers = 0;
    size_t capacity = 0;
    uint32_t delay_seed = 0;
    StartLimits limits = {};  // set once the target is there: see set_limits()
  };
  static Result<std::unique_ptr<LinkRelay>> create(const Options& options);

  void set_limits(const StartLimits& limits) { options_.limits = limits; }
  // The worker's own, as verifier; and those of the workers that it drafts for, itself among them.
  DraftLink* own() { return ends_.front().link.get(); }
  std::vector<DraftLink*> served();
  // The worker's bell. Before any thread begins.
  void connect(LinkBell* worker);

  void ring() override;
  int fd() const { return wake_.get(); }  // can be read when it was rung
  Status follow(const Relink& relink);
  Status receive(WireView payload);
  // Hands on what there is: calls send(message) for each link that has something.
  Status pump(const std::function<Status(const LinkMessage&)>& send);
  // pump() is to be called again soon, rung or not.
  bool owes() const { return owes_; }

 private:
  struct End {
    int32_t number = 0;
    bool serves = false, is_local = false;  // this worker drafts on it; both ends are here
    std::unique_ptr<DraftLink> link;
    LinkBell* worker = nullptr;
    std::array<uint32_t, LinkMessage::kNumQueues> room = {}, taken = {};  // what may be sent; what is to be told
    // What has come and found no room.
    std::deque<std::unique_ptr<Sequence>> opened;
    std::deque<VerdictMessage> verdicts;
    std::deque<DraftMessage> drafts;
  };
  LinkRelay(const Options& options, OwnedFd wake) : options_(options), wake_(std::move(wake)) {}
  End* find(int32_t link);
  void deliver(End* end);
  void collect(End* end);

  Options options_;
  const OwnedFd wake_;
  std::atomic<bool> rung_{false};
  std::vector<End> ends_;  // the worker's own first
  LinkMessage message_;    // of pump()
  bool owes_ = false;
};

}  // namespace otr
