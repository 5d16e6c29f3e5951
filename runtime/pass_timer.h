// PassTimer: how long passes take: of the target, of the target verifying drafts, of one level of a drafter with a model.
//
// A pass is what a tick would run: rows by RowBatchBuilder, the program, and the draws of all its rows; a level of a draft
// takes its candidates instead. Samples continue `context` tokens whose keys and values are the model's own of random tokens,
// on pages of the model's pool, and share none of them with their neighbours in the batch. To bound the memory, pages that are
// only read are used again by later samples once kReadBytes of them were read: no cache holds them till then.
//
// A verification's rows are chains of equal length. The rows of a level beyond one a sample are siblings of it, each on a page
// of its own.
//
// Single-threaded: used before the worker's thread begins. The pages go back to their pools with the object.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "graph/row_batch_builder.h"
#include "runtime/model_runner.h"
#include "spec/cost_model.h"

namespace otr {

// A model has more than one program if it drafts for itself.
struct TimedProgram {
  ModelRunner* model;
  const ForwardProgram* program;
};

class PassTimer {
 public:
  static constexpr int64_t kReadBytes = int64_t{256} << 20;  // of pages that are only read: several times any cache

  PassTimer();
  ~PassTimer();
  PassTimer(const PassTimer&) = delete;
  PassTimer& operator=(const PassTimer&) = delete;

  // Whether the program has room for such a pass, the model positions, and its pool pages.
  bool fits(const TimedProgram& timed, CostRole role, const PassShape& pass) const;
  // Runs the pass `runs` times, and leaves the first out unless it is the only one. Returns the median of the others'
  // milliseconds, the lower one of two in the middle: > 0. REQUIRES: fits(); runs >= 1; the models outlive the timer.
  double time_ms(const TimedProgram& timed, CostRole role, const PassShape& pass, int32_t runs);

  int64_t num_passes() const { return num_passes_; }

 private:
  struct Model;  // a model's pages
  Model& model_of(const TimedProgram& timed);
  void assemble(const TimedProgram& timed, CostRole role, const PassShape& pass, Model* m);
  void list_draws(CostRole role, const PassShape& pass);

  std::vector<std::unique_ptr<Model>> models_;
  std::vector<SampleDraw> draws_;
  std::vector<SampleResult> results_;
  std::vector<CandidateDraw> candidate_draws_;
  std::vector<Candidates> candidates_;
  int64_t num_passes_ = 0;
};

}  // namespace otr
