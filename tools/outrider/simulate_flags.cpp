#include "tools/outrider/simulate_flags.h"

#include "tools/outrider/failure.h"
#include "tools/outrider/status_failure.h"

namespace otr::cli {

double number_or(const Flags& flags, const char* name, double fallback, double least, double most) {
  return flags.given(name) ? number_flag(name, flags.required(name), least, most) : fallback;
}

int32_t whole_flag(const Flags& flags, const char* name, int32_t fallback) {
  return flags.given(name) ? int_flag(name, flags.required(name), 1) : fallback;
}

ProfileFlag profile_flag(const std::string& text) {
  const size_t colon = text.find(':');
  const bool counted = colon != std::string::npos && colon > 0 && text.find_first_not_of("0123456789") == colon;
  if (!counted) return {1, text};
  return {int_flag("profile", text.substr(0, colon), 1), text.substr(colon + 1)};
}

Profile fitted_profile(const std::string& path) {
  Profile profile = check_model(load_profile(path));
  if (profile.fits.empty()) throw Failure(kExitBadInput, path + ": the profile is not complete");
  return profile;
}

void refuse_flags(const Flags& flags, std::initializer_list<const char*> names, const char* why) {
  for (const char* name : names) {
    if (flags.given(name)) throw Failure(kExitUsage, "--" + std::string(name) + ": " + why);
  }
}

}  // namespace otr::cli
