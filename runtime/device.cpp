#include "runtime/device.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "kernels/base/affinity.h"

namespace otr {
namespace {

// For as long as it lives the calling thread may run on `count` of its CPUs only, from the `first`-th on, as they go round.
// Where the system refuses, on those it had.
class CpuShare {
 public:
  CpuShare(int32_t first, int32_t count) {
    if (first < 0) return;
    before_ = cpu_affinity();
    if (before_.empty()) return;
    std::vector<int> share;
    for (int32_t i = 0; i < count; ++i) share.push_back(before_[static_cast<size_t>(first + i) % before_.size()]);
    narrowed_ = set_cpu_affinity(share);
  }
  ~CpuShare() {
    if (narrowed_) (void)set_cpu_affinity(before_);
  }
  CpuShare(const CpuShare&) = delete;
  CpuShare& operator=(const CpuShare&) = delete;

 private:
  std::vector<int> before_;
  bool narrowed_ = false;
};

}  // namespace

Result<std::unique_ptr<Device>> Device::create(const DeviceOptions& options) {
  std::unique_ptr<Device> d(new Device());
  if (options.isa == kCudaPath) {
    OTR_RETURN_IF_ERROR(d->choose_gpu(options));
  } else {
    OTR_ASSIGN_OR_RETURN(d->kernels_, select_kernels(options.isa));
  }
  if (options.kernels != nullptr) d->kernels_ = options.kernels;
  {
    const CpuShare share(options.pin_threads ? options.first_cpu : -1, options.num_threads);
    d->pool_ = std::make_unique<ThreadPool>(options.num_threads, options.pin_threads);
  }
  OTR_ASSIGN_OR_RETURN(d->target_,
                       ModelRunner::create(options.target, *d->kernels_, *d->pool_, d->accelerator_, d->programs_.get()));
  return d;
}

CaptureFacts Device::captures() const {
  if (programs_ == nullptr) return {};
  return {.captures = programs_->num_captures(),
          .target_bytes = programs_->bytes(ProgramRole::kTarget),
          .draft_bytes = programs_->bytes(ProgramRole::kDraft),
          .seconds = programs_->capture_seconds()};
}

Result<std::vector<int32_t>> parse_gpus(std::string_view device) {
  constexpr std::string_view kCuda = "cuda", kList = "cuda:";
  const auto wrong = [&](const std::string& why) { return invalid_argument("device '" + std::string(device) + "': " + why); };
  std::vector<int32_t> gpus;
  if (device == "auto" || device == "cpu") return gpus;
  if (device == kCuda) return std::vector<int32_t>{0};
  if (!device.starts_with(kList)) return wrong("expected auto, cpu, cuda or cuda:N,…");
  for (std::string_view rest = device.substr(kList.size());; rest.remove_prefix(1)) {
    int32_t gpu = -1;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), gpu);
    if (error != std::errc() || gpu < 0)
      return wrong("expected the number of a GPU, from 0 on, found '" + std::string(rest) + "'");
    if (std::ranges::find(gpus, gpu) != gpus.end()) return wrong("GPU " + std::to_string(gpu) + " is named twice");
    gpus.push_back(gpu);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    if (rest.empty()) return gpus;
    if (rest.front() != ',') return wrong("expected a comma, found '" + std::string(rest) + "'");
  }
}

}  // namespace otr
