// PageNet: pages of moved sequences straight from one worker process' GPU to another's; KvFile takes them through the host.
//   who gives a sequence         the engine                 who goes on with it
//   offer(): keeps the pages ──▸ the sample, its parcel ──▸ RemotePages, a lease
//                                            ◂── kPull ──── copy(): waits
//   kMove: sends ◂────────────── one order for all ───────▸ kMove: receives
//                ◂── kEndParcel ─────────────────────────── end()
//
// A thread does what the engine orders, one move after the other. Every process has them in the same order, so none waits for
// another in a circle. A word goes with the pages: the parcel's number, or 0 where the lender took them back; else what comes
// is not used. A move that fails or takes too long ends the generation: nothing is offered until the engine has all join again,
// and what was under way is computed anew, or goes by file. Parcels end after the port has left: nothing reads their pages
// then. A port that does not come back shows in busy_ms(), one that leaves in vain is told to the host: its process has to end.
//
// Thread safety: follow() and stop() by the serving thread, offer() and pull() by the worker's, end() by any. The host is
// called without a lock held. follow() waits for no move. pull() and end() allocate nothing; without memory the generation
// fails.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/kv_lease.h"
#include "runtime/page_port.h"
#include "runtime/worker_fault.h"

namespace otr {

class NetHost {
 public:
  virtual ~NetHost() = default;
  virtual void tell(const NetNews& news) = 0;       // to the engine
  virtual void end_process(const Status& why) = 0;  // before anybody uses pages again that the port may touch for ever
  virtual void pass(ProtocolStep) {}                // for proofs: where it is
};

class PageNet {
 public:
  static constexpr int32_t kMostPages = 256;     // of a move
  static constexpr int32_t kMovesBefore = 4;     // of others, that a pull may have to wait for
  static constexpr int32_t kAbortPatiences = 1;  // that the abort of a move that failed may take
  static constexpr int32_t kSlackPatiences = 2;  // the heartbeat that tells of the worker's turn may be one late; one to spare
  // Of patiences, that an engine's patience has to have at least: a pull of kMostPages may wait so long but for the slack.
  static constexpr int32_t kTimeoutShare = kMovesBefore + 1 + kAbortPatiences + kSlackPatiences;

  // All outlive it. `patience_ms`: as the port's.
  PageNet(std::unique_ptr<PagePort> port, ModelRunner* target, NetHost* host, int32_t patience_ms);
  ~PageNet() { stop(); }
  PageNet(const PageNet&) = delete;
  PageNet& operator=(const PageNet&) = delete;

  void follow(const NetOrder& order);
  // Ends the thread, and all leases that are kept for others. Nobody is told anything any more.
  void stop();

  struct Parcel {
    uint64_t generation = 0, number = 0;  // 0: nobody is joined, or there is no memory for it
  };
  // Keeps what was lent until whoever goes on with it has it.
  Parcel offer(std::shared_ptr<LentPages> lease);
  // Of the generation that is joined; 0: none.
  uint64_t generation() const { return up_; }
  // Pages number `first` on of a parcel, into these. False: they have not come.
  bool pull(uint64_t generation, int32_t from, uint64_t parcel, int32_t first, std::span<const PageId> to);
  // Nobody reads the parcel any more: its process is told, whether this one has joined the generation or not.
  void end(uint64_t generation, int32_t from, uint64_t parcel);
  // For how long the thread has been busy with one thing; 0: with nothing. Any thread's.
  int64_t busy_ms() const;

 private:
  enum class State { kNone, kAsked, kMoving, kCame, kFailed };
  struct Pull {
    uint64_t number = 0;
    State state = State::kNone;
    std::vector<std::byte*> to;
  };

  void run();
  void carry_out(const NetOrder& order, bool* joined);
  void join(const NetOrder& order);
  void send(const NetOrder& order);
  void receive(const NetOrder& order);
  void fail(uint64_t generation, const Status& why);
  Status move(PageMove* move, uint64_t generation);
  void leave(uint64_t generation);
  void leave_port();
  void leave_or_end();
  void drop_parcels();
  void end_parcel(uint64_t number);
  std::shared_ptr<LentPages> parcel(uint64_t number);
  bool pull_some(uint64_t generation, PagePull pull, std::span<const PageId> to);
  PagePort::GivenUp given_up(uint64_t generation) const;
  std::byte* address(PageId page) const;

  const std::unique_ptr<PagePort> port_;
  ModelRunner* const target_;
  NetHost* const host_;
  const int32_t patience_ms_;
  std::atomic<uint64_t> up_ = 0, left_ = 0;  // the generation that is joined; up to which all are over
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> busy_since_ns_ = 0;  // 0: it waits

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<NetOrder> orders_;
  std::vector<std::pair<uint64_t, std::shared_ptr<LentPages>>> parcels_;  // by number
  uint64_t last_parcel_ = 0;
  Pull pull_;  // while it is moving its pages are the thread's

  std::vector<std::byte*> sent_;  // the thread's
  std::thread thread_;
};

// Pages of a parcel, as a lease.
class RemotePages final : public KvLease {
 public:
  // As the engine passes it on: it copies nothing. `worker` has it.
  RemotePages(int32_t worker, uint64_t generation, uint64_t parcel, int32_t num_positions)
      : worker_(worker), generation_(generation), parcel_(parcel), num_positions_(num_positions) {}
  // For who goes on with the sequence; the net outlives it.
  RemotePages(PageNet* net, const RemotePages& passed)
      : RemotePages(passed.worker_, passed.generation_, passed.parcel_, passed.num_positions_) {
    net_ = net;
  }
  ~RemotePages() override { end(); }

  int32_t worker() const { return worker_; }
  uint64_t generation() const { return generation_; }
  uint64_t parcel() const { return parcel_; }

  const RemotePages* remote() const override { return this; }
  int32_t num_pages() const override { return (num_positions_ + kPageTokens - 1) / kPageTokens; }
  int32_t num_positions() const override { return num_positions_; }
  bool copy(int32_t first, std::span<const PageId> to, ModelRunner* target) override;
  void end() override;
  bool over() const override { return net_ == nullptr || net_->generation() != generation_; }

 private:
  const int32_t worker_;
  const uint64_t generation_, parcel_;
  const int32_t num_positions_;
  PageNet* net_ = nullptr;
};

}  // namespace otr
