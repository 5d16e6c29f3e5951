// What a worker drafts for others with, whether it is a thread or a process.
//
// Thread safety: functions of their arguments.
#pragma once

#include <algorithm>
#include <cstdint>

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
  // A level is for everyone whom it drafts for, as far as there is room in the target's logits, which are its own too: with the
  // rows of one worker's batch they would take turns, and every window would come several times as late.
  const int64_t served = int64_t{w.max_batch} * ((w.num_workers - 1) / num_draft_workers);
  const int32_t batch = static_cast<int32_t>(std::min<int64_t>(served, w.bucket().max_logit_rows - 1));
  server.tree = {.number = 0, .top_k = 1, .max_nodes = 1, .max_batch = batch, .max_draft_rows = 1, .chunk = w.prefill_chunk};
  server.model = model;
  server.most = kWidestWindow;
  server.form = plan_form(w.speculation.policy);
  if (w.pace != nullptr) server.reconfigure_every = w.pace->reconfigure_every;
  server.verifiers = static_cast<double>(w.num_workers) / num_draft_workers - 1;
  return server;
}

}  // namespace otr
