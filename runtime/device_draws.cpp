#include "runtime/device_draws.h"

#include <algorithm>

namespace otr {
namespace {

SampleDraw& sample_draw(SampleDraw& draw) { return draw; }
SampleDraw& sample_draw(CandidateDraw& draw) { return draw.draw; }

}  // namespace

Result<DeviceDraws> DeviceDraws::create(const KernelTable& kernels, const LaunchContext& on, int32_t vocab_size) {
  DeviceDraws d(kernels, on, vocab_size);
  // A list names each token once, so one draw's always fits.
  constexpr int64_t kPenaltiesOfBatch = 1 << 18;
  d.max_penalties_ = std::max<int64_t>(vocab_size, kPenaltiesOfBatch);
  MirrorLayout down, up;
  down.add<CandidateDraw>(kMaxDraws);  // the larger of the two
  d.penalties_ = down.add<PenaltyEntry>(d.max_penalties_);
  up.add<Candidates>(kMaxDraws);
  OTR_ASSIGN_OR_RETURN(d.down_, Mirror::create(down.bytes(), "draws", on.accelerator));
  OTR_ASSIGN_OR_RETURN(d.up_, Mirror::create(up.bytes(), "draws", on.accelerator));
  const int64_t entries = kLaunchDraws * sample_workspace_stride(vocab_size);
  OTR_ASSIGN_OR_RETURN(d.scaled_, Buffer<float>::create(entries, "sampler", on.accelerator));
  OTR_ASSIGN_OR_RETURN(d.order_, Buffer<int32_t>::create(entries, "sampler", on.accelerator));
  const int64_t scratch = kernels.device->sample_scratch_bytes(vocab_size, kLaunchDraws);
  OTR_ASSIGN_OR_RETURN(d.scratch_, Buffer<uint8_t>::create(scratch, "sampler", on.accelerator));
  return d;
}

Status DeviceDraws::sleep() {
  OTR_RETURN_IF_ERROR(scaled_.sleep());
  OTR_RETURN_IF_ERROR(order_.sleep());
  return scratch_.sleep();
}

Status DeviceDraws::wake() {
  OTR_RETURN_IF_ERROR(scaled_.wake());
  OTR_RETURN_IF_ERROR(order_.wake());
  return scratch_.wake();
}

// Sends down the first draws, as many as fit, at least one. Returns how many.
template <typename Draw>
int32_t DeviceDraws::fill(const Draw* draws, int32_t num_draws) {
  Draw* to = down_.host<Draw>();
  PenaltyEntry* list = down_.host<PenaltyEntry>(penalties_);
  int64_t num_penalties = 0;
  int32_t count = 0;
  for (; count < std::min(num_draws, kMaxDraws); ++count) {
    to[count] = draws[count];
    SampleDraw& d = sample_draw(to[count]);
    if (num_penalties + d.num_penalties > max_penalties_) break;
    std::copy_n(d.penalties, d.num_penalties, list + num_penalties);
    d.penalties = down_.device<PenaltyEntry>(penalties_) + num_penalties;
    num_penalties += d.num_penalties;
  }
  down_.down(0, count * static_cast<int64_t>(sizeof(Draw)));
  if (num_penalties > 0) down_.down(penalties_, penalties_ + num_penalties * static_cast<int64_t>(sizeof(PenaltyEntry)));
  return count;
}

// launch(draws, their number, results), all on the device.
template <typename Draw, typename Found, typename Launch>
Status DeviceDraws::run(const Draw* draws, int32_t num_draws, Found* results, const Launch& launch) {
  for (int32_t begin = 0; begin < num_draws;) {
    OTR_RETURN_IF_ERROR(down_.begin());
    const int32_t count = fill(draws + begin, num_draws - begin);
    for (int32_t at = 0; at < count; at += kLaunchDraws) {
      launch(down_.device<const Draw>() + at, std::min(kLaunchDraws, count - at), up_.device<Found>() + at);
    }
    up_.up(0, count * static_cast<int64_t>(sizeof(Found)));
    OTR_RETURN_IF_ERROR(on_.accelerator->wait());
    std::copy_n(up_.host<Found>(), count, results + begin);
    begin += count;
  }
  return {};
}

Status DeviceDraws::sample(const float* logits, const SampleDraw* draws, int32_t num_draws, SampleResult* results) {
  if (num_draws == 0) return on_.accelerator->wait();
  return run(draws, num_draws, results, [&](const SampleDraw* on_device, int32_t count, SampleResult* found) {
    kernels_->sample({.num_draws = count,
                      .vocab_size = vocab_size_,
                      .logits = logits,
                      .logits_stride = vocab_size_,
                      .draws = on_device,
                      .results = found,
                      .scaled = scaled_.data(),
                      .order = order_.data(),
                      .scratch = scratch_.data()},
                     on_);
  });
}

Status DeviceDraws::candidates(const float* logits, const CandidateDraw* draws, int32_t num_draws, int32_t m,
                               Candidates* results) {
  return run(draws, num_draws, results, [&](const CandidateDraw* on_device, int32_t count, Candidates* found) {
    launch_candidates(logits, on_device, count, m, found);
  });
}

void DeviceDraws::launch_candidates(const float* logits, const CandidateDraw* on_device, int32_t num_draws, int32_t m,
                                    Candidates* found) {
  for (int32_t at = 0; at < num_draws; at += kLaunchDraws) {
    kernels_->candidates({.num_draws = std::min(kLaunchDraws, num_draws - at),
                          .vocab_size = vocab_size_,
                          .m = m,
                          .logits = logits,
                          .logits_stride = vocab_size_,
                          .draws = on_device + at,
                          .results = found + at,
                          .scaled = scaled_.data(),
                          .order = order_.data(),
                          .scratch = scratch_.data()},
                         on_);
  }
}

}  // namespace otr
