// The steps of the protocol between an engine and a worker process, and faults that tests plant in them: so that "at every
// step" is a list that can be walked.
//
// Thread safety: strike() may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace otr {

// Where a worker process is. In the order of its life; what has a name like an order is that order, received and not yet
// followed.
enum class ProtocolStep : uint8_t {
  kSetup,
  kReady,  // set up, and has not said so
  kStart,
  kCancel,
  kGive,
  kEndStep,
  kPause,
  kResume,
  kWeights,
  kTick,      // over, not reported
  kReport,    // about to be sent
  kReported,  // sent
  kRest,      // begun, not said
  kRested,    // said
  kHeartbeat,
  kStop,
  kRoles,
  kRelink,
  kLend,
  kHistory,
  kDrop,
  kLeap,
  kLinked,  // a message of the worker at the other end of a link
  kLink,    // about to be sent there
  kTrace,   // likewise
  kWithdraw,
  // Of processes whose pages go from GPU to GPU (page_net.h).
  kNetOrder,
  kNetJoin,     // about to
  kNetJoined,   // has, and has not said so
  kNetPull,     // about to ask for pages
  kNetSend,     // about to
  kNetReceive,  // likewise
  kNetMoving,   // at either end, while pages are under way
  kNetMoved,    // at either end
  kNetLeave,    // about to leave the port
};
inline constexpr int kNumProtocolSteps = 35;
inline constexpr int kFirstNetStep = static_cast<int>(ProtocolStep::kNetOrder);

enum class FaultKind : uint8_t {
  kDie,      // SIGKILL
  kHang,     // the thread that comes there does nothing more
  kTear,     // half a frame, and death
  kCorrupt,  // the next frame has a bit that is not what was sent
  kLie,      // a report of a sample that the worker does not have; at kReport, at the head of that one
  kRefuse,   // no memory
  kLate,     // goes on after half of the engine's patience
};
inline constexpr int kNumFaultKinds = 7;
inline constexpr int kNumFatalKinds = 6;  // the first ones: where they strike, the process ends; but for the net's thread

struct WorkerFault {
  int32_t worker = 0;
  int32_t life = 0;  // of the worker's processes the first is 0
  ProtocolStep step = ProtocolStep::kSetup;
  int32_t occurrence = 0;  // the how manieth time that it comes there, from 0
  FaultKind kind = FaultKind::kDie;
};

// The faults of one process, counted down.
class FaultSchedule {
 public:
  FaultSchedule(const std::vector<WorkerFault>& faults, int32_t worker, int32_t life) {
    for (const WorkerFault& f : faults) {
      if (f.worker == worker && f.life == life) faults_.push_back(f);
    }
  }

  // Comes to a step; the fault that is due there, or null.
  const WorkerFault* strike(ProtocolStep step) {
    if (faults_.empty()) return nullptr;
    const int32_t occurrence = counts_[static_cast<size_t>(step)]++;
    for (const WorkerFault& f : faults_) {
      if (f.step == step && f.occurrence == occurrence) return &f;
    }
    return nullptr;
  }

 private:
  std::vector<WorkerFault> faults_;
  std::atomic<int32_t> counts_[kNumProtocolSteps] = {};
};

}  // namespace otr
