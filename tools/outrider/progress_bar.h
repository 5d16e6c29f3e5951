// ProgressBar: one line on stderr that is drawn over, at most five times a second.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace otr::cli {

class ProgressBar {
 public:
  // `mode`: "auto" (only if stderr is a terminal), "always", "never".
  explicit ProgressBar(const std::string& mode);

  // `fraction` of the work that is done; negative: unknown.
  void update(double fraction, int64_t samples, int64_t tokens);
  void clear();  // before anything else is written to stderr, and at the end

 private:
  using Clock = std::chrono::steady_clock;
  bool enabled_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_draw_ = {};
};

// A line of stderr that is drawn over, if stderr is a terminal; "" clears it.
void show_status(const std::string& text);
// For work whose size is known: "what 42 %" on a line of stderr that is drawn over, if stderr is a terminal. REQUIRES: total >
// 0.
void show_percent(const char* what, uint64_t done, uint64_t total);

}  // namespace otr::cli
