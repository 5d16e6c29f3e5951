// WorkerStats: what a worker has counted. The engine's numbers are its workers' sums.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/draft_stats.h"
#include "runtime/pace_stats.h"
#include "spec/counts.h"

namespace otr {

struct WorkerStats {
  int64_t ticks = 0;
  int64_t generated_tokens = 0;
  int64_t prefill_tokens =
      0;  // rows that were not the newest token of their sequence, without those of a pass whose pages were lost in it
  int64_t scored_tokens = 0;
  int64_t finished_samples = 0;
  int64_t preemptions = 0;
  int64_t migrations = 0;  // samples that it gave to another worker
  int64_t prefix_hit_tokens = 0;
  int64_t weight_bytes_written = 0;  // by models of its own: loaded, put or quantised
  int64_t kv_copied_tokens = 0;      // positions of sequences that came from other workers, copied and not computed
  int64_t kv_overlaps = 0;           // times that such a sequence's rows ran while its last pages came,
  int64_t kv_overlaps_lost = 0;      // and times that these were lost in the middle
  int32_t kv_pages_in_use = 0;       // held by live sequences
  int32_t kv_pages_leased = 0;       // held only for other workers to copy
  int32_t kv_pages_peak = 0;
  int32_t batch_peak = 0;
  double busy_seconds = 0;       // inside step()
  double kernel_seconds = 0;     // inside the target's launches
  double draft_seconds = 0;      // inside the drafters
  double decide_seconds = 0;     // inside the policy
  int32_t trace_error = 0;       // errno of the write that ended the trace
  int64_t replicas = 0;          // that it lent to others
  int64_t lost_replicas = 0;     // that it dropped, since another was first
  int64_t lost_tokens = 0;       // that those had found here themselves
  int64_t adopted_tokens = 0;    // that another replica has found
  int64_t drafts_elsewhere = 0;  // requests that it has opened at a worker that drafts for it
  int64_t impatient = 0;         // times that a sequence has waited in vain for a draft of another worker
  int64_t full_links = 0;        // times that what was to go to a drafting worker found no room
  int64_t full_sockets = 0;      // of a process: times that its socket did not take all at once
  SpecCounts spec;
  DraftStats drafting;  // for other workers
  PaceStats pace;       // of a paced worker

  // Of peaks the sum too: no more than that was there at once.
  void add(const WorkerStats& other);
  // {"ticks":…,…}: what differs from worker to worker.
  std::string json() const;
};

// JSON's spelling of seconds; printf's follows the caller's locale.
std::string decimal(double seconds);
// As a JSON string; bytes that are not printable ASCII become '?'.
std::string json_text(const std::string& text);

}  // namespace otr
