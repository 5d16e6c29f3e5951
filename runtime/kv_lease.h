// KvLease: keys and values of a sequence that has been given away, as long as the worker that goes on with it has not got them.
// Between threads they are LentPages, between processes a KvFile (kv_file.h).
//
// LentPages: pages that a worker lends to another. The pages of a sequence that has been given away stay where they are until
// the worker that goes on with it has copied what it wants of them, or does not want them any more, or the lender needs them
// back: what was not copied by then is computed anew.
//
// Thread safety: all functions may be called from any thread. `source` and `lender` outlive every call of copy() and end(). A
// lock keeps reading (copy, copy_layer, hold) and what ends it (end, revoke) apart, so a copy is to be of a bounded number of
// pages, and revoke() waits for it. The rule by which pages are used again: `over_` becomes true under that lock alone, so
// while nobody reads, and whoever has the lock looks at it before reading. So over() needs no lock and waits for nobody: once
// it is true, nobody reads the pages or ever will.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/model_runner.h"
#include "runtime/worker_mailbox.h"

namespace otr {

// How fast a worker computes.
struct TickSpeed {
  double rows_per_second = 0;  // 0: not known
  double least_tick = 0;       // seconds that a tick of few rows takes; 0: likewise
};

class KvLease {
 public:
  virtual ~KvLease() = default;
  virtual int32_t num_pages() const = 0;
  virtual int32_t num_positions() const = 0;
  // The borrower's: copies the pages from number `first` on into `to`, pages of `target`. False: they are gone, nothing is
  // copied.
  virtual bool copy(int32_t first, std::span<const PageId> to, ModelRunner* target) = 0;
  // Likewise one layer of them, where that can be: while a pass is under way. REQUIRES: has_layers().
  virtual bool has_layers() const { return false; }
  virtual bool copy_layer(int32_t, int32_t /*first*/, std::span<const PageId>, ModelRunner*) { return false; }
  // The borrower's: it reads no more.
  virtual void end() = 0;
  // Whether nothing more will come.
  virtual bool over() const = 0;
  // The giver's.
  virtual TickSpeed speed() const { return {}; }
  // The pages of another process' GPU (page_net.h), if that is what they are.
  virtual const class RemotePages* remote() const { return nullptr; }
};

class LentPages final : public KvLease {
 public:
  // `pages` hold the first `num_positions` positions of the sequence; `source` keeps references on them.
  LentPages(const ModelRunner& source, WorkerMailbox* lender, std::span<const PageId> pages, int32_t num_positions,
            const TickSpeed& speed)
      : source_(source), lender_(lender), pages_(pages.begin(), pages.end()), num_positions_(num_positions), speed_(speed) {}

  std::span<const PageId> pages() const { return pages_; }
  int32_t num_pages() const override { return static_cast<int32_t>(pages_.size()); }
  int32_t num_positions() const override { return num_positions_; }
  bool copy(int32_t first, std::span<const PageId> to, ModelRunner* target) override;
  bool has_layers() const override { return !source_.on_device(); }
  bool copy_layer(int32_t layer, int32_t first, std::span<const PageId> to, ModelRunner* target) override;
  void end() override;  // the lender is told
  TickSpeed speed() const override { return speed_; }

  // The lender's: from its return on nobody reads the pages.
  void revoke();
  // Calls `read`; the pages do not go meanwhile. False, and it is not called: they are gone.
  bool hold(const std::function<void()>& read);
  bool over() const override { return over_; }  // the pages are the lender's again

 private:
  const ModelRunner& source_;
  WorkerMailbox* const lender_;
  const std::vector<PageId> pages_;
  const int32_t num_positions_;
  const TickSpeed speed_;
  std::mutex mutex_;
  std::atomic<bool> over_ = false;  // changes under mutex_
};

}  // namespace otr
