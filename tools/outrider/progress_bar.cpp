#include "tools/outrider/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace otr::cli {

ProgressBar::ProgressBar(const std::string& mode) : enabled_(mode == "always" || (mode == "auto" && ::isatty(STDERR_FILENO))) {}

void ProgressBar::update(double fraction, int64_t samples, int64_t tokens) {
  const Clock::time_point now = Clock::now();
  if (!enabled_ || now - last_draw_ < std::chrono::milliseconds(200)) return;
  last_draw_ = now;
  drawn_ = true;
  std::string bar;
  if (fraction >= 0) {
    constexpr int kWidth = 24;
    const int filled = std::clamp(static_cast<int>(fraction * kWidth), 0, kWidth);
    char text[64];
    std::snprintf(text, sizeof text, "[%-*.*s] %3.0f %%  ", kWidth, filled, "########################",
                  100 * std::min(fraction, 1.0));
    bar = text;
  }
  const double seconds = std::chrono::duration<double>(now - start_).count();
  std::fprintf(stderr, "\r\033[K%s%lld samples  %lld tokens  %.0f tokens/s", bar.c_str(), static_cast<long long>(samples),
               static_cast<long long>(tokens), seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0);
  std::fflush(stderr);
}

void ProgressBar::clear() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

void show_status(const std::string& text) {
  if (!::isatty(STDERR_FILENO)) return;
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
}

void show_percent(const char* what, uint64_t done, uint64_t total) {
  const int percent = static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total));
  show_status(done == total ? "" : std::string(what) + " " + std::to_string(percent) + " %");
}

}  // namespace otr::cli
