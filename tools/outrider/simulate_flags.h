// What the two halves of `outrider simulate` read alike: a rollout's (simulate.cpp) and that of training steps
// (simulate_steps.cpp).
//
// Thread safety: pure functions, but for reading files.
#pragma once

#include <string>

#include "runtime/profile_file.h"
#include "tools/outrider/flags.h"

namespace otr::cli {

double number_or(const Flags& flags, const char* name, double fallback, double least, double most);
int32_t whole_flag(const Flags& flags, const char* name, int32_t fallback);  // at least 1

// A --profile's value.
struct ProfileFlag {
  int32_t gpus = 1;
  std::string path;
};
ProfileFlag profile_flag(const std::string& text);
// Throws Failure (bad input) for a profile without fits.
Profile fitted_profile(const std::string& path);

// Throws Failure (usage) if one of these flags is given. `why` ends the message.
void refuse_flags(const Flags& flags, std::initializer_list<const char*> names, const char* why);

}  // namespace otr::cli
