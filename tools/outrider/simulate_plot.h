// The picture of `outrider simulate --plot`: how many requests are still under way over time, one line a mode.
//
// Thread safety: pure function.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace otr::cli {

struct SimulatedLine {
  std::string name;
  std::vector<double> finish_ms;  // by request, in any order
};

std::string simulation_svg(const std::string& title, std::span<const SimulatedLine> lines);

}  // namespace otr::cli
