// Suspects: samples on which worker processes break, so that one of them cannot take all others down with it.
//
// Who was at two processes that broke, one after the other, and has accepted few tokens in between is suspected. Suspects wait
// at no worker (Ledger: kNobody), and one at a time is on trial: it goes to a worker that runs nothing beside it for a while.
// The worker says when the trial begins, which is when a row of the sample has run there: a process that breaks on that is at
// fault itself. It says when the trial is over: the sample has come through, and goes on like all others. If the process breaks
// before that, the sample is guilty. So a sample that no process survives costs three of them, or a few more, and those beside
// it some time. Samples of a group that have accepted nothing have come to the same prompt: who breaks on that is guilty for
// all.
//
// Single-threaded; the engine guards it. Where it says so it throws bad_alloc; nothing has changed then.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "runtime/ledger.h"
#include "runtime/worker_wire.h"

namespace otr {

class Suspects {
 public:
  struct Next {
    SampleName name;
    bool is_guilty;  // it is to be ended; else, if its group is not cancelled, to go on trial
  };

  // The process of `worker` has broken, not of anything outside. It ran some of its `most_running` oldest samples. bad_alloc.
  void broke(int32_t worker, int32_t most_running, const Ledger& ledger);
  // A worker is lost, of whatever: the suspects that it had wait from now on. bad_alloc, after which some do.
  void hold(int32_t worker, Ledger* ledger);
  // The one on trial begins anew, among others.
  void drop_trial() { trial_.reset(); }
  // The worker says that this one's trial begins; any other name (no group is 0): that the trial is over.
  void tries(int32_t worker, const SampleName& name, const Ledger& ledger);
  bool has_begun_at(int32_t worker, const Ledger& ledger) const { return is_on_trial_at(worker, ledger) && trial_->has_begun; }

  // The next of those that wait to leave here: while one is on trial, the guilty and the cancelled alone.
  std::optional<Next> next(const Ledger& ledger);
  // It has left: it is over, or else on trial.
  void left(const SampleName& name, const Ledger& ledger);

 private:
  // Of a sample, until it has accepted kFurther tokens more than these.
  struct Record {
    int32_t losses = 0, accepted = 0;
    bool is_guilty = false;
  };
  struct Trial {
    SampleName name;
    int32_t accepted;
    bool has_begun = false;
  };
  static constexpr int32_t kSuspicious = 2;  // losses
  // Tokens: a sample that breaks its processes at one place may bring some before. Those that the first of them had not
  // reported, and as many for drafts that run past the place.
  static constexpr int32_t kFurther = 2 * kMostUnreported;

  const LedgerSample* unfinished(const SampleName& name, const Ledger& ledger) const;
  bool is_on_trial_at(int32_t worker, const Ledger& ledger) const;
  bool came_further(const Ledger& ledger) const;
  void convict(int32_t worker, const Ledger& ledger);
  void end_trial();

  std::map<SampleName, Record> records_;
  std::vector<SampleName> waiting_;
  std::optional<Trial> trial_;
};

}  // namespace otr
