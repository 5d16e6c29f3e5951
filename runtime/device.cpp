#include "runtime/device.h"

namespace otr {

Result<std::unique_ptr<Device>> Device::create(const DeviceOptions& options) {
  std::unique_ptr<Device> d(new Device());
  OTR_ASSIGN_OR_RETURN(d->kernels_, select_kernels(options.isa));
  if (options.kernels != nullptr) d->kernels_ = options.kernels;
  d->pool_ = std::make_unique<ThreadPool>(options.num_threads, options.pin_threads);
  OTR_ASSIGN_OR_RETURN(d->target_, ModelRunner::create(options.target, *d->kernels_, *d->pool_));
  return d;
}

}  // namespace otr
