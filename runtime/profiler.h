// Profiler: the sweep behind a profile: times of the target, of verifications and of draft levels over batch, rows and context.
//
// Batches are the powers of two up to max_batch, contexts 64, 256, … up to max_context, verifications of chains of 1, 3, 7 and
// 15 tokens, levels of one row a sample and, for trees, of four. A calibration of some seconds (runtime/cost_calibration.h)
// foretells what that takes: the slowest shapes are left out where it would be more than the time given.
//
// Every shape is visited three times, in rounds, each in a random order of its own, and the median counts: a machine that is
// slow for a while spoils neither a shape nor one part of the picture. A sweep may be interrupted: profile() after any step()
// is what resume() takes. Single-threaded.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/device.h"
#include "runtime/drafter_model.h"
#include "runtime/profile_file.h"
#include "runtime/tree_drafter.h"

namespace otr {

struct ProfilerOptions {
  std::string model, isa = "auto";
  int32_t num_threads = 0;
  std::vector<DrafterModel> drafters;  // beside "self"
  int32_t max_batch = 64, max_context = 4096;
  double seconds = 240;  // of the sweep
};

class Profiler {
 public:
  static constexpr int32_t kDeepestVerify = 15;  // tokens of the longest chain
  static constexpr int32_t kVisits = 3;          // of a shape

  // Loads the models. Errors: as Device::create and ModelDrafter::create; kInvalidArgument where max_context exceeds the
  // target's.
  static Result<std::unique_ptr<Profiler>> create(const ProfilerOptions& options);
  ~Profiler();
  // Of max_context.
  static int32_t most_context(const ModelConfig& target) {
    return static_cast<int32_t>(context_limit(target)) - kDeepestVerify - 1;
  }

  // Goes on with a sweep that was interrupted. kInvalidArgument, with the reason, if that was another one.
  Status resume(const Profile& part);
  // Calibrates, and plans what is still to be timed. To be called once, after resume().
  Status plan();

  // Every visit was made; or every shape was visited, and the time is up because the machine is slower than foretold.
  bool done() const { return next_ == planned_.size() || (next_ >= first_round_ && taken_ >= options_.seconds); }
  void step();  // a visit. REQUIRES: !done()
  // The costs of what was timed.
  Status fit();

  const Profile& profile() const { return profile_; }     // as far as it is
  size_t num_planned() const { return planned_.size(); }  // visits
  size_t num_done() const { return next_; }
  size_t num_left_out() const { return num_left_out_; }  // shapes that there was no time for
  double seconds_left() const;                           // of the planned passes, as foretold
  // How well the calibration foretold what the sweep found; by drafter, as profile().fits.
  std::vector<std::array<Goodness, kNumCostRoles>> calibration_goodness() const;

 private:
  struct Shape {
    int32_t drafter;  // TimedPass::kTarget: the target
    CostRole role;
    PassShape pass;
    int32_t runs;    // of a visit
    double seconds;  // of a visit, as foretold
  };

  Profiler(const ProfilerOptions& options, std::unique_ptr<Device> device);
  void add_drafter(const std::string& name, std::unique_ptr<TreeDrafter> drafter);
  TimedProgram timed(int32_t drafter) const;
  std::vector<Shape> all_shapes() const;
  void add_shape(int32_t drafter, CostRole role, const PassShape& pass, std::vector<Shape>* shapes) const;
  int32_t visits_of(const Shape& shape) const;
  void keep_within_time(std::vector<Shape>* shapes);

  const ProfilerOptions options_;
  const std::vector<std::unique_ptr<Sequence>> no_sequences_;
  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<TreeDrafter>> drafters_;
  PassTimer timer_;  // goes before the models, whose pages it holds
  std::vector<CostModel> calibrated_;
  Profile profile_;
  std::vector<Shape> planned_;
  size_t next_ = 0, first_round_ = 0, num_left_out_ = 0;
  double foretold_ = 0, taken_ = 0;  // seconds of the visits that are done
};

}  // namespace otr
