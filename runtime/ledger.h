// Ledger: what is durable of every sample: its key, and what was accepted of it. A worker that is lost takes nothing with it:
// its samples are queued again from here, and end with the same bits. A checkpoint is a ledger on disk.
//
// A group is opened when it is submitted, its samples grow by what workers report (Progress), finish, and are closed one by
// one; with the last one the group goes. A sample in a race (race.h) is at several workers: the ledger has what the furthest of
// them has accepted, and what others report of that must be the same; the first to finish ends it, and what the stragglers
// still say is ignored. 12 bytes a token of a sample's limit are reserved when it is opened: append() and finish() allocate
// nothing but an error's text, and what leaps and races need.
//
// Thread safety: single-threaded; the engine guards it. Errors: kBadInput where a report contradicts the ledger; what came
// before the contradiction is kept, the rest is not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/request.h"

namespace otr {

// What a sample has accepted since it was reported last, as a report holds it.
struct ProgressSegment {
  uint64_t group = 0;
  uint32_t sample = 0;
  int32_t first = 0;  // index in the response (of a score: in what it scores) of its first token
  int32_t count = 0;
  SampleSpec spec = {};  // of the sample so far
};

// What a worker's samples have accepted since its last report: segments, and their numbers one behind the other. A score's
// tokens are -1: its owner has them.
struct Progress {
  std::vector<ProgressSegment> segments;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs, raw_logprobs;

  // So many samples may be added, and tokens in all, before anything is allocated.
  void reserve(size_t num_segments, size_t num_tokens);
  // What `s` has accepted since the last time; nothing if that is nothing.
  void add(Sequence* s);
  void clear();
  bool empty() const { return segments.empty(); }
  int32_t longest() const;  // segment
};

// Tokens of one sample: a process with so many to report does so at once. Fewer are lost with it, and its last tick's.
inline constexpr int32_t kMostUnreported = 8;

struct LedgerSample {
  uint32_t sample = 0;
  uint64_t age = 0;
  int32_t worker = 0;                  // that it is at, or on its way to
  std::vector<int32_t> replicas = {};  // the other workers where it races
  bool raced = false, leaps = false;   // there are replicas, or were; they exchange what they find
  int32_t max_tokens = 0;              // prompt + response at most
  NoiseStream noise = {};
  std::vector<int32_t> tokens;                     // accepted; of a score none
  std::vector<float> logprobs, raw_logprobs;       // of them
  std::vector<otr_weight_span> weight_spans = {};  // as Sequence's
  SampleSpec spec = {};
  bool is_finished = false, is_closed = false;
  bool has_failed = false;  // the engine has: its result says so, and only a checkpoint lets it go on, from what was accepted
  otr_finish_reason finish_reason = OTR_FINISH_ABORT;
  std::string error;

  bool is_at(int32_t w) const { return w == worker || std::find(replicas.begin(), replicas.end(), w) != replicas.end(); }
  bool is_over() const { return is_finished || is_closed || has_failed; }  // at no worker any more
  int32_t num_accepted() const { return static_cast<int32_t>(raw_logprobs.size()); }
};

struct LedgerGroup {
  std::shared_ptr<Group> group;
  std::vector<int32_t> prompt;        // of a score: and what it scores
  std::vector<LedgerSample> samples;  // ascending by index
  int32_t num_open = 0;

  const LedgerSample* find(uint32_t sample) const;  // null: not there, or closed
  LedgerSample* find(uint32_t sample) { return const_cast<LedgerSample*>(std::as_const(*this).find(sample)); }
};

// A sequence that goes on from what was accepted, or a finished one with its result. The group's blocked samples are not
// touched.
std::unique_ptr<Sequence> restore(const LedgerGroup& group, const LedgerSample& sample);

class Ledger {
 public:
  // A group's sequences, new or restored, go to a worker. REQUIRES: it is not open.
  void open(std::span<const std::unique_ptr<Sequence>> sequences, int32_t worker);
  // What worker `worker` reports. `vocab_size`: of the target.
  Status append(int32_t worker, const Progress& progress, int32_t vocab_size);
  // What append() has added of samples whose replicas leap: their segments, with tokens that the ledger has now.
  std::span<const ProgressSegment> leaps() const { return leaps_; }
  // A score that failed has no numbers: how far it had come depends on the chunks it ran in. False: the sample does not end
  // with that, since another replica was first, or goes on where this one has failed. `is_last`: none goes on, though those
  // that failed before may not have reported it yet.
  Result<bool> finish(int32_t worker, uint64_t group, uint32_t sample, otr_finish_reason reason, const std::string& error,
                      bool is_last = false);
  // The engine has failed it, at `worker` as the last that had it. It stays unfinished, and is at nobody. False and errors: as
  // finish().
  Result<bool> fail(int32_t worker, uint64_t group, uint32_t sample);
  // It, or its replica at `from`, goes to worker `to`. Samples that are not there are ignored.
  void move(uint64_t group, uint32_t sample, int32_t from, int32_t to);
  // A replica goes to worker `to`. False: the sample is over.
  bool lend(uint64_t group, uint32_t sample, int32_t to, bool leaps);
  // The replica at `worker` is no more; the sample goes on elsewhere, or is over. kBadInput: it is the last one.
  Status drop(int32_t worker, uint64_t group, uint32_t sample);
  // A worker is lost, with its replicas. False: the sample was nowhere else.
  bool lose(int32_t worker, uint64_t group, uint32_t sample);
  // Replicas there of samples that are over: none is left. How many there were.
  int32_t lose_stragglers(int32_t worker);
  bool is_straggler(int32_t worker, uint64_t group, uint32_t sample) const {
    return stragglers_.contains({group, sample, worker});
  }
  // What is unfinished has room for one more span of weights. Allocates, and changes nothing else.
  void reserve_spans();
  // What is unfinished goes on from its tokens, a score from none, at its worker alone: there are no replicas any more.
  void rewind();
  // It goes on with weights of this version. REQUIRES: reserve_spans().
  void change_weights(uint64_t version);
  // The result is somebody's, or abandoned. Samples that are not there are ignored.
  void close(uint64_t group, uint32_t sample);

  const LedgerGroup* find(uint64_t group) const;
  const std::map<uint64_t, LedgerGroup>& groups() const { return groups_; }  // by id
  bool empty() const { return groups_.empty(); }

 private:
  LedgerSample* find(uint64_t group, uint32_t sample);
  // The sample if it is there. Else null: what `worker` has is a straggler, and no more; or, with a text, a contradiction.
  Result<LedgerSample*> ended_at(int32_t worker, uint64_t group, uint32_t sample);
  void make_stragglers(int32_t worker, uint64_t group, LedgerSample* sample);  // of all replicas but the one at `worker`
  template <typename Visit>
  void for_each_unfinished(const Visit& visit);  // group and sample

  Status append_segment(int32_t worker, const ProgressSegment& segment, size_t at, const Progress& progress,
                        int32_t vocab_size);

  std::map<uint64_t, LedgerGroup> groups_;
  std::multiset<std::tuple<uint64_t, uint32_t, int32_t>> stragglers_;  // group, sample, worker
  std::vector<ProgressSegment> leaps_;
  bool has_leapt_ = false;  // a sample had replicas that leap
};

}  // namespace otr
