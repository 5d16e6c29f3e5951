// Requests inside the engine: what the C ABI's structs become once checked, and a sample's life from submit to result.
//
// A Group is one prompt; its Sequences are the samples, or the one sequence of a score. The group's first sequence runs the
// prompt; the others are blocked until its last row, from whose logits all first tokens are drawn, and then share its pages.
// Thread safety: a sequence is built by the caller's thread, then owned by the thread of the worker that it is at, then by
// whoever takes the result. Samples of a group may be at several workers once none is blocked: from then on nobody writes to
// the group but for `cancelled`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/noise.h"
#include "kernels/base/status.h"
#include "kernels/sample/sample.h"
#include "memory/page_table.h"
#include "runtime/outrider.h"

namespace otr {

struct SamplingParams {
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  uint64_t seed = 0;
  int32_t max_new_tokens = 1024;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;

  bool penalised() const { return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f; }
};

// What requests are checked against.
struct RequestLimits {
  int32_t vocab_size;
  int64_t context_limit;
  int64_t num_pages;
  std::vector<int32_t> eos_ids;
};

class KvLease;
struct Sequence;
class Race;

// Records that `token` is now part of the history that penalties look at.
void add_penalty(int32_t token, bool in_output, std::vector<PenaltyEntry>* penalties);
// The records of all of `tokens`, of which those from num_prompt on were drawn.
std::vector<PenaltyEntry> penalties_of(std::span<const int32_t> tokens, size_t num_prompt);

// The errors of samples that are at fault themselves: they have them wherever they run.
inline constexpr const char* kIsNotFinite = "a key, value or logit is NaN or Inf";
inline constexpr const char* kBreaksProcesses = "worker processes break on it";

struct Failure {
  std::string text = {};
  bool is_engines = false;  // else the sample's own
};

// What came of a sample's drafts.
struct SampleSpec {
  int64_t draft_tokens = 0, accepted_tokens = 0, verify_steps = 0;
  int64_t judged_tokens = 0;  // of those drafted, the accepted ones and the first of each draft that was not
};

struct Group {
  uint64_t id = 0;
  uint64_t tag = 0;
  SamplingParams sampling;
  std::vector<int32_t> stop_ids;  // ascending: the model's and the request's
  int32_t num_prompt = 0;
  bool is_score = false;
  bool is_later_turn = false;                      // its prompt ends in what it was answered: no other sample has it
  bool wants_logprobs = true;                      // a score without sampling parameters reports raw_logprobs only
  std::vector<std::unique_ptr<Sequence>> blocked;  // samples that wait for the prompt's last row
  std::atomic<bool> cancelled = false;

  // Tokens of a score that nothing precedes: they have no log-prob, from the start.
  int32_t num_unscored() const { return is_score && num_prompt == 0 ? 1 : 0; }
  // Drops the samples that wait. (A group and they own each other.)
  void disband();
};

struct Sequence {
  std::shared_ptr<Group> group;
  uint32_t sample = 0;
  uint64_t age = 0;                   // order of arrival
  int32_t slot = -1;                  // index in its worker's table while live; -1: it never was
  int32_t goes_to = 0;                // the worker that is to get it, while it moves
  Sequence* next_in_queue = nullptr;  // see SequenceQueue

  std::vector<int32_t> tokens;                // prompt and response; capacity for max_tokens
  int32_t max_tokens = 0;                     // prompt + response at most
  std::vector<float> logprobs, raw_logprobs;  // of tokens[num_prompt …]
  // Of which weights they are. Never empty; room for one more where weights may change: see reserve_span.
  std::vector<otr_weight_span> weight_spans = {{.first_token = 0, .weight_version = 0}};
  PageTable pages;
  int32_t num_computed = 0;  // positions whose keys and values are in `pages`
  // While they are made anew at another worker (KvRebuild): what the old one lends, the copies of its pages from number
  // first_copied on, and the position that rows may run up to.
  std::shared_ptr<KvLease> lease;
  std::vector<PageId> copied;  // [the lease's pages]
  int32_t first_copied = 0;
  int32_t runs_to = kEverything;
  static constexpr int32_t kEverything = INT32_MAX;
  int32_t prefix_hit = 0;  // of these, what the prefix cache gave

  std::shared_ptr<Race> race;  // with the sample's replicas at other workers; null: there are none
  int32_t rung = 0;            // which replica it is; 0: the first
  bool is_new_replica() const { return rung > 0 && slot < 0; }
  int64_t raced_tokens = 0;  // that this replica has found since the race began

  NoiseStream noise = {};
  std::vector<PenaltyEntry> penalties;  // tokens seen so far, if penalties are on

  bool is_on_trial = false;  // it is to run alone for a while (Suspects)

  SampleSpec spec;
  int32_t num_reported = 0;  // of `raw_logprobs`: what the ledger has been told

  otr_finish_reason finish_reason = OTR_FINISH_ABORT;
  std::string error;
  bool engine_failed = false;  // the error is the engine's: somewhere else it may end well
  double finished_ms = 0;      // by the clock of a paced engine

  // Of its group, that wait for its first token.
  int32_t num_waiting() const {
    return group->is_score || num_tokens() > num_prompt() ? 0 : static_cast<int32_t>(group->blocked.size());
  }
  int32_t num_prompt() const { return group->num_prompt; }
  int32_t num_copied_pages() const { return static_cast<int32_t>(copied.size()) - first_copied; }
  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  // Positions to compute: a score needs no row for its last token.
  int32_t num_target() const { return group->is_score ? num_tokens() - 1 : num_tokens(); }
  // First position whose logits are wanted.
  int32_t logits_from() const;
  void note_penalty(int32_t token, bool in_output) {
    if (group->sampling.penalised()) add_penalty(token, in_output, &penalties);
  }
  bool stops_at(int32_t token) const;
  // How a sample ends with the tokens that it has; none: it goes on.
  std::optional<otr_finish_reason> end() const;
  // As it was before it ran, with the tokens that it has; of a score nothing is left.
  void rewind();
  // The draw of position `position`, on `logits_row`; forced_token < 0 draws freely.
  SampleDraw draw(int32_t logits_row, int32_t position, int32_t forced_token) const;
};

// The tokens from number `first_token` on are of weights of this version. REQUIRES: room for a span.
void add_weight_span(size_t first_token, uint64_t version, std::vector<otr_weight_span>* spans);
inline void reserve_span(std::vector<otr_weight_span>* spans) { spans->reserve(spans->size() + 1); }

// Checks a caller's struct (already widened to this version's size) against the limits and builds the group and its sequences,
// the prompt's runner first. Errors: kInvalidArgument, kNeverFits.
Result<std::vector<std::unique_ptr<Sequence>>> make_group(const otr_group_request& request, const RequestLimits& limits);
Result<std::unique_ptr<Sequence>> make_score(const otr_score_request& request, const RequestLimits& limits);
// `ended` goes on behind the request's tokens, as the one sample of a new group.
Result<std::vector<std::unique_ptr<Sequence>>> make_appended(const Sequence& ended, const otr_append_request& request,
                                                             const RequestLimits& limits);

}  // namespace otr
