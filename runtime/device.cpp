#include "runtime/device.h"

#include <pthread.h>
#include <sched.h>

namespace otr {
namespace {

// For as long as it lives the calling thread may run on `count` of its CPUs only, from the `first`-th on, as they go round.
// Where the system refuses, on those it had.
class CpuShare {
 public:
  CpuShare(int32_t first, int32_t count) {
    if (first < 0 || sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    int cpus[CPU_SETSIZE], size = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &before_)) cpus[size++] = cpu;
    }
    cpu_set_t share;
    CPU_ZERO(&share);
    for (int32_t i = 0; i < count; ++i) CPU_SET(cpus[(first + i) % size], &share);
    narrowed_ = pthread_setaffinity_np(pthread_self(), sizeof share, &share) == 0;
  }
  ~CpuShare() {
    if (narrowed_) (void)pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
  }
  CpuShare(const CpuShare&) = delete;
  CpuShare& operator=(const CpuShare&) = delete;

 private:
  cpu_set_t before_;
  bool narrowed_ = false;
};

}  // namespace

Result<std::unique_ptr<Device>> Device::create(const DeviceOptions& options) {
  std::unique_ptr<Device> d(new Device());
  OTR_ASSIGN_OR_RETURN(d->kernels_, select_kernels(options.isa));
  if (options.kernels != nullptr) d->kernels_ = options.kernels;
  {
    const CpuShare share(options.pin_threads ? options.first_cpu : -1, options.num_threads);
    d->pool_ = std::make_unique<ThreadPool>(options.num_threads, options.pin_threads);
  }
  OTR_ASSIGN_OR_RETURN(d->target_, ModelRunner::create(options.target, *d->kernels_, *d->pool_));
  return d;
}

}  // namespace otr
