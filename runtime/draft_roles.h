// What a worker drafts for others with, whether it is a thread or a process.
//
// Thread safety: functions of their arguments.
#pragma once

#include "runtime/worker_options.h"
#include "spec/policy.h"

namespace otr {

inline constexpr int32_t kWidestWindow = 16;

// The paper's policy believes the paper's model.
inline WindowForm plan_form(const Policy& policy) {
  return policy.kind == PolicyKind::kSpecactor ? WindowForm::kPaperDecoupled : WindowForm::kDecoupled;
}

// REQUIRES: w has its own batch and its engine's number of workers.
inline DraftServerOptions draft_server_options(const WorkerOptions& w, const DrafterModel& model, int32_t num_draft_workers) {
  DraftServerOptions server;
  server.tree = {.number = 0, .top_k = 1, .max_nodes = 1, .max_batch = w.max_batch, .max_draft_rows = 1, .chunk = w.prefill_chunk};
  server.model = model;
  server.most = kWidestWindow;
  server.form = plan_form(w.speculation.policy);
  if (w.pace != nullptr) server.reconfigure_every = w.pace->reconfigure_every;
  server.verifiers = static_cast<double>(w.num_workers) / num_draft_workers - 1;
  return server;
}

}  // namespace otr
