#include "tools/outrider/step_workload.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tools/outrider/failure.h"
#include "tools/outrider/normal.h"

namespace otr::cli {

StepWorkload drawn_epochs(const WorkloadLaw& law, const EpochLaw& epoch, const AcceptanceLaw& acceptance, size_t num_epochs,
                          size_t num_prompts) {
  Normal normal(law.seed);
  std::vector<double> medians(num_prompts);  // their logarithms
  for (double& median : medians) median = std::log(law.median) + law.sigma * std::sqrt(epoch.prompt_share) * normal();
  const double own = law.sigma * std::sqrt(1 - epoch.prompt_share);
  StepWorkload work;
  for (size_t e = 0; e < num_epochs; ++e) {
    auto& prompts = work.epochs.emplace_back(num_prompts);
    for (size_t q = 0; q < num_prompts; ++q) {
      if (e > 0) medians[q] += std::log(epoch.growth) + epoch.drift * normal();
      for (int32_t i = 0; i < law.samples; ++i) {
        const bool strays = normal.unit() < epoch.strays;
        const double log_tokens = strays ? std::log(law.median) + law.sigma * normal() : medians[q] + own * normal();
        const double tokens = std::round(std::exp(log_tokens));
        prompts[q].push_back({.prompt = law.prompt,
                              .tokens = static_cast<int32_t>(std::clamp<double>(tokens, 1, law.most)),
                              .p = acceptance.drawn(&normal)});
      }
    }
  }
  return work;
}

StepWorkload read_epochs(const std::vector<std::string>& paths, const WorkloadLaw& law, const AcceptanceLaw& acceptance) {
  StepWorkload work;
  std::map<std::string, size_t> prompts;
  for (const std::string& path : paths) {
    std::vector<std::string> ids;
    const std::vector<SimulatedRequest> lines = read_requests(path, law, {&acceptance, 1}, &ids);
    if (work.epochs.empty()) {
      for (const std::string& id : ids) prompts.emplace(id, prompts.size());
    }
    auto& epoch = work.epochs.emplace_back(prompts.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      const auto found = prompts.find(ids[i]);
      if (found == prompts.end())
        throw Failure(kExitBadInput, path + ": has a sample of " + ids[i] + ", which " + paths[0] + " has not");
      epoch[found->second].push_back({.prompt = lines[i].prompt, .tokens = lines[i].tokens, .p = lines[i].p[0]});
    }
    for (const auto& [id, prompt] : prompts) {
      if (epoch[prompt].empty())
        throw Failure(kExitBadInput, path + ": has no sample of " + id + ", which " + paths[0] + " has");
    }
  }
  return work;
}

}  // namespace otr::cli
