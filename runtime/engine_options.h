// What an engine is made with.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/history_store.h"
#include "runtime/pace.h"
#include "runtime/page_net_wire.h"
#include "runtime/worker_options.h"

namespace otr {

// Whether workers that have nothing to run race with replicas of what others run (runtime/race.h).
enum class RaceMode { kByPolicy, kOff, kFastestOfN, kLeapfrog };

// Pages of samples that move between processes on GPUs.
struct NcclOptions {
  std::string library = {};  // a name or a path; "": they go through the host's memory
  std::optional<NetId> id =
      {};  // the trainer's, of a communicator of num_ranks: workers are its ranks first_rank …; none: made here
  int32_t num_ranks = 0, first_rank = 0;
  int32_t patience_ms = 10'000;  // of a move
};

struct EngineOptions {
  DeviceOptions device;       // threads and pages: of all workers together
  std::vector<int32_t> gpus;  // workers go round them, at least one each; empty: the CPU
  int32_t num_workers = 1;
  int32_t num_draft_workers = 0;  // of them, that may draft for the others: at most half
  bool always_decouples = false;  // they do, whatever the plan says: for comparison
  bool samples_stay = false;      // what runs at a worker is given to no other, but for replicas: for comparison
  std::string policy = "auto";
  RaceMode race = RaceMode::kByPolicy;
  std::vector<std::string> drafters;  // as parse_drafter_model()
  std::vector<CustomDrafter> custom_drafters;
  std::string profile;              // a file of measured costs; empty: none
  std::optional<PaceOptions> pace;  // workers are paced
  std::vector<CostModel> costs;     // by drafter of the policy, instead of measured ones: for proofs
  AcceptanceDial dial = {};         // drafts are made worse: for measurements; not in worker processes
  WorkerProofs proofs;
  HistoryContent history = HistoryContent::kNone;  // none: what the policy drafts from
  std::string trace_path;                          // "": no trace
  int32_t max_batch = 256;                         // of all workers together
  int32_t prefill_chunk = 512;
  bool worker_processes = false;
  std::string worker_executable;        // which serves one: see otr_serve_worker
  int32_t worker_timeout_ms = 300'000;  // without a sign of a process, or of its worker's coming further
  int32_t worker_start_timeout_ms = 120'000;
  int32_t max_worker_restarts = 3;  // of a worker, in a row, without a finished sample
  NcclOptions nccl;
  bool keeps_checkpoints = false;  // what save_checkpoint() needs: 12 bytes a token of every sample's limit
};

// What worker processes need, and what they do not do.
Status check_process_options(const EngineOptions& options);

}  // namespace otr
