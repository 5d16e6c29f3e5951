// The messages between an engine and a worker process, as bytes: what they are, and those to the worker; those from it are in
// report_wire.h. Both are the same build on the same machine (the setup names
// it), so numbers are as the machine has them; every field is checked when it is read nevertheless, since a worker that
// errs must not take its engine along.
//
// encode_* append to a buffer; decode_* give kBadInput, with the field, for anything that encode_* cannot have written, and
// read no byte outside of what they are given. Thread safety: functions of their arguments.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/history_store.h"
#include "runtime/ledger.h"
#include "runtime/speculator.h"
#include "runtime/worker_options.h"
#include "runtime/worker_port.h"
#include "sched/placement.h"

namespace otr {

enum class WireType : uint16_t {
  // To the worker.
  kSetup = 1,
  kStart,
  kCancel,  // u64 group
  kGive,
  kEndStep,
  kPause,
  kResume,
  kWeights,  // they have changed
  kStop,
  kRoles,
  kRelink,  // the process at the other end of a link was lost
  kLend,
  kHistory,   // a file beside it (history_file.h): what to draft from
  kDrop,      // u64 group, u64 sample: another replica of it was first
  kLeap,      // what replicas elsewhere have found
  kLinked,    // from the other end of a link: see link_wire.h
  kNetOrder,  // about pages between GPUs: see page_net_wire.h
  kWithdraw,  // its samples are no longer its own
  // From it.
  kReady = 32,
  kReport,
  kRested,  // u64: the number of the last order that it has followed
  kHeartbeat,
  kFailed,
  kLinks,    // to the other end of a link
  kTrace,    // ticks that have ended
  kNetNews,  // as kNetOrder
  kTries,    // a name: this sample's trial (suspects.h) runs from now on; of group 0: none does
};
bool is_wire_type(uint16_t type);

using WireBytes = std::vector<std::byte>;
using WireView = std::span<const std::byte>;

// All that a process needs to be worker `index`. Files of shared models travel beside the message: encode_setup lists them,
// decode_setup takes them in that order.
struct WorkerSetup {
  std::string build;  // of the engine: own_build() there
  int32_t index = 0, num_workers = 1, max_batch = 1, prefill_chunk = 1, max_draft_rows = 0;
  int32_t engine_batch = 1;  // of all workers
  std::string policy;
  std::vector<std::string> drafters;  // of the policy
  std::string isa;
  int32_t gpu = -1;  // its number; -1: the CPU
  // On a GPU 0 pages are as many as kv_bytes hold (0: ModelOptions::kv_bytes), and no costs are measured ones, or `profile`'s.
  int32_t num_threads = 1, first_cpu = -1, num_pages = 1;
  uint64_t kv_bytes = 0;
  std::string profile;
  std::string nccl_library;  // by which pages go from GPU to GPU; "": they do not
  int32_t nccl_patience_ms = 1;
  bool pin_threads = false;
  int32_t life = 0;        // the worker's how manieth process
  int32_t timeout_ms = 0;  // the engine hears of the worker more often than that
  WorkerProofs proofs;
  std::vector<CostModel> costs;
  std::optional<PaceOptions> pace;  // of a scale above 0
  int64_t pace_start_ns = 0;        // then: see PaceClock
  SharedModel target;
  std::vector<DrafterModel> models;
  int32_t num_draft_workers = 0;
  std::string decoupled;                           // SpeculatorOptions::decoupled
  HistoryContent history = HistoryContent::kNone;  // what it drafts from
  bool traces = false;                             // its ticks are to be told
  std::string draft_model;                         // of `models`: what those workers draft with
};
void encode_setup(const WorkerSetup& setup, WireBytes* out, std::vector<int>* files);
// What a setup of any build begins with; of another build than ours the rest may have another form.
Result<std::string> decode_setup_build(WireView in);
std::string own_build();  // the library's version, and the commit it was built from
Result<WorkerSetup> decode_setup(WireView in, std::span<const int> files);

// Keys and values that go with a sequence: in a file beside the message, or they are in a parcel (page_net.h).
struct StartPages {
  int32_t num_positions = 0;            // 0: none go with it
  int32_t worker = 0;                   // who has the parcel
  uint64_t generation = 0, parcel = 0;  // 0: it is a file
};
// A sequence and those that its group has blocked. Log-probs that it has stay behind: the ledger has them.
void encode_start(const Sequence& s, WireBytes* out, const StartPages& pages = {});
struct StartLimits {
  int32_t vocab_size;
  int64_t context_limit;
  int64_t num_pages;
};
Result<std::unique_ptr<Sequence>> decode_start(WireView in, const StartLimits& limits, StartPages* pages = nullptr);
// As encode_start, of what a drafter knows of a sequence, which has tokens and no log-probs.
void encode_draft_request(const Sequence& s, WireBytes* out);

void encode_lend(const Lend& lend, WireBytes* out);
Result<Lend> decode_lend(WireView in, int32_t num_workers);

void encode_roles(const DraftRoles& roles, WireBytes* out);
Result<DraftRoles> decode_roles(WireView in);

void encode_move(const Move& move, WireBytes* out);
Result<Move> decode_move(WireView in, int32_t num_workers);

void encode_u64(uint64_t value, WireBytes* out);
Result<uint64_t> decode_u64(WireView in);

// A sample by its name.
struct SampleName {
  uint64_t group = 0;
  uint32_t sample = 0;
  auto operator<=>(const SampleName&) const = default;  // by group, then by sample
};
void encode_name(const SampleName& name, WireBytes* out);
Result<SampleName> decode_name(WireView in);

}  // namespace otr
