#include "runtime/nccl_port.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/launch_status.h"
#include "kernels/cuda/current_device.h"

namespace otr {
namespace {

using Clock = std::chrono::steady_clock;

static_assert(sizeof(NetId) == sizeof(ncclUniqueId));

}  // namespace

Result<std::unique_ptr<PagePort>> NcclPort::open(const std::string& library, int32_t gpu, std::shared_ptr<Accelerator> device,
                                                 int32_t patience_ms) {
  OTR_ASSIGN_OR_RETURN(const NcclApi api, NcclApi::load(library));
  std::unique_ptr<NcclPort> port(new NcclPort(api, gpu, std::move(device), patience_ms));
  OTR_RETURN_IF_ERROR(cuda_status("NCCL's device", make_device_current(gpu)));
  OTR_RETURN_IF_ERROR(cuda_status("NCCL's stream", cudaStreamCreateWithFlags(&port->stream_, cudaStreamNonBlocking)));
  port->word_ = static_cast<uint64_t*>(port->device_->allocate(sizeof *port->word_));
  port->host_word_ = static_cast<uint64_t*>(port->device_->allocate_host(sizeof *port->host_word_));
  if (port->word_ == nullptr || port->host_word_ == nullptr)
    return Status(StatusCode::kOutOfMemory, "no memory for NCCL's word");
  OTR_RETURN_IF_ERROR(port->device_->wait());  // that it is zeroed, on a stream that ours does not wait for
  return std::unique_ptr<PagePort>(std::move(port));
}

NcclPort::~NcclPort() {
  if (!leave().ok()) return;
  device_->release(word_);
  device_->release_host(host_word_);
  (void)make_device_current(gpu_);
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

Status NcclPort::failure(const char* what, ncclResult_t result) const {
  return Status(StatusCode::kInternal, std::string("NCCL ") + what + ": " + api_.error_text(result));
}

Status NcclPort::wait(const char* what, int32_t limit_ms, bool for_stream, const GivenUp& given_up) const {
  const Clock::time_point limit = Clock::now() + std::chrono::milliseconds(limit_ms);
  for (;;) {
    ncclResult_t state = ncclSuccess;
    if (const ncclResult_t asked = api_.async_error(comm_, &state); asked != ncclSuccess) return failure(what, asked);
    if (state != ncclSuccess && state != ncclInProgress) return failure(what, state);
    if (state == ncclSuccess) {
      const cudaError_t done = for_stream ? cudaStreamQuery(stream_) : cudaSuccess;
      if (done == cudaSuccess) return {};
      if (done != cudaErrorNotReady) return cuda_status(what, done);
    }
    if (given_up()) return Status(StatusCode::kLost, std::string("NCCL ") + what + ": another end is lost");
    if (Clock::now() >= limit)
      return Status(StatusCode::kTimeout,
                    std::string("NCCL ") + what + ": not done within " + std::to_string(limit_ms) + " ms");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

Status NcclPort::join(const NetId& id, int32_t size, int32_t rank, const GivenUp& given_up) {
  constexpr int32_t kPatiences = 3;  // whose processes begin at different times
  OTR_RETURN_IF_ERROR(cuda_status("NCCL's device", make_device_current(gpu_)));
  ncclUniqueId unique;
  std::memcpy(&unique, id.data(), id.size());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t begun = api_.init_rank(&comm_, size, unique, rank, &config);
  if (begun != ncclSuccess && begun != ncclInProgress) return failure("join", begun);
  return wait("join", kPatiences * patience_ms_, false, given_up);
}

Status NcclPort::copy_word(bool to_device) {
  void* const to = to_device ? word_ : host_word_;
  const void* const from = to_device ? host_word_ : word_;
  return cuda_status("NCCL's word", cudaMemcpyAsync(to, from, sizeof *word_,
                                                    to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream_));
}

// One group: what is sent and what comes in it goes side by side. It may be on the stream only when the communicator says so:
// the word is asked for after that.
Status NcclPort::move(PageMove* move, const GivenUp& given_up) {
  OTR_RETURN_IF_ERROR(cuda_status("NCCL's device", make_device_current(gpu_)));
  *host_word_ = move->word;
  OTR_RETURN_IF_ERROR(copy_word(true));
  ncclResult_t result = api_.group_start();
  const auto add = [&](void* data, size_t bytes) {
    if (result != ncclSuccess && result != ncclInProgress) return;
    result = move->sends ? api_.send(data, bytes, ncclUint8, move->peer, comm_, stream_)
                         : api_.receive(data, bytes, ncclUint8, move->peer, comm_, stream_);
  };
  for (std::byte* page : move->pages) add(page, move->page_bytes);
  add(word_, sizeof *word_);
  const ncclResult_t ended = api_.group_end();
  for (const ncclResult_t r : {result, ended}) {
    if (r != ncclSuccess && r != ncclInProgress) return failure("move", r);
  }
  const Stopwatch moving;  // one patience for both
  OTR_RETURN_IF_ERROR(wait("move", patience_ms_, true, given_up));
  OTR_RETURN_IF_ERROR(copy_word(false));
  const int32_t left_ms = std::max(1, patience_ms_ - static_cast<int32_t>(1e3 * moving.seconds()));
  OTR_RETURN_IF_ERROR(wait("word", left_ms, true, given_up));
  move->word = *host_word_;
  return {};
}

// A stream that fails, like the context that it is in, runs nothing any more.
Status NcclPort::leave() {
  const auto hangs = [this] {
    return Status(StatusCode::kTimeout, "NCCL leave: the stream is not done within " + std::to_string(patience_ms_) + " ms");
  };
  if (hung_) return hangs();
  if (comm_ == nullptr) return {};
  (void)make_device_current(gpu_);
  (void)api_.abort(std::exchange(comm_, nullptr));
  const Clock::time_point limit = Clock::now() + std::chrono::milliseconds(patience_ms_);
  while (cudaStreamQuery(stream_) == cudaErrorNotReady) {
    if (Clock::now() >= limit) return hung_ = true, hangs();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return {};
}

Result<std::unique_ptr<PagePort>> open_nccl_port(const std::string& library, int32_t gpu, std::shared_ptr<Accelerator> device,
                                                 int32_t patience_ms) {
  return NcclPort::open(library, gpu, std::move(device), patience_ms);
}

Result<NetId> make_nccl_id(const std::string& library) {
  OTR_ASSIGN_OR_RETURN(const NcclApi api, NcclApi::load(library));
  ncclUniqueId unique;
  if (const ncclResult_t made = api.get_unique_id(&unique); made != ncclSuccess) {
    return Status(StatusCode::kInternal, std::string("NCCL makes no id: ") + api.error_text(made));
  }
  NetId id;
  std::memcpy(id.data(), &unique, id.size());
  return id;
}

}  // namespace otr
