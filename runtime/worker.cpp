#include "runtime/worker.h"

namespace otr {

Result<std::unique_ptr<Worker>> Worker::create(const WorkerOptions& options) {
  std::unique_ptr<Worker> w(new Worker());
  OTR_ASSIGN_OR_RETURN(w->kernels_, select_kernels(options.isa));
  if (options.kernels != nullptr) w->kernels_ = options.kernels;
  w->pool_ = std::make_unique<ThreadPool>(options.num_threads, options.pin_threads);
  OTR_ASSIGN_OR_RETURN(w->target_, ModelRunner::create(options.target, *w->kernels_, *w->pool_));
  return w;
}

}  // namespace otr
