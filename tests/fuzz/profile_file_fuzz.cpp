// A profile: what is accepted has numbers that costs can be computed with, and is read back equal when it is written.
#include <cmath>

#include "runtime/profile_file.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace otr::fuzz;
  const auto profile = otr::parse_profile("profile", as_text(data, size));
  if (!profile.ok()) return require_reason(profile.status(), "profile: "), 0;
  const otr::Profile& p = profile.value();
  for (const otr::TimedPass& pass : p.passes) {
    require(pass.point.ms > 0 && pass.point.pass.rows >= pass.point.pass.batch && pass.point.pass.batch >= 1,
            "passes can be fitted");
    require(pass.drafter == otr::TimedPass::kTarget || static_cast<size_t>(pass.drafter) < p.subject.drafters.size(),
            "drafters are there");
  }
  require(p.fits.empty() || p.fits.size() == std::max<size_t>(1, p.subject.drafters.size()), "one fit a drafter");
  for (const otr::CostFit& fit : p.fits) {
    for (const otr::CostRole role : {otr::CostRole::kTarget, otr::CostRole::kDraft, otr::CostRole::kVerify}) {
      const double ms = fit.model.time_ms(role, {4, 16, 1000}), more = fit.model.time_ms(role, {8, 32, 2000});
      require(std::isfinite(more) && ms >= 0 && more >= ms, "times are finite and never fall");
    }
  }
  const std::string text = otr::profile_json(p);
  const auto again = otr::parse_profile("profile", text);
  require(again.ok(), "what is written can be read");
  require(otr::profile_json(again.value()) == text, "and is the same");
  return 0;
}
