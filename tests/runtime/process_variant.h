// An engine of worker processes to test, as a value; and what such an engine may leave behind: processes and files.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine.h"
#include "tests/runtime/sanitized.h"

namespace otr {

// After how long a process is held for hung: where one hangs, that is waited for, and on a busy machine others may be held for
// hung too. Where none hangs nobody is to be, however busy the machine is.
inline constexpr int32_t kShortTimeoutMs = kSanitized ? 5000 : 300, kMediumTimeoutMs = kSanitized ? 5000 : 1000,
                         kLongTimeoutMs = 60'000;

struct ProcessVariant {
  int32_t num_workers = 2;
  bool processes = true;
  std::string policy = "off";
  int32_t num_draft_workers = 0;
  RaceMode race = RaceMode::kOff;
  uint32_t delay_seed = 0;
  int32_t link_capacity = 0, socket_bytes = 0;  // 0: as usual
  bool keeps_checkpoints = false;
  std::string trace_path = "";
  RebuildOptions rebuild = {};
  int32_t migrate_every = 0;
  int32_t max_batch = 12;
  std::vector<WorkerFault> faults = {};
  uint64_t breaks_of_group = 0;
  int64_t breaks_of_sample = -1;
  int32_t breaks_at = 0;
  int32_t timeout_ms = kLongTimeoutMs;
  int32_t start_timeout_ms = 60'000;
  int32_t max_restarts = 20;
  uint32_t seed = 1;
  std::optional<PaceOptions> pace = {};
  std::string executable = OUTRIDER_WORKER;
};

// Steps of every rollout of processes; the others come with drafting workers, races, traces, history and nets.
inline constexpr int kNumPlainSteps = static_cast<int>(ProtocolStep::kStop) + 1;

inline std::string text_of(const std::vector<WorkerFault>& faults) {
  std::string text;
  for (const WorkerFault& f : faults) {
    text += "worker " + std::to_string(f.worker) + " life " + std::to_string(f.life) + " step " +
            std::to_string(static_cast<int>(f.step)) + " occurrence " + std::to_string(f.occurrence) + " kind " +
            std::to_string(static_cast<int>(f.kind)) + "; ";
  }
  return text;
}

inline size_t num_open_files() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

inline std::vector<pid_t> children() {
  std::vector<pid_t> pids;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "children");
    for (pid_t pid; file >> pid;) pids.push_back(pid);
  }
  return pids;
}

}  // namespace otr
