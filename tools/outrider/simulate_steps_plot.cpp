#include "tools/outrider/simulate_steps_plot.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/append_format.h"
#include "tools/outrider/axis_step.h"

namespace otr::cli {
namespace {

constexpr double kWidth = 860, kLeft = 112, kTop = 52, kRight = 20, kBottom = 40, kPanel = 64, kTrainer = 8, kGap = 14;
constexpr std::array<const char*, 6> kColours = {"#1f6fb4", "#f2a33a", "#2a9d5c", "#c0504d", "#8e6bbf", "#5bb5c5"};

const char* colour_of(int32_t step) { return kColours[static_cast<size_t>(step) % kColours.size()]; }

void append_box(std::string* path, double x, double y, double width, double height) {
  append_format(path, "M%.1f %.1fh%.1fv%.1fh%.1fz", x, y, width, height, -width);
}

// One path a step: of the workers' rows, and of the trainer's below them.
std::string panel(const StepResult& r, int32_t workers, double top, double scale) {
  const double row = kPanel / workers, bar = row > 3 ? row - 0.5 : row;
  std::vector<std::string> paths(r.steps.size());
  for (const WorkerPart& part : r.parts) {
    append_box(&paths[static_cast<size_t>(part.step)], kLeft + part.begin_ms * scale, top + row * part.worker,
               (part.end_ms - part.begin_ms) * scale, bar);
  }
  std::string svg;
  for (size_t s = 0; s < r.steps.size(); ++s) {
    const StepTimes& times = r.steps[s];
    append_box(&paths[s], kLeft + times.train_begin_ms * scale, top + kPanel + 2,
               (times.train_end_ms - times.train_begin_ms) * scale, kTrainer - 2);
    svg += "<path fill=\"" + std::string(colour_of(static_cast<int32_t>(s))) + "\" d=\"" + paths[s] + "\"/>\n";
  }
  return svg;
}

}  // namespace

std::string steps_svg(const std::string& title, int32_t workers, std::span<const StepResult> results) {
  double longest = 1e-9;
  for (const StepResult& r : results) longest = std::max(longest, r.end_ms);
  const double scale = kWidth / longest, panels = (kPanel + kTrainer + kGap) * static_cast<double>(results.size());
  std::string svg;
  append_format(
      &svg,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kLeft + kWidth + kRight, kTop + panels + kBottom);
  svg += "<text x=\"14\" y=\"20\" font-size=\"13\" font-weight=\"bold\">" + title + "</text>\n";
  svg +=
      "<text x=\"14\" y=\"38\" fill=\"#555\">a row is a worker, the bar below them the trainer; a colour is a step, white is "
      "waiting</text>\n";
  for (double s = 0; s <= longest / 1e3; s += axis_step(longest / 1e3, 8)) {
    append_format(&svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", kLeft + s * 1e3 * scale,
                  kTop, kLeft + s * 1e3 * scale, kTop + panels - kGap);
    append_format(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>\n", kLeft + s * 1e3 * scale,
                  kTop + panels + 4, s);
  }
  append_format(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">seconds</text>\n", kLeft + kWidth / 2,
                kTop + panels + 24);
  for (size_t m = 0; m < results.size(); ++m) {
    const double top = kTop + (kPanel + kTrainer + kGap) * static_cast<double>(m);
    svg += panel(results[m], workers, top, scale);
    append_format(&svg, "<text x=\"14\" y=\"%.1f\" font-weight=\"bold\">%s</text>\n", top + kPanel / 2 - 2,
                  step_mode_name(static_cast<StepMode>(m)));
    append_format(&svg, "<text x=\"14\" y=\"%.1f\">%.1f s a step</text>\n", top + kPanel / 2 + 13,
                  results[m].ms_a_step() / 1e3);
  }
  return svg + "</svg>\n";
}

}  // namespace otr::cli
