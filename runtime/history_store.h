// HistoryStore: an engine's history. It keeps what the samples of the step said, and, once the step is over, makes of it the
// index that the history drafter reads in the next epoch: prompts of this step get their new responses, all others keep theirs.
//
// Thread safety: all functions may be called from any thread. The index is built on a thread of its own, if there is one, and
// swapped in when it is complete; commit() and load() wait for a build before theirs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/request.h"
#include "spec/history_index.h"

namespace otr {

// Pinned: these numbers are the C ABI's.
enum class HistoryContent : int32_t { kNone = 0, kTokens = 1, kLogprobs = 2 };

class HistoryStore {
 public:
  // REQUIRES: content != kNone.
  HistoryStore(HistoryContent content, int32_t vocab_size)
      : with_logprobs_(content == HistoryContent::kLogprobs), vocab_size_(vocab_size) {}
  ~HistoryStore();

  // What ended has been taken. Samples with a stop or at their length are kept, if there is memory. A later turn can be
  // rewarded, and is not kept: its prompt ends in drawn tokens and what they were answered, and does not come again.
  void collect(const Sequence& s) noexcept;
  // kInvalidArgument: no such sample since the last commit, or the reward is not finite.
  Status reward(uint64_t group_id, uint32_t sample, float reward);
  // The step is over: begins to build; without a thread for that it returns when that is done. Without memory nothing has
  // changed.
  void commit();
  // Commits, waits for the build and writes the file.
  Status save(const std::string& path);
  // Adds a file's prompts. Errors: load_history's; kBadInput also if a part of it was damaged: the good part is used then.
  Status load(const std::string& path);

  // The current one; null before the first.
  std::shared_ptr<const HistoryIndex> index() const;
  // {"prompts":…,"tokens":…,"bytes":…,"pending_samples":…,"build_seconds":…}
  std::string stats_json() const;

 private:
  struct PendingGroup {
    std::vector<int32_t> prompt;
    std::map<uint32_t, HistoryResponse> responses;  // by sample
  };
  using Pending = std::map<uint64_t, PendingGroup>;  // by group id

  void build(const Pending& pending);
  void publish(const HistoryIndex& news);
  void wait_for_build();

  const bool with_logprobs_;
  const int32_t vocab_size_;

  std::mutex build_mutex_;  // held by commit(), save() and load(); taken before mutex_
  std::thread builder_;     // guarded by build_mutex_

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  Pending pending_;
  int64_t num_pending_ = 0;
  std::shared_ptr<const HistoryIndex> index_;
  double build_seconds_ = 0;  // of all builds
};

}  // namespace otr
