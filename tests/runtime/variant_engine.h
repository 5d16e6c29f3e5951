// An engine of a ProcessVariant on a given path, and its results as sequences.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/runtime/engine_runs.h"
#include "tests/runtime/process_variant.h"
#include "tests/runtime/tiny_model.h"

namespace otr {

// `num_pages`: of each worker.
inline EngineOptions variant_options(const ProcessVariant& v, const std::string& isa, const TinyModel& model,
                                     const TinyModel& drafter, int64_t num_pages) {
  EngineOptions o;
  o.device.isa = isa;
  o.device.num_threads = v.num_workers;
  o.device.target.path = model.path();
  o.device.target.kv_bytes = model.kv_bytes(num_pages * v.num_workers);
  o.num_workers = v.num_workers;
  o.max_batch = v.max_batch;
  o.num_draft_workers = v.num_draft_workers;
  o.policy = v.policy;
  o.race = v.race;
  o.keeps_checkpoints = v.keeps_checkpoints;
  o.trace_path = v.trace_path;
  o.drafters = {"small=model:" + drafter.path()};
  o.proofs = {.migrate_every = v.migrate_every,
              .migration_seed = v.seed,
              .rebuild = v.rebuild,
              .faults = v.faults,
              .breaks_of_group = v.breaks_of_group,
              .breaks_of_sample = v.breaks_of_sample,
              .breaks_at = v.breaks_at,
              .delay_seed = v.delay_seed,
              .link_capacity = v.link_capacity,
              .socket_bytes = v.socket_bytes};
  o.pace = v.pace;
  o.worker_processes = v.processes;
  o.worker_executable = v.executable;
  o.worker_timeout_ms = v.timeout_ms;
  o.worker_start_timeout_ms = v.start_timeout_ms;
  o.max_worker_restarts = v.max_restarts;
  return o;
}

// By (tag, sample).
using Ended = std::map<std::pair<uint64_t, uint32_t>, std::unique_ptr<Sequence>>;

// Adds at most `most` results, or as many as are outstanding.
inline void take(Engine* e, size_t most, Ended* ended) {
  while (most-- > 0) {
    Result<std::unique_ptr<Sequence>> s = e->wait(120'000);
    if (!s.ok()) {
      EXPECT_EQ(s.status().code(), StatusCode::kIdle) << s.status().message();
      return;
    }
    const std::pair key(s.value()->group->tag, s.value()->sample);
    EXPECT_TRUE(ended->emplace(key, std::move(s.value())).second) << "a sample came twice";
  }
}

inline Ended take_all(Engine* e) {
  Ended ended;
  take(e, SIZE_MAX, &ended);
  return ended;
}

inline Outputs outputs_of(const Ended& ended) {
  Outputs outputs;
  for (const auto& [key, s] : ended) outputs[key] = output_of(*s);
  return outputs;
}

}  // namespace otr
