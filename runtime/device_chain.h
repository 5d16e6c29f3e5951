// DeviceChain: drafted chains that grow on a device: a level's draws give the tokens of the next level's rows there, and all of
// them come up together.
//
//   begin()
//   for each level: a pass, asked with set_tokens() from the second level on; draw(its logits)
//   finish(candidates)        the only wait
//
// Everything is allocated at create. Errors: create() gives kOutOfMemory; a device that fails says so in finish(), as
// std::runtime_error (model_runner.h). Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/dispatch.h"
#include "memory/mirror.h"
#include "runtime/device_draws.h"

namespace otr {

class DeviceChain {
 public:
  // `max_draws`: of all levels of all sequences together. The kernels, what is behind the context and `draws`, whose workspace
  // it uses, outlive it.
  static Result<DeviceChain> create(const KernelTable& kernels, const LaunchContext& on, int32_t max_draws, DeviceDraws* draws);

  void begin();
  int32_t num_draws() const { return num_draws_; }
  // token_ids[i], on the device, becomes what draw number from[i] found best. Draws are numbered through all levels.
  void set_tokens(std::span<const int32_t> from, int32_t* token_ids);
  // The best candidate at each place, from logits on the device. REQUIRES: no penalties; max_draws in all.
  void draw(const float* logits, std::span<const CandidateDraw> draws);
  // What all draws found, by number: [num_draws()].
  void finish(Candidates* results);

 private:
  DeviceChain(const KernelTable& kernels, const LaunchContext& on, DeviceDraws* draws)
      : kernels_(&kernels), on_(on), draws_(draws) {}

  const KernelTable* kernels_;
  LaunchContext on_;
  DeviceDraws* draws_;
  Mirror down_;       // draws, then for each what set_tokens() wants
  int64_t from_ = 0;  // offset of the latter
  Mirror up_;
  int32_t num_draws_ = 0, num_from_ = 0;
};

}  // namespace otr
