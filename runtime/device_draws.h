// DeviceDraws: the sampler's way to a device and back: draws and their penalties down, results up, and the workspace in
// between.
//
// Any number of draws may be asked; so many go down in one copy as there is room for, and their kernels take kLaunchDraws at a
// time, over one workspace. Everything is allocated at create.
//
// Errors: create() gives kOutOfMemory; draws as Accelerator::wait. Thread safety: one thread at a time.
#pragma once

#include <cstdint>

#include "kernels/dispatch.h"
#include "memory/buffer.h"
#include "memory/mirror.h"

namespace otr {

class DeviceDraws {
 public:
  static constexpr int32_t kMaxDraws = 1024, kLaunchDraws = 64;

  // The kernels and what is behind the context outlive the object.
  static Result<DeviceDraws> create(const KernelTable& kernels, const LaunchContext& on, int32_t vocab_size);

  // As KernelTable::sample and candidates of these draws, whose pointers are the host's, from a device's logits
  // [*][vocab_size]. Returns when the results are there, and with them whatever else was asked to come up before.
  Status sample(const float* logits, const SampleDraw* draws, int32_t num_draws, SampleResult* results);
  Status candidates(const float* logits, const CandidateDraw* draws, int32_t num_draws, int32_t m, Candidates* results);

  // Launches candidates() of draws that are on the device, into results there.
  void launch_candidates(const float* logits, const CandidateDraw* on_device, int32_t num_draws, int32_t m, Candidates* found);

  // The workspace, as Buffer::sleep and wake.
  Status sleep();
  Status wake();

  int64_t bytes() const {
    return static_cast<int64_t>(scaled_.bytes() + order_.bytes() + scratch_.bytes()) + down_.bytes() + up_.bytes();
  }

 private:
  DeviceDraws(const KernelTable& kernels, const LaunchContext& on, int32_t vocab_size)
      : kernels_(&kernels), on_(on), vocab_size_(vocab_size) {}
  template <typename Draw>
  int32_t fill(const Draw* draws, int32_t num_draws);
  template <typename Draw, typename Found, typename Launch>
  Status run(const Draw* draws, int32_t num_draws, Found* results, const Launch& launch);

  const KernelTable* kernels_;
  LaunchContext on_;
  int32_t vocab_size_;
  int64_t max_penalties_ = 0;
  int64_t penalties_ = 0;  // offset in `down_`, behind the draws
  Mirror down_, up_;
  Buffer<float> scaled_;
  Buffer<int32_t> order_;
  Buffer<uint8_t> scratch_;
};

}  // namespace otr
