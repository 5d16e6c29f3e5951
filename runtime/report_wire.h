// The messages from a worker process to its engine, as bytes: that it is ready, what has become of its samples, its ticks,
// signs of life.
//
// Thread safety and errors: as worker_wire.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/trace.h"
#include "runtime/worker_channel.h"
#include "runtime/worker_stats.h"
#include "runtime/worker_wire.h"

namespace otr {

// What a worker's device came to.
struct WorkerFacts {
  int32_t num_threads = 0, num_pages = 0;
  int64_t activation_bytes = 0;  // of the target's and the drafters' programs
  CaptureFacts captures = {};    // none on the CPU
};
struct ReadyMessage {
  WorkerFacts facts;
  std::vector<CostModel> costs = {};  // by drafter: those that it was given, or has found
  WorkerLoad load;
};
void encode_ready(const ReadyMessage& ready, WireBytes* out);
Result<ReadyMessage> decode_ready(WireView in);

// A sample that has ended, or goes to another worker.
struct SampleEnd {
  uint64_t group = 0;
  uint32_t sample = 0;
  otr_finish_reason reason = OTR_FINISH_ABORT;
  std::string error;
};
struct SampleGiven {
  uint64_t group = 0;
  uint32_t sample = 0;
  int32_t to = 0;
  int32_t num_blocked = 0;    // that go with it
  int32_t num_positions = 0;  // whose keys and values go too: a file beside the report (kv_file.h), or a parcel; 0: none do
  uint64_t generation = 0, parcel = 0;  // of page_net.h; 0: it is a file

  bool has_file() const { return num_positions > 0 && parcel == 0; }
};
// Of samples that race: what the ledger has got of them.
void encode_progress(const Progress& progress, WireBytes* out);
Result<Progress> decode_progress(WireView in, int32_t vocab_size);

struct ProcessReport {
  WorkerLoad load;
  std::optional<WorkerStats> stats;  // now and then, and with the last samples
  Progress progress;
  std::vector<SampleEnd> finished;
  std::vector<SampleGiven> given;
  std::vector<OwnedFd> files;  // of what is given with positions, in that order: they come beside the message, or are lost (-1)
  std::optional<Move> answered;
  std::optional<Lend> lent;                   // the order that is over; with the samples
  std::vector<SampleName> replicas, dropped;  // that it has lent; that have lost their race

  void clear();
};
void encode_report(const ProcessReport& report, WireBytes* out);
Status decode_report(WireView in, int32_t num_workers, ProcessReport* report);

// Ticks as a trace has them, one behind the other, each with when it ended: nanoseconds of the clock that all processes of a
// machine share.
void encode_tick(const TraceTick& tick, int64_t ended_ns, WireBytes* out);
// Calls visit() for each; the tick's plan lives as long as the call.
Status decode_ticks(WireView in, int32_t worker, int64_t now_ns, const std::function<void(const TraceTick&)>& visit);

struct Heartbeat {
  uint64_t turns = 0;  // ticks and rests
  bool at_rest = false;
};
void encode_heartbeat(const Heartbeat& heartbeat, WireBytes* out);
Result<Heartbeat> decode_heartbeat(WireView in);

void encode_failed(const Status& status, WireBytes* out);
Status decode_failed(WireView in);  // what has failed, or kBadInput

}  // namespace otr
