// The requests that `outrider simulate` runs: drawn at random with a long tail, or read from a file.
//
// Thread safety: pure functions, but for reading files. Deterministic: the same seed gives the same requests.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sched/simulator.h"

namespace otr::cli {

// A drafter's chance that a token is kept: over requests, a normal law cut at 0.02 and 0.99.
struct AcceptanceLaw {
  std::string drafter;
  double mean = 0.7, deviation = 0.12;

  float drawn(class Normal* normal) const;
};

struct WorkloadLaw {
  uint64_t seed = 0;
  int32_t prompt = 512;                 // tokens
  int32_t median = 2048, most = 20480;  // tokens of a response: log-normal
  double sigma = 1.0;
  int32_t samples = 1;  // of a prompt: 70 % of the variance is the prompt's
};

// Thrown Failures are usage errors.
// NAME=MEAN[:DEVIATION], of the flag of this name.
AcceptanceLaw parse_acceptance(const std::string& flag, const std::string& text, double deviation);

std::vector<SimulatedRequest> drawn_requests(const WorkloadLaw& law, std::span<const AcceptanceLaw> acceptance, size_t count);

// Lines of {"tokens": N, "prompt_tokens": N, "p": {NAME: NUMBER, …}}, of which all but tokens may be left out, or of a
// rollout's output (prompt_token_ids and token_ids). `ids`, if not null, gets each line's id as JSON, which it then must have.
// Throws Failure (bad input) that names file and line.
std::vector<SimulatedRequest> read_requests(const std::string& path, const WorkloadLaw& law,
                                            std::span<const AcceptanceLaw> acceptance, std::vector<std::string>* ids = nullptr);

// The means of the drafters that a rollout's --stats counted: tokens kept of those judged, down its chains. Throws Failure (bad
// input).
void read_acceptance(const std::string& path, std::vector<AcceptanceLaw>* acceptance);

}  // namespace otr::cli
