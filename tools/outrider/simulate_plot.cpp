#include "tools/outrider/simulate_plot.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/append_format.h"
#include "tools/outrider/axis_step.h"

namespace otr::cli {
namespace {

constexpr double kWidth = 640, kHeight = 300, kLeft = 64, kTop = 44, kRight = 150, kBottom = 46;
constexpr int kPoints = 160;  // of a line
constexpr std::array<const char*, 7> kColours = {"#777777", "#b8860b", "#1f6fb4", "#2a9d5c", "#8e44ad", "#17a2b8", "#c0392b"};

}  // namespace

std::string simulation_svg(const std::string& title, std::span<const SimulatedLine> lines) {
  double longest = 1e-9, most = 1;
  for (const SimulatedLine& line : lines) {
    most = std::max(most, static_cast<double>(line.finish_ms.size()));
    for (const double ms : line.finish_ms) longest = std::max(longest, ms / 1e3);
  }
  std::string svg;
  append_format(
      &svg,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kLeft + kWidth + kRight, kTop + kHeight + kBottom);
  svg += "<text x=\"14\" y=\"20\" font-size=\"13\" font-weight=\"bold\">" + title + "</text>\n";
  const auto x = [longest](double seconds) { return kLeft + kWidth * seconds / longest; };
  // By the logarithm: the last few requests decide. Below one: none.
  const double decades = std::log10(most) + 0.15;
  const auto y = [decades](double requests) {
    return kTop + kHeight * (1 - (requests < 1 ? 0 : (std::log10(requests) + 0.15) / decades));
  };
  for (double s = 0; s <= longest; s += axis_step(longest, 5)) {
    append_format(&svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", x(s), kTop, x(s),
                  kTop + kHeight);
    append_format(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>\n", x(s), kTop + kHeight + 16, s);
  }
  for (double n = 1; n <= most; n *= 10) {
    append_format(&svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", kLeft, y(n),
                  kLeft + kWidth, y(n));
    append_format(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", kLeft - 6, y(n) + 4, n);
  }
  append_format(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">seconds</text>\n", kLeft + kWidth / 2,
                kTop + kHeight + 36);
  append_format(&svg, "<text transform=\"translate(16 %.1f) rotate(-90)\" text-anchor=\"middle\">requests under way</text>\n",
                kTop + kHeight / 2);
  for (size_t i = 0; i < lines.size(); ++i) {
    std::vector<double> finish = lines[i].finish_ms;
    std::sort(finish.begin(), finish.end());
    const char* const colour = kColours[i % kColours.size()];
    append_format(&svg, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" points=\"", colour);
    for (int point = 0; point <= kPoints; ++point) {
      const double s = finish.empty() ? 0 : finish.back() / 1e3 * point / kPoints;
      const auto left = finish.end() - std::upper_bound(finish.begin(), finish.end(), s * 1e3);
      append_format(&svg, "%.1f,%.1f ", x(s), y(point == kPoints ? 0.0 : static_cast<double>(left)));
    }
    svg += "\"/>\n";
    const double at = kTop + 14 + 18 * static_cast<double>(i);
    append_format(&svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\"/>\n",
                  kLeft + kWidth + 12, at - 4, kLeft + kWidth + 34, at - 4, colour);
    append_format(&svg, "<text x=\"%.1f\" y=\"%.1f\">%s %.0f s</text>\n", kLeft + kWidth + 40, at, lines[i].name.c_str(),
                  finish.empty() ? 0 : finish.back() / 1e3);
  }
  return svg + "</svg>\n";
}

}  // namespace otr::cli
