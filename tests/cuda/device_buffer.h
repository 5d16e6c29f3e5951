// Memory of the device and of events, for the tests and measurements of the sm_90a kernels. A failing CUDA call ends the
// program with its text: there is nothing to clean up. Single-threaded.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/base/status.h"

namespace otr::testing_util {

inline void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
inline void check_status(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

// `size` elements, filled with the byte 0x7f: a large float, a NaN of bf16, and no sensible index. What the constructors and
// poison() write is there when they return, for streams of every kind: cudaMemset does not wait, cudaMemcpy may return before
// its last piece has arrived, and a non-blocking stream waits for neither.
template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t size) : size_(size) {
    check_cuda(cudaMalloc(reinterpret_cast<void**>(&data_), size == 0 ? 1 : size * sizeof(T)), "cudaMalloc");
    poison();
  }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.data(), values.size()) {}
  DeviceBuffer(const T* values, size_t size) : DeviceBuffer(size) {
    check_cuda(cudaMemcpy(data_, values, size * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy to the device");
    check_cuda(cudaDeviceSynchronize(), "cudaMemcpy to the device");
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() const { return data_; }
  size_t size() const { return size_; }
  void poison() {
    check_cuda(cudaMemset(data_, 0x7f, size_ * sizeof(T)), "cudaMemset");
    check_cuda(cudaDeviceSynchronize(), "cudaMemset");
  }
  // Waits for what was launched before on streams that are not non-blocking.
  std::vector<T> read() const {
    std::vector<T> values(size_);
    check_cuda(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

// A non-blocking stream for the program's life, and the end of its work.
inline cudaStream_t side_stream() {
  static const cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreate");
    return made;
  }();
  return stream;
}
inline void wait_for(cudaStream_t stream) {
  cudaError_t error = cudaErrorNotReady;
  while (error == cudaErrorNotReady) error = cudaStreamQuery(stream);
  check_cuda(error, "cudaStreamQuery");
}

// Milliseconds between two events on the default stream around `body`.
template <typename Body>
float elapsed_ms(const Body& body) {
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
  check_cuda(cudaEventCreate(&end), "cudaEventCreate");
  check_cuda(cudaEventRecord(begin), "cudaEventRecord");
  body();
  check_cuda(cudaEventRecord(end), "cudaEventRecord");
  check_cuda(cudaEventSynchronize(end), "cudaEventSynchronize");
  float ms = 0.0f;
  check_cuda(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return ms;
}

}  // namespace otr::testing_util
