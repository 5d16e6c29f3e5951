#include "kernels/cuda/cuda_device.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/base/caller_context.h"
#include "kernels/base/clock.h"
#include "kernels/base/launch_status.h"
#include "kernels/cuda/current_device.h"

namespace otr {
namespace {

// CUDA keeps an error until it is asked for: one that was seen must not be taken for a later call's.
bool succeeded(cudaError_t error) {
  if (error == cudaSuccess) return true;
  (void)cudaGetLastError();
  return false;
}

// The same for calls whose failure the caller hands on, and after which the device is used again.
Status outcome_of(const char* call, cudaError_t error) {
  (void)succeeded(error);
  return cuda_status(call, error);
}

}  // namespace

Result<std::shared_ptr<CudaDevice>> CudaDevice::open(int ordinal, std::span<const int> peers) {
  const std::string name = "device cuda:" + std::to_string(ordinal);
  int count = 0, major = 0, minor = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (!succeeded(error)) return unsupported(name + ": " + cudaGetErrorString(error));
  if (ordinal < 0 || ordinal >= count)
    return unsupported(name + ": this machine has " + std::to_string(count) + " CUDA devices");
  if (!succeeded(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal)) ||
      !succeeded(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal)) || major != 9 || minor != 0) {
    return unsupported(name + ": its compute capability is " + std::to_string(major) + "." + std::to_string(minor) +
                       ", not 9.0");
  }
  std::vector<int> reading;
  for (const int peer : peers) {
    int can = 0;
    if (peer != ordinal && succeeded(cudaDeviceCanAccessPeer(&can, peer, ordinal)) && can != 0) reading.push_back(peer);
  }
  std::shared_ptr<CudaDevice> device(new CudaDevice(ordinal, std::move(reading)));
  OTR_RETURN_IF_ERROR(device->create_stream());
  return device;
}

Status CudaDevice::create_stream() {
  make_current();
  const std::string name = "device cuda:" + std::to_string(ordinal_);
  return outcome_of(name.c_str(), cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

// What fetch() has on a device, for good: taking and giving back pinned memory may wait for whatever runs there.
struct CudaDevice::Fetching {
  std::mutex mutex;
  CudaDevice device;
  void* staged = nullptr;  // [kFetchBytes], pinned
};

CudaDevice::Fetching& CudaDevice::fetching_on(int ordinal) {
  static std::mutex mutex;
  static auto& all = *new std::map<int, std::unique_ptr<Fetching>>();  // by device; guarded by mutex
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Fetching>& f = all[ordinal];
  if (f == nullptr) f.reset(new Fetching{{}, CudaDevice(ordinal, {})});
  return *f;
}

// By pinned memory: a copy to any other returns only when it is done, however long that takes, and cudaMemcpy waits for the
// default stream too.
Status CudaDevice::fetch(const void* from, size_t bytes, std::vector<std::byte>* to) {
  const CallerContext caller;
  cudaPointerAttributes attributes = {};
  if (!make_a_used_device_current() || !succeeded(cudaPointerGetAttributes(&attributes, from)) ||
      attributes.type != cudaMemoryTypeDevice)
    return {};
  to->resize(bytes);
  if (bytes == 0) return {};
  Fetching& f = fetching_on(attributes.device);
  const std::lock_guard<std::mutex> lock(f.mutex);
  if (f.device.stream_ == nullptr) OTR_RETURN_IF_ERROR(f.device.create_stream());
  if (f.staged == nullptr) f.staged = f.device.allocate_host(kFetchBytes);
  if (f.staged == nullptr) return Status(StatusCode::kOutOfMemory, "no pinned memory to fetch a tensor by");
  for (size_t at = 0; at < bytes; at += kFetchBytes) {
    const size_t part = std::min(kFetchBytes, bytes - at);
    f.device.copy(f.staged, static_cast<const std::byte*>(from) + at, part);
    OTR_RETURN_IF_ERROR(f.device.wait());
    std::memcpy(to->data() + at, f.staged, part);
  }
  return {};
}

CudaDevice::~CudaDevice() {
  if (stream_ == nullptr) return;
  (void)wait();
  if (hung_) memory_.abandon();
  else (void)cudaStreamDestroy(stream_);
}

void CudaDevice::make_current() const { (void)make_device_current(ordinal_); }

cudaStream_t CudaDevice::stream() {
  make_current();
  return stream_;
}

void* CudaDevice::allocate(size_t bytes) {
  make_current();
  void* const data = memory_.allocate(bytes);
  if (data != nullptr) clear(data, bytes);
  return data;
}

// Like cudaFree, which waits by itself: a mapping must not go while something runs.
void CudaDevice::release(void* data) {
  if (data == nullptr) return;
  (void)wait();
  if (!hung_) memory_.release(data);
}

Status CudaDevice::give_back(void* data) {
  OTR_RETURN_IF_ERROR(wait());
  return memory_.give_back(data);
}

Status CudaDevice::take_back(void* data) {
  make_current();
  OTR_ASSIGN_OR_RETURN(const size_t bytes, memory_.take_back(data));
  clear(data, bytes);
  return {};
}

void* CudaDevice::allocate_host(size_t bytes) {
  make_current();
  void* data = nullptr;
  return succeeded(cudaHostAlloc(&data, bytes, cudaHostAllocDefault)) ? data : nullptr;
}

void CudaDevice::release_host(void* data) {
  if (data == nullptr) return;
  (void)wait();
  if (!hung_) (void)cudaFreeHost(data);
}

uint64_t CudaDevice::free_bytes() const {
  make_current();
  size_t free = 0, total = 0;
  return succeeded(cudaMemGetInfo(&free, &total)) ? free : 0;
}

bool CudaDevice::can_copy(const void* data) const {
  make_current();
  cudaPointerAttributes attributes = {};
  const bool known = succeeded(cudaPointerGetAttributes(&attributes, data));
  return !known || attributes.type != cudaMemoryTypeDevice || attributes.device == ordinal_;
}

void CudaDevice::copy(void* to, const void* from, size_t bytes) {
  make_current();
  if (bytes > 0) keep(cuda_status("copy", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_)));
}

// Where the machine has no way between the devices, CUDA goes through the host.
void CudaDevice::copy_from(const Accelerator& other, void* to, const void* from, size_t bytes) {
  const int there = static_cast<const CudaDevice&>(other).ordinal_;
  if (there == ordinal_) return copy(to, from, bytes);
  make_current();
  if (bytes > 0) keep(cuda_status("copy between devices", cudaMemcpyPeerAsync(to, ordinal_, from, there, bytes, stream_)));
}

void CudaDevice::clear(void* data, size_t bytes) {
  make_current();
  if (bytes > 0) keep(cuda_status("clear", cudaMemsetAsync(data, 0, bytes, stream_)));
}

void CudaDevice::keep(const Status& status) {
  if (failure_.ok()) failure_ = status;
  hung_ |= status.code() == StatusCode::kTimeout;
}

Status CudaDevice::wait() {
  if (hung_) return failure_;
  make_current();
  const Stopwatch time;
  for (;;) {
    const cudaError_t error = cudaStreamQuery(stream_);
    if (error == cudaSuccess) break;
    if (error != cudaErrorNotReady) {
      keep(cuda_status("device", error));
      break;
    }
    (void)cudaGetLastError();  // "not ready" is no failure
    if (time.seconds() > kPatience) {
      keep({StatusCode::kTimeout, "the device did not finish within " + std::to_string(static_cast<int>(kPatience)) + " s"});
      break;
    }
    sched_yield();
  }
  ++num_waits_;
  return failure_;
}

// Another thread that waits for the whole device ends the capture, and CUDA tells both: then it is begun again.
Result<Capture> CudaDevice::capture(const std::function<void()>& launches) {
  constexpr int kTries = 3;
  OTR_RETURN_IF_ERROR(wait());
  const uint64_t before = free_bytes();
  cudaGraphExec_t executable = nullptr;
  for (int i = 1;; ++i) {
    cudaError_t end = cudaSuccess;
    const Status captured = try_capture(launches, &end, &executable);
    if (captured.ok()) break;
    const bool was_ended = end == cudaErrorStreamCaptureInvalidated || end == cudaErrorStreamCaptureUnsupported;
    if (!was_ended || i == kTries) return captured;
  }
  OTR_RETURN_IF_ERROR(wait());
  const uint64_t after = free_bytes();
  return Capture{executable, before > after ? static_cast<int64_t>(before - after) : 0};
}

// Nothing of a capture has run: whatever fails in one is handed on, and the device is as it was.
Status CudaDevice::try_capture(const std::function<void()>& launches, cudaError_t* end, cudaGraphExec_t* executable) {
  OTR_RETURN_IF_ERROR(outcome_of("capture", cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal)));
  cudaGraph_t graph = nullptr;
  try {
    launches();
  } catch (...) {  // the stream must not go on capturing
    (void)succeeded(cudaStreamEndCapture(stream_, &graph));
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();  // of a launch
    failure_ = {};
    throw;
  }
  *end = cudaStreamEndCapture(stream_, &graph);
  const Status ended = outcome_of("capture", *end), launched = std::exchange(failure_, {});
  if (!ended.ok() || !launched.ok()) {
    (void)cudaGetLastError();  // of a launch
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    return launched.ok() ? ended : launched;
  }
  const Status made = outcome_of("capture", cudaGraphInstantiate(executable, graph, 0));
  (void)cudaGraphDestroy(graph);
  OTR_RETURN_IF_ERROR(made);
  const Status uploaded = outcome_of("capture", cudaGraphUpload(*executable, stream_));
  if (!uploaded.ok()) (void)cudaGraphExecDestroy(*executable);
  return uploaded;
}

void CudaDevice::launch(const Capture& capture) {
  make_current();
  keep(cuda_status("launch", cudaGraphLaunch(static_cast<cudaGraphExec_t>(capture.executable), stream_)));
}

void CudaDevice::destroy(const Capture& capture) {
  if (hung_) return;
  make_current();
  (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(capture.executable));
}

}  // namespace otr
