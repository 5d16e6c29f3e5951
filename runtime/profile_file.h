// A profile: times of passes on one machine, path, number of threads, model and drafters, and the costs fitted to them, as a
// JSON file.
//
//   {"format": "outrider profile", "format_version": 1, "version": "0.1.0", "commit": "0a340c6", "machine": …, "isa": …,
//    "threads": 2, "target": SHAPE, "drafters": [{"name": …, "shape": SHAPE}, …], "max_batch": 64, "max_context": 4096,
//    "passes": [{"role": "target" | "verify" | "draft", "drafter": NAME (draft only), "batch": …, "rows": …, "context": …,
//    "ms": …}, …], "fits": [{"drafter": NAME | null, "comm_ms": 0, "target": COST, "verify": COST, "draft": COST}, …]}
//
// SHAPE is shape_text(); COST has RoleCost's and Goodness's numbers. "fits" has one entry a drafter, or one of the target
// alone; none while the sweep is under way. A shape that was visited again has a pass for each visit. The times are those of
// kernels and shapes, not of weights: a profile stays right when weights change.
//
// A COST that no fit made, but arithmetic, may have "pass_ms" too. Reading is strict: all other keys are there, none else is,
// and every number is in its range. Errors: kBadInput "FILE: ITEM: REASON", kUnsupported for another format_version, kIoError.
// Thread safety: values, pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "loader/model_config.h"
#include "runtime/cost_calibration.h"
#include "runtime/device.h"
#include "spec/cost_fit.h"

namespace otr {

// What was timed, and what times hold for.
struct ProfileSubject {
  struct Drafter {
    std::string name, shape;
    bool operator==(const Drafter&) const = default;
  };
  std::string machine, isa;
  int32_t threads = 0;
  std::string target;
  std::vector<Drafter> drafters;  // with a model
  bool operator==(const ProfileSubject&) const = default;
};

struct Profile {
  std::string version, commit;  // of the program that measured
  ProfileSubject subject;
  int32_t max_batch = 1, max_context = 0;
  std::vector<TimedPass> passes;
  std::vector<CostFit> fits;  // without residuals
};

// The processor's name as the system gives it.
std::string machine_name();
// The subject of a profile, but its drafters.
ProfileSubject subject_of(const Device& device);
// The sizes that a model's times depend on: "qwen2 layers=24 hidden=896 …".
std::string shape_text(const ModelConfig& config);
// Of what a drafter with a model runs.
std::string drafter_shape(const TimedProgram& timed, const ModelRunner& target);
// Of the sources that this library was built from; "unknown" where they were no git repository.
const char* build_commit();

std::string profile_json(const Profile& profile);
// `label` names the text in errors.
Result<Profile> parse_profile(const std::string& label, std::string_view text);
Result<Profile> load_profile(const std::string& path);
// The file appears when it is complete.
Status save_profile(const Profile& profile, const std::string& path);

// "" if times of `a` hold for `b`, else the reason why not. Drafters of `a` that `b` lacks do not matter.
std::string mismatch(const ProfileSubject& a, const ProfileSubject& b);

// The costs of an engine with these drafters, one of an empty shape has no model: the target's part is the same in all, and one
// without a model costs nothing. kBadInput where the profile, read from `path`, is of something else or not complete.
Result<std::vector<CostModel>> costs_of(const Profile& profile, const std::string& path, const ProfileSubject& engine);

}  // namespace otr
