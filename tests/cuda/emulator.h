// A device on the CPU that runs the sm_90a kernels' own text (emulate.py), to find wrong indices, wrong barriers and wrong
// phases where there is no GPU. A launch runs its clusters one after the other; the threads of a cluster's blocks are fibers
// that take turns at barriers, shuffles and waits, in an order drawn from a seed; the copy engine's copies come in whenever
// that order says. A launch in which nothing can go on, an arrival too many or a byte outside shared memory ends the program
// with a message.
//
// Work of the default stream runs at once; that of another one waits until the stream is asked whether it is done, as late as
// it may, so that host memory which is changed too early is seen. A capture keeps launches with their arguments. There are two
// devices, which share their memory of 384 MiB that the host cannot touch, and a launch is checked to be on the device of its
// stream.
//
// Not emulated: time, the rounding inside a wgmma (16 products are added one after the other in float32), and memory ordering
// but for these rules of mbarriers between blocks: one must be fenced before others, or the copy engine, use it; arrivals there
// come in late, unless a releasing meeting of the cluster waits for them; and whoever waits for other blocks' stores must do so
// with the cluster's scope. Of the two proxies this one: what threads store in shared memory, wgmma sees once all threads of a
// barrier of theirs have fenced before it. On the host: a thread may not launch in a non-blocking stream while a cudaMemset or
// cudaMemcpy of its own may still be under way.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#define __global__ static
#define __device__
#define __host__
#define __shared__ static  // blocks without clusters run one after the other
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define OTR_DEVICE static inline

namespace otr::emulator {

struct Place {
  dim3 thread, block, grid, block_size;
  uint32_t cluster_rank;
};
const Place& place();

// Runs `body` as every thread of the grid; `cluster` blocks, neighbours along x, at a time.
void launch(dim3 grid, dim3 block, unsigned cluster, size_t shared_bytes, const std::function<void()>& body,
            cudaStream_t stream = nullptr);

// Dynamic shared memory that launches of a kernel may have on the current device, once 48 KB no longer suffice. Lowering it
// ends the program: another thread may stand between its own setting and its launch.
template <typename... Params>
const void* name_of(void (*kernel)(Params...)) {
  return reinterpret_cast<const void*>(kernel);
}
void allow_shared(const void* kernel, size_t bytes);
// Ends the program where the launch is refused, or loads its kernel after others were loaded beforehand.
void check_shared(const void* kernel, size_t bytes);
void load(const void* kernel);  // on the current device
cudaError_t launched(cudaStream_t stream);

constexpr uint32_t kSharedWindow = 1u << 18;  // what an operand descriptor can address
uint8_t* dynamic_shared();                    // of this block
uint8_t* shared_at(uint32_t address, uint32_t rank);
uint8_t* seen_at(uint32_t address, uint32_t rank);  // the same as wgmma and the copy engine see it
void fence_async();
uint32_t address_of(const void* shared);  // in this block; ends the program if it is not there

// Lets others go on until `ready`. `what` and `number` tell what was waited for if nobody can go on.
void wait_until(const std::function<bool()>& ready, const char* what, uint32_t number);
// All of `count` threads that name the same barrier of their block (`number` 0 … 15) or cluster (16).
void barrier(int number, unsigned count);
// What lane `from` of the warp gave: 32 lanes call together.
uint64_t exchange(uint64_t value, unsigned from);
// What every lane of the warp gave: 32 lanes call together.
void exchange_all(const uint32_t (&values)[6], uint32_t (&all)[32][6]);
// Does `copy` at some later time.
void later(const std::function<void()>& copy);
[[noreturn]] void fail(const char* what);

inline unsigned lane() { return place().thread.x % 32; }
unsigned threads_of_block();

}  // namespace otr::emulator

extern dim3 threadIdx, blockIdx, gridDim;  // of the thread that runs

inline void __syncthreads() { otr::emulator::barrier(0, otr::emulator::threads_of_block()); }
int __syncthreads_and(int value);
[[noreturn]] inline void __trap() { otr::emulator::fail("a trap"); }
inline void __syncwarp() { otr::emulator::exchange(0, 0); }

template <typename T>
T emulated_shuffle(T value, unsigned from) {
  static_assert(sizeof(T) == 4);
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  bits = static_cast<uint32_t>(otr::emulator::exchange(bits, from < 32 ? from : otr::emulator::lane()));
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
template <typename T>
T __shfl_sync(unsigned, T value, int from) {
  return emulated_shuffle(value, static_cast<unsigned>(from));
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  return emulated_shuffle(value, otr::emulator::lane() ^ static_cast<unsigned>(distance));
}
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned distance) {
  return emulated_shuffle(value, otr::emulator::lane() + distance);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned distance) {
  return emulated_shuffle(value, otr::emulator::lane() - distance);
}
inline uint32_t atomicAdd(uint32_t* p, uint32_t value) { return (*p += value) - value; }  // fibers change at waits alone

inline float __uint_as_float(uint32_t bits) {
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}
inline int min(int a, int b) { return a < b ? a : b; }

template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), const Args&... args) {
  otr::emulator::check_shared(otr::emulator::name_of(kernel), config->dynamicSmemBytes);
  const unsigned cluster = config->numAttrs > 0 ? config->attrs[0].val.clusterDim.x : 1;
  otr::emulator::launch(
      config->gridDim, config->blockDim, cluster, config->dynamicSmemBytes, [=] { kernel(args...); }, config->stream);
  return otr::emulator::launched(config->stream);
}
template <typename... Params>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, void (*kernel)(Params...)) {
  return otr::emulator::load(otr::emulator::name_of(kernel)), cudaSuccess;
}
template <typename... Params>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute, int bytes) {
  if (bytes > 232448) return cudaErrorInvalidValue;
  otr::emulator::allow_shared(otr::emulator::name_of(kernel), static_cast<size_t>(bytes));
  return cudaSuccess;
}
