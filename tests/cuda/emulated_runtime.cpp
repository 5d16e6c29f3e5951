// The CUDA runtime's calls that the backend and its tests make, on host memory, which only kernels and copies can touch: a
// device's pointer that the host reads through ends the program.
#include "tests/cuda/emulated_runtime.h"

#include <cuda.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/cuda/emulator.h"

using Work = std::vector<std::function<void()>>;

struct CUstream_st {
  int device = 0;
  Work pending;
  Work* capture = nullptr;
  int held = 0;            // by work of others: emulated_hold
  bool is_broken = false;  // its capture is
};
struct CUctx_st {
  int device = 0;
};
struct CUgraph_st {
  Work work;
};
struct CUgraphExec_st {
  Work work;
};

namespace {

constexpr int kDevices = 3;
constexpr size_t kMemory = size_t{384} << 20, kNodeBytes = 1024;
constexpr size_t kUnit = 4096;  // of memory that is mapped: small, so that small models' weights are

struct DeviceBlock {
  size_t bytes = 0;
  int device = 0;
};
std::recursive_mutex mutex;
std::map<uintptr_t, DeviceBlock> on_device;                    // by address; guarded by mutex
std::map<uintptr_t, size_t> pinned;                            // bytes by address; guarded by mutex
std::map<uintptr_t, size_t> reserved;                          // addresses without memory of their own; guarded by mutex
size_t used = 0;                                               // guarded by mutex
std::map<std::pair<const void*, int>, size_t> allowed_shared;  // of a kernel on a device; guarded by mutex
int refused_unmaps = 0, refused_releases = 0;                  // calls to come; guarded by mutex
int default_held = 0;                                          // guarded by mutex
int broken_captures = 0, refused_uploads = 0;                  // to come; guarded by mutex
bool is_captured_elsewhere = false, has_broken_it = false;     // guarded by mutex
std::set<std::pair<const void*, int>> loaded;                  // kernels, on a device; guarded by mutex
bool is_primary_used[kDevices] = {};                           // guarded by mutex
CUctx_st primary[kDevices] = {{0}, {1}, {2}};
thread_local CUcontext current = nullptr;  // the runtime's first device stands for none
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
thread_local cudaError_t last_error = cudaSuccess;
int current_device() { return current != nullptr ? current->device : 0; }
void use_primary(int device) {
  const std::lock_guard lock(mutex);
  current = primary + device, is_primary_used[device] = true;
}
// What needs a context and finds none makes that device's primary one current.
int used_device() {
  if (current == nullptr) use_primary(0);
  return current->device;
}
cudaError_t failed(cudaError_t error) { return last_error = error; }
// Of a call that may wait or take memory, on a thread that minds others' captures.
bool breaks_capture_elsewhere() {
  const std::lock_guard lock(mutex);
  if (!is_captured_elsewhere || capture_mode != CU_STREAM_CAPTURE_MODE_GLOBAL) return false;
  return has_broken_it = true;
}
// Of a call that queues work.
cudaError_t queued_on(cudaStream_t stream) {
  const bool is_lost = stream != nullptr && stream->capture != nullptr && stream->is_broken;
  return is_lost ? failed(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
}
thread_local bool may_be_copying = false;  // the default stream, for this thread, since it was last waited for

// Large pages: what can be touched changes with every access, page by page.
void in_large_pages(void* data, size_t bytes) { (void)madvise(data, bytes, MADV_HUGEPAGE); }

size_t bytes_of(size_t bytes) { return bytes; }
size_t bytes_of(const DeviceBlock& block) { return block.bytes; }
// Null: in none of them.
template <typename Block>
const Block* find_block(const std::map<uintptr_t, Block>& blocks, const void* p) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  auto block = blocks.upper_bound(at);
  if (block == blocks.begin() || at >= std::prev(block)->first + bytes_of(std::prev(block)->second)) return nullptr;
  return &std::prev(block)->second;
}
template <typename Block>
bool inside(const std::map<uintptr_t, Block>& blocks, const void* p) {
  return find_block(blocks, p) != nullptr;
}

size_t whole_pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// The device's memory can be touched while one of these lives: by kernels and copies, not by whoever holds a pointer on the
// host.
class DeviceAccess {
 public:
  DeviceAccess() {
    if (depth++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  ~DeviceAccess() {
    if (--depth == 0) protect(PROT_NONE);
  }
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;

 private:
  static void protect(int how) {
    for (const auto& [data, block] : on_device) {
      if (mprotect(reinterpret_cast<void*>(data), whole_pages(block.bytes), how) != 0) otr::emulator::fail("mprotect");
    }
  }
  const std::lock_guard<std::recursive_mutex> lock_{mutex};
  static int depth;  // guarded by mutex
};
int DeviceAccess::depth = 0;

void drain(cudaStream_t stream) {
  const DeviceAccess access;
  Work work;
  work.swap(stream->pending);
  for (const auto& piece : work) piece();
}

// ---- The driver's functions, found by name: contexts, and memory that comes and goes at an address ----

CUresult emulated_error_text(CUresult, const char** text) { return *text = "refused", CUDA_SUCCESS; }
CUresult emulated_get_current(CUcontext* context) { return *context = current, CUDA_SUCCESS; }
CUresult emulated_set_current(CUcontext context) { return current = context, CUDA_SUCCESS; }
CUresult emulated_exchange_mode(CUstreamCaptureMode* mode) { return std::swap(capture_mode, *mode), CUDA_SUCCESS; }
CUresult emulated_primary_state(CUdevice device, unsigned* flags, int* active) {
  const std::lock_guard lock(mutex);
  return *flags = 0, *active = is_primary_used[device], CUDA_SUCCESS;
}
CUresult emulated_create_context(CUcontext* context, unsigned, CUdevice device) {
  return *context = current = new CUctx_st{device}, CUDA_SUCCESS;
}
CUresult emulated_destroy_context(CUcontext context) {
  if (current == context) current = nullptr;
  return delete context, CUDA_SUCCESS;
}

CUresult emulated_granularity(size_t* unit, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  return *unit = kUnit, CUDA_SUCCESS;
}

CUresult emulated_reserve(CUdeviceptr* at, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  const std::lock_guard lock(mutex);
  void* data = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED || bytes % kUnit != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *at = reinterpret_cast<uintptr_t>(data);
  return reserved[*at] = bytes, CUDA_SUCCESS;
}

CUresult emulated_unreserve(CUdeviceptr at, size_t bytes) {
  const std::lock_guard lock(mutex);
  if (on_device.contains(at) || reserved.erase(at) == 0)
    otr::emulator::fail("addresses with memory, or never reserved, are freed");
  munmap(reinterpret_cast<void*>(at), bytes);
  return CUDA_SUCCESS;
}

// A handle is what it has: its bytes.
CUresult emulated_create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp*, unsigned long long) {
  const std::lock_guard lock(mutex);
  if (bytes > kMemory - used) return CUDA_ERROR_OUT_OF_MEMORY;
  used += bytes;
  return *handle = bytes, CUDA_SUCCESS;
}

CUresult emulated_release(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(mutex);
  if (refused_releases > 0) return --refused_releases, CUDA_ERROR_UNKNOWN;
  return used -= handle, CUDA_SUCCESS;
}

CUresult emulated_map(CUdeviceptr at, size_t bytes, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  const std::lock_guard lock(mutex);
  const auto found = reserved.find(at);
  if (found == reserved.end() || found->second != bytes || handle != bytes || on_device.contains(at))
    otr::emulator::fail("a mapping that does not fit");
  void* data = reinterpret_cast<void*>(at);
  if (mprotect(data, bytes, PROT_READ | PROT_WRITE) != 0) otr::emulator::fail("mprotect");
  in_large_pages(data, bytes);
  std::memset(data, 0x7f, bytes);
  on_device[at] = {bytes, used_device()};
  const DeviceAccess closes_it;
  return CUDA_SUCCESS;
}

CUresult emulated_unmap(CUdeviceptr at, size_t bytes) {
  const std::lock_guard lock(mutex);
  if (refused_unmaps > 0) return --refused_unmaps, CUDA_ERROR_UNKNOWN;
  if (on_device.erase(at) == 0) otr::emulator::fail("what is not mapped is unmapped");
  void* data = reinterpret_cast<void*>(at);
  if (mprotect(data, bytes, PROT_NONE) != 0 || madvise(data, bytes, MADV_DONTNEED) != 0) otr::emulator::fail("mprotect");
  return CUDA_SUCCESS;
}

CUresult emulated_set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc*, size_t) {
  const std::lock_guard lock(mutex);
  return on_device.contains(at) && on_device[at].bytes == bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

namespace otr::emulator {

void allow_shared(const void* kernel, size_t bytes) {
  const std::lock_guard lock(mutex);
  size_t& allowed = allowed_shared[{kernel, used_device()}];
  if (bytes < allowed) fail("a kernel's shared memory is lowered, below a launch that another thread prepares");
  allowed = bytes;
}

void check_shared(const void* kernel, size_t bytes) {
  constexpr size_t kAlwaysAllowed = size_t{48} << 10;
  const std::lock_guard lock(mutex);
  const auto set = allowed_shared.find({kernel, used_device()});
  if (bytes > std::max(kAlwaysAllowed, set != allowed_shared.end() ? set->second : 0))
    fail("a launch with more shared memory than its kernel is allowed");
  const int device = current_device();
  const auto is_there = [device](const auto& l) { return l.second == device; };
  if (!loaded.contains({kernel, device}) && std::any_of(loaded.begin(), loaded.end(), is_there))
    fail("a kernel that was not loaded when others were");
}

void load(const void* kernel) {
  const std::lock_guard lock(mutex);
  loaded.insert({kernel, used_device()});
}

cudaError_t launched(cudaStream_t stream) { return queued_on(stream); }

void enqueue(cudaStream_t stream, std::function<void()> work) {
  const std::lock_guard lock(mutex);
  if (stream == nullptr) {
    const DeviceAccess access;
    return work();
  }
  if (stream->device != current_device()) fail("a launch on another device's stream");
  if (may_be_copying) fail("a launch in a non-blocking stream while the default one may still set or copy memory");
  if (queued_on(stream) != cudaSuccess) return;
  (stream->capture != nullptr ? *stream->capture : stream->pending).push_back(std::move(work));
}

}  // namespace otr::emulator

extern "C" {
// ---- Devices ----
cudaError_t cudaGetDeviceCount(int* count) { return *count = kDevices, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = current_device(), cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return cudaErrorInvalidDevice;
  return use_primary(device), cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) { return *can = device != peer, cudaSuccess; }
cudaError_t cudaDeviceSynchronize() {  // of the default stream: nobody asks for more
  may_be_copying = false;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMultiProcessorCount: *value = 5; break;  // few, so that blocks take several tiles
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 233472; break;
    default: return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

// ---- Memory ----
cudaError_t cudaMalloc(void** p, size_t bytes) {
  used_device();
  const std::lock_guard lock(mutex);
  *p = nullptr;
  if (breaks_capture_elsewhere()) return failed(cudaErrorStreamCaptureUnsupported);
  if (bytes > kMemory - used) return failed(cudaErrorMemoryAllocation);
  void* data = mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return cudaErrorMemoryAllocation;
  used += bytes;
  in_large_pages(data, bytes);
  std::memset(data, 0x7f, bytes);
  on_device[reinterpret_cast<uintptr_t>(data)] = {bytes, current_device()};
  const DeviceAccess closes_it;
  return *p = data, cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  const std::lock_guard lock(mutex);
  if (p == nullptr) return cudaSuccess;
  const auto block = on_device.find(reinterpret_cast<uintptr_t>(p));
  if (block == on_device.end()) otr::emulator::fail("memory that was never allocated is freed");
  used -= block->second.bytes;
  munmap(p, whole_pages(block->second.bytes));
  on_device.erase(block);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  used_device();
  const std::lock_guard lock(mutex);
  if (breaks_capture_elsewhere()) return failed(cudaErrorStreamCaptureUnsupported);
  *p = std::malloc(bytes);
  std::memset(*p, 0x7f, bytes);
  pinned[reinterpret_cast<uintptr_t>(*p)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  const std::lock_guard lock(mutex);
  if (pinned.erase(reinterpret_cast<uintptr_t>(p)) == 0) otr::emulator::fail("memory that was never allocated is freed");
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  used_device();
  const std::lock_guard lock(mutex);
  return *free = kMemory - used, *total = kMemory, cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  used_device();
  const std::lock_guard lock(mutex);
  const DeviceBlock* const block = find_block(on_device, p);
  attributes->device = block != nullptr ? block->device : 0;
  attributes->type = block != nullptr    ? cudaMemoryTypeDevice
                     : inside(pinned, p) ? cudaMemoryTypeHost
                                         : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  const DeviceAccess access;
  may_be_copying = true;
  return std::memset(p, value, bytes), cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  const std::lock_guard lock(mutex);
  if (default_held > 0) otr::emulator::fail("a copy waits for the default stream, which is not done");
  const DeviceAccess access;
  may_be_copying = inside(on_device, to);  // up to the host it waits
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const std::map<std::string_view, void*> known = {
      {"cuGetErrorString", reinterpret_cast<void*>(emulated_error_text)},
      {"cuCtxGetCurrent", reinterpret_cast<void*>(emulated_get_current)},
      {"cuCtxSetCurrent", reinterpret_cast<void*>(emulated_set_current)},
      {"cuThreadExchangeStreamCaptureMode", reinterpret_cast<void*>(emulated_exchange_mode)},
      {"cuDevicePrimaryCtxGetState", reinterpret_cast<void*>(emulated_primary_state)},
      {"cuCtxCreate", reinterpret_cast<void*>(emulated_create_context)},
      {"cuCtxDestroy", reinterpret_cast<void*>(emulated_destroy_context)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(emulated_granularity)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(emulated_reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(emulated_unreserve)},
      {"cuMemCreate", reinterpret_cast<void*>(emulated_create)},
      {"cuMemRelease", reinterpret_cast<void*>(emulated_release)},
      {"cuMemMap", reinterpret_cast<void*>(emulated_map)},
      {"cuMemUnmap", reinterpret_cast<void*>(emulated_unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(emulated_set_access)}};
  const auto at = known.find(symbol);
  *function = at != known.end() ? at->second : nullptr;
  *found = at != known.end() ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

// ---- Streams ----
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = new CUstream_st{used_device(), {}, nullptr, 0, false}, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  if (stream->capture != nullptr) otr::emulator::fail("a stream is waited for while it is captured");
  if (breaks_capture_elsewhere()) return failed(cudaErrorStreamCaptureUnsupported);
  if (stream->held > 0) return failed(cudaErrorNotReady);
  return drain(stream), cudaSuccess;
}
void emulated_hold(cudaStream_t stream, int change) {
  const std::lock_guard lock(mutex);
  (stream == nullptr ? default_held : stream->held) += change;
}
void emulated_refuse(int unmaps, int releases) {
  const std::lock_guard lock(mutex);
  refused_unmaps = unmaps, refused_releases = releases;
}
void emulated_spoil(int captures, int uploads) {
  const std::lock_guard lock(mutex);
  broken_captures = captures, refused_uploads = uploads;
}
void emulated_capture_elsewhere(bool begins) {
  const std::lock_guard lock(mutex);
  is_captured_elsewhere = begins;
  if (begins) has_broken_it = false;
}
bool emulated_capture_is_broken() {
  const std::lock_guard lock(mutex);
  return has_broken_it;
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
  otr::emulator::enqueue(stream, [=] { std::memset(p, value, bytes); });
  return queued_on(stream);
}
// Memory that the system may move is read, or written, before the call returns.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  const auto known = [](const void* p) { return inside(on_device, p) || inside(pinned, p); };
  for (const void* p : {static_cast<const void*>(to), from}) {
    const DeviceBlock* const block = find_block(on_device, p);
    if (block != nullptr && block->device != stream->device)
      otr::emulator::fail("a copy by a device that need not reach the other's memory");
  }
  otr::emulator::enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  if (!known(to) || !known(from)) {
    if (stream->capture != nullptr) return failed(cudaErrorStreamCaptureUnsupported);
    drain(stream);
  }
  return queued_on(stream);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  const DeviceBlock *const there = find_block(on_device, to), *const here = find_block(on_device, from);
  if (to_device == from_device || stream->device != to_device || there == nullptr || there->device != to_device ||
      here == nullptr || here->device != from_device) {
    otr::emulator::fail("a copy between devices that is none");
  }
  otr::emulator::enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

// ---- Captures ----
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard lock(mutex);
  stream->is_broken = broken_captures > 0;
  broken_captures -= stream->is_broken ? 1 : 0;
  return stream->capture = new Work, cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (stream->is_broken) {
    delete std::exchange(stream->capture, nullptr);
    return *graph = nullptr, failed(cudaErrorStreamCaptureInvalidated);
  }
  *graph = new CUgraph_st{std::move(*stream->capture)};
  delete std::exchange(stream->capture, nullptr);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  const std::lock_guard lock(mutex);
  const size_t bytes = graph->work.size() * kNodeBytes;
  if (bytes > kMemory - used) return failed(cudaErrorMemoryAllocation);
  used += bytes;
  return *executable = new CUgraphExec_st{graph->work}, cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  const std::lock_guard lock(mutex);
  if (refused_uploads == 0) return cudaSuccess;
  return --refused_uploads, failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const auto& piece : executable->work) otr::emulator::enqueue(stream, piece);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const std::lock_guard lock(mutex);
  used -= executable->work.size() * kNodeBytes;
  return delete executable, cudaSuccess;
}
}
