// The functions of NCCL that the engine uses, between processes whose devices are emulated: over sockets of this machine. Like
// NCCL's, its calls do not wait, what they ask for is done on a stream, an end that dies is an error of the others, and an id
// serves once.
//
// OTR_FAKE_NCCL="OP RANK NTH KIND MARKER" plants a fault: OP is join, send, receive or abort; the NTH one (from 0) of a process
// whose rank is RANK fails as KIND says: hang, error, die, spoil (a wrong byte), or cling (an abort that leaves the last move's
// work on its stream for ever). With a MARKER, a path, it does so once, in whichever process is first to make that file; with
// "-" every time from the NTH on. Several are joined by ';'. What is sent or received fails in the middle: half of the pieces
// have gone.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <nccl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda/emulated_runtime.h"

namespace {

enum class Op { kJoin, kSend, kReceive, kAbort };
enum class Fault { kNone, kHang, kError, kDie, kSpoil, kCling };

// What one plan says of the `count`th time that `rank` does this.
Fault fault_of(const std::string& plan, const char* op, int rank, int count) {
  std::istringstream words(plan);
  std::string name, kind, marker;
  int at = 0, nth = 0;
  if (!(words >> name >> at >> nth >> kind >> marker) || at != rank || count < nth || name != op) return Fault::kNone;
  if (marker != "-") {
    const int file = open(marker.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return Fault::kNone;
    close(file);
  }
  return kind == "hang"    ? Fault::kHang
         : kind == "error" ? Fault::kError
         : kind == "die"   ? Fault::kDie
         : kind == "cling" ? Fault::kCling
                           : Fault::kSpoil;
}

Fault fault_at(Op op, int rank) {
  static std::atomic<int> counts[4] = {};
  const char* const names[] = {"join", "send", "receive", "abort"};
  const int count = counts[static_cast<int>(op)]++;
  const char* const plans = std::getenv("OTR_FAKE_NCCL");
  std::istringstream all(plans == nullptr ? "" : plans);
  Fault fault = Fault::kNone;
  for (std::string plan; fault == Fault::kNone && std::getline(all, plan, ';');)
    fault = fault_of(plan, names[static_cast<int>(op)], rank, count);
  return fault;
}

struct Piece {
  bool sends;
  void* data;
  size_t bytes;
  int peer;
  ncclComm_t comm;
  cudaStream_t stream;
};
thread_local std::vector<Piece> group;
thread_local int depth = 0;

sockaddr_un address(const std::string& id, int rank, socklen_t* size) {
  sockaddr_un a = {};
  a.sun_family = AF_UNIX;
  const std::string name = id + "-" + std::to_string(rank);
  std::memcpy(a.sun_path + 1, name.data(), name.size());  // abstract: it goes with its owner
  *size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return a;
}

}  // namespace

struct ncclComm {
  int rank, size;
  std::string id;
  std::vector<int> peers;  // sockets by rank
  std::atomic<int> state = ncclInProgress;
  std::atomic<bool> aborted = false;
  std::thread work;               // the join, or the last group
  cudaStream_t stream = nullptr;  // the last group's

  ~ncclComm() {
    if (work.joinable()) work.join();
    for (const int fd : peers) {
      if (fd >= 0) close(fd);
    }
  }
  void fail(ncclResult_t why) { state = why; }

  // Waits until the socket is ready, or it is over.
  bool ready(int fd, short events) const {
    while (!aborted) {
      pollfd p = {fd, events, 0};
      if (poll(&p, 1, 5) > 0) return true;
    }
    return false;
  }
  bool transfer(int fd, char* data, size_t bytes, bool sends) {
    while (bytes > 0) {
      if (!ready(fd, sends ? POLLOUT : POLLIN)) return false;
      const ssize_t n = sends ? ::send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, data, bytes, MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (n <= 0) return fail(ncclRemoteError), false;
      data += n;
      bytes -= static_cast<size_t>(n);
    }
    return true;
  }
  bool strike(Fault fault) {  // false: nothing more is done
    if (fault == Fault::kDie) (void)raise(SIGKILL);
    if (fault == Fault::kError) fail(ncclInternalError);
    while (fault == Fault::kHang && !aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return fault == Fault::kNone || fault == Fault::kSpoil;
  }

  void join() {
    if (!strike(fault_at(Op::kJoin, rank))) return;
    socklen_t length;
    sockaddr_un own = address(id, rank, &length);
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, reinterpret_cast<sockaddr*>(&own), length) != 0 || listen(listener, size) != 0) fail(ncclInvalidUsage);
    for (int lower = 0; lower < rank && state == ncclInProgress; ++lower) {
      sockaddr_un other = address(id, lower, &length);
      const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      peers[static_cast<size_t>(lower)] = fd;
      while (!aborted && connect(fd, reinterpret_cast<sockaddr*>(&other), length) != 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      (void)transfer(fd, reinterpret_cast<char*>(&rank), sizeof rank, true);
    }
    for (int left = size - 1 - rank; left > 0 && state == ncclInProgress && ready(listener, POLLIN); --left) {
      const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      int who = -1;
      if (fd < 0 || !transfer(fd, reinterpret_cast<char*>(&who), sizeof who, false) || who <= rank || who >= size)
        return fail(ncclInvalidUsage);
      peers[static_cast<size_t>(who)] = fd;
    }
    close(listener);
    int in_progress = ncclInProgress;
    if (!aborted) state.compare_exchange_strong(in_progress, ncclSuccess);
  }

  void run(const std::vector<Piece>& pieces) {
    const Fault fault = fault_at(pieces.front().sends ? Op::kSend : Op::kReceive, rank);
    bool good = true;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece& p = pieces[i];
      if (i == pieces.size() / 2) good = good && strike(fault);
      std::vector<char> data(p.bytes);
      if (good && p.sends) (void)cudaMemcpy(data.data(), p.data, p.bytes, cudaMemcpyDeviceToHost);
      if (fault == Fault::kSpoil && p.bytes > sizeof(uint64_t)) data[p.bytes / 2] = static_cast<char>(data[p.bytes / 2] ^ 0x40);
      good = good && transfer(peers[static_cast<size_t>(p.peer)], data.data(), p.bytes, p.sends);
      if (good && !p.sends)
        (void)cudaMemcpy(p.data, data.data(), p.bytes, cudaMemcpyHostToDevice), (void)cudaDeviceSynchronize();
    }
    emulated_hold(pieces.front().stream, -1);
  }
};

extern "C" {

ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "a remote end is gone" : "a fake error";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  uint64_t word = 0;
  if (getrandom(&word, sizeof word, 0) != sizeof word) return ncclSystemError;
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "otr-fake-nccl-%016llx", static_cast<unsigned long long>(word));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0 || rank < 0 || rank >= size) return ncclInvalidArgument;
  ncclComm_t c = new ncclComm{};
  c->rank = rank, c->size = size, c->id = id.internal, c->peers.assign(static_cast<size_t>(size), -1);
  c->work = std::thread([c] { c->join(); });
  return *comm = c, ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  return *state = static_cast<ncclResult_t>(comm->state.load()), ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const Fault fault = fault_at(Op::kAbort, comm->rank);
  while (fault == Fault::kHang) pause();
  if (fault == Fault::kCling) emulated_hold(comm->stream, +1);
  comm->aborted = true;
  return delete comm, ncclSuccess;
}

ncclResult_t ncclGroupStart() { return ++depth, ncclSuccess; }
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
  return group.push_back({true, const_cast<void*>(data), count, peer, comm, stream}), ncclSuccess;
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
  return group.push_back({false, data, count, peer, comm, stream}), ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--depth > 0 || group.empty()) return ncclSuccess;
  std::vector<Piece> pieces = std::exchange(group, {});
  ncclComm_t comm = pieces.front().comm;
  if (comm->state != ncclSuccess) return ncclInvalidUsage;
  if (comm->work.joinable()) comm->work.join();
  if (cudaStreamQuery(pieces.front().stream) != cudaSuccess)
    return ncclInvalidUsage;  // in the stream's order: what came before is done
  comm->stream = pieces.front().stream;
  emulated_hold(comm->stream, +1);
  comm->work = std::thread([comm, all = std::move(pieces)] { comm->run(all); });
  return ncclInProgress;
}

}  // extern "C"
