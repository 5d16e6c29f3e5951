// What a worker's speculation is made with: the policy, its drafters, and what they cost.
//
// Thread safety: values. What they point to outlives whatever is made with them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/draft_link.h"
#include "runtime/drafter_model.h"
#include "runtime/pace.h"
#include "spec/acceptance_dial.h"
#include "spec/cost_model.h"
#include "spec/drafter.h"
#include "spec/history_drafter.h"
#include "spec/policy.h"

namespace otr {

// Of C++ that links the engine's internals, tests above all.
struct CustomDrafter {
  std::string name;
  std::function<std::unique_ptr<Drafter>(int number)> make;  // `number`: its bit in the forests
};

struct SpeculatorOptions {
  Policy policy;
  std::vector<DrafterModel> models;
  std::vector<CustomDrafter> custom;
  HistorySource history;         // of drafter "history"
  std::string profile;           // a file of measured costs; empty: none
  std::vector<CostModel> costs;  // by drafter, instead of measured ones; empty: none
  AcceptanceDial dial = {};      // for measurements: of all that a tick drafts
  bool idle = false;             // it stands for others' and never drafts: nothing is measured, and nothing made in 4 bits
  // For create(): other workers', whose costs, and whose drafters' weights, are this one's too; null: measured, and loaded.
  const class Speculator* costs_of = nullptr;
  const class Speculator* share = nullptr;
  const PaceOptions* pace_options = nullptr;  // what passes are said to cost, instead of measured; null: nothing
  Pace* pace = nullptr;                       // the worker's, then
  DraftLink* link = nullptr;                  // to a worker that drafts; null: there is none
  std::string decoupled = {};                 // the drafter's name that drafts there
  int32_t max_batch;
  int32_t prefill_chunk;
  int32_t max_draft_rows;  // nodes of a tick, all forests together
};

}  // namespace otr
