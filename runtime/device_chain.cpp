#include "runtime/device_chain.h"

#include <algorithm>
#include <stdexcept>

namespace otr {

Result<DeviceChain> DeviceChain::create(const KernelTable& kernels, const LaunchContext& on, int32_t max_draws,
                                        DeviceDraws* draws) {
  DeviceChain c(kernels, on, draws);
  MirrorLayout down;
  down.add<CandidateDraw>(max_draws);
  c.from_ = down.add<int32_t>(max_draws);
  OTR_ASSIGN_OR_RETURN(c.down_, Mirror::create(down.bytes(), "drafted chains", on.accelerator));
  OTR_ASSIGN_OR_RETURN(c.up_,
                       Mirror::create(max_draws * static_cast<int64_t>(sizeof(Candidates)), "drafted chains", on.accelerator));
  return c;
}

// Each level has a part of the mirrors to itself, so that none waits for another.
void DeviceChain::begin() {
  on_.accelerator->keep(down_.begin());
  num_draws_ = num_from_ = 0;
}

void DeviceChain::set_tokens(std::span<const int32_t> from, int32_t* token_ids) {
  if (from.empty()) return;
  const int64_t begin = from_ + num_from_ * static_cast<int64_t>(sizeof(int32_t));
  std::ranges::copy(from, down_.host<int32_t>(begin));
  down_.down(begin, begin + static_cast<int64_t>(from.size_bytes()));
  kernels_->device->take_tokens({.num_rows = static_cast<int32_t>(from.size()),
                                 .from = down_.device<int32_t>(begin),
                                 .drawn = up_.device<Candidates>(),
                                 .token_ids = token_ids},
                                on_);
  num_from_ += static_cast<int32_t>(from.size());
}

void DeviceChain::draw(const float* logits, std::span<const CandidateDraw> draws) {
  const int64_t begin = num_draws_ * static_cast<int64_t>(sizeof(CandidateDraw));
  std::ranges::copy(draws, down_.host<CandidateDraw>(begin));
  down_.down(begin, begin + static_cast<int64_t>(draws.size_bytes()));
  const int32_t count = static_cast<int32_t>(draws.size());
  draws_->launch_candidates(logits, down_.device<CandidateDraw>(begin), count, 1, up_.device<Candidates>() + num_draws_);
  num_draws_ += count;
}

void DeviceChain::finish(Candidates* results) {
  up_.up(0, num_draws_ * static_cast<int64_t>(sizeof(Candidates)));
  if (const Status status = on_.accelerator->wait(); !status.ok()) throw std::runtime_error(status.message());
  std::copy_n(up_.host<Candidates>(), num_draws_, results);
}

}  // namespace otr
