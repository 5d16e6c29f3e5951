#include "tools/outrider/report_charts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <tuple>

#include "tools/outrider/axis_step.h"

namespace otr::cli {
namespace {

// Of a chart's drawing, in its own units; it scales with the page.
constexpr double kWidth = 960, kLeft = 64, kRight = 16, kTop = 12, kBottom = 40;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr size_t kBins = 440;  // two units each

std::string n(double x) { return rounded(x, 1); }

// `name` in at most `most` characters (UTF-8): of a longer one its two ends, since runs often differ in the last words.
std::string shortened(const std::string& name, size_t most) {
  std::vector<size_t> starts;  // of its characters
  for (size_t i = 0; i < name.size(); ++i) {
    if ((static_cast<unsigned char>(name[i]) & 0xC0) != 0x80) starts.push_back(i);
  }
  if (starts.size() <= most) return name;
  const size_t head = most / 2;
  return name.substr(0, starts[head]) + "…" + name.substr(starts[starts.size() - (most - head - 1)]);
}

// Ends and steps of an axis in round numbers.
struct Axis {
  double end, step;
  int decimals;
  explicit Axis(double most, int steps = 5) {
    step = axis_step(most > 0 ? most : steps, steps);
    end = std::max(step, std::ceil(most / step - 1e-9) * step);
    decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  }
};

class Svg {
 public:
  Svg(const char* name, const std::string& label, double height) : height_(height) {
    text_ = "<svg class=\"chart\" data-chart=\"" + std::string(name) + "\" viewBox=\"0 0 " + n(kWidth) + " " + n(height) +
            "\" role=\"img\" aria-label=\"" + html_text(label) + "\">\n";
  }
  double plot_height() const { return height_ - kTop - kBottom; }
  double bottom() const { return height_ - kBottom; }
  double x(double share) const { return kLeft + share * kPlotWidth; }
  double y(double share) const { return bottom() - share * plot_height(); }

  void add(const std::string& element) { text_ += element + "\n"; }
  void text(double x, double y, const char* anchor, const std::string& words) {
    add("<text x=\"" + n(x) + "\" y=\"" + n(y) + "\" text-anchor=\"" + anchor + "\">" + html_text(words) + "</text>");
  }
  void y_axis(const Axis& axis, const std::string& unit = "") {
    for (double v = 0; v <= axis.end * (1 + 1e-9); v += axis.step) {
      const double at = y(v / axis.end);
      add("<line class=\"grid\" x1=\"" + n(kLeft) + "\" x2=\"" + n(kWidth - kRight) + "\" y1=\"" + n(at) + "\" y2=\"" + n(at) +
          "\"/>");
      text(kLeft - 8, at + 4, "end", (axis.decimals == 0 ? grouped(v) : rounded(v, axis.decimals)) + unit);
    }
  }
  void x_axis(const Axis& axis, double end, const std::string& title) {
    for (double v = 0; v <= end * (1 + 1e-9); v += axis.step) {
      add("<line class=\"tick\" x1=\"" + n(x(v / end)) + "\" x2=\"" + n(x(v / end)) + "\" y1=\"" + n(bottom()) + "\" y2=\"" +
          n(bottom() + 4) + "\"/>");
      text(x(v / end), bottom() + 18, "middle", axis.decimals == 0 ? grouped(v) : rounded(v, axis.decimals));
    }
    text(kWidth - kRight, bottom() + 34, "end", title);
  }
  void time_axis(double seconds) { x_axis(Axis(seconds, 8), seconds, "seconds"); }
  std::string done() { return text_ + "</svg>\n"; }

 private:
  double height_;
  std::string text_;
};

// A hue for each set of drafters, in the order of their first tick; the deeper, the darker.
std::vector<std::string> strategy_colours(const std::vector<Strategy>& strategies) {
  constexpr std::array<int, 7> kHues = {212, 24, 150, 280, 48, 340, 185};
  std::vector<std::string> sets;
  int32_t least = 64, most = 0;
  for (const Strategy& s : strategies) {
    if (s.drafters.empty()) continue;
    if (std::find(sets.begin(), sets.end(), s.drafters) == sets.end()) sets.push_back(s.drafters);
    least = std::min(least, s.depth);
    most = std::max(most, s.depth);
  }
  std::vector<std::string> colours;
  for (const Strategy& s : strategies) {
    if (s.drafters.empty()) {
      colours.push_back("var(--plain)");
      continue;
    }
    const size_t set = static_cast<size_t>(std::find(sets.begin(), sets.end(), s.drafters) - sets.begin());
    const double depth = most == least ? 0.5 : static_cast<double>(s.depth - least) / (most - least);
    colours.push_back("hsl(" + std::to_string(kHues[set % kHues.size()]) + " 62% " + n(68 - 30 * depth) + "%)");
  }
  return colours;
}

// Coordinates of a line over the bins; it breaks where `value` has none (NaN).
std::string line_over(const Svg& svg, const std::vector<TimeBin>& bins, const std::function<double(const TimeBin&)>& value) {
  std::string path;
  bool broken = true;
  for (size_t i = 0; i < bins.size(); ++i) {
    const double share = value(bins[i]);
    if (std::isnan(share)) {
      broken = true;
      continue;
    }
    path += std::string(broken ? "M" : "L") + n(svg.x((static_cast<double>(i) + 0.5) / static_cast<double>(bins.size()))) +
            " " + n(svg.y(share));
    if (broken) path += "h0.1";  // a lone bin is a dot
    broken = false;
  }
  return path;
}

double speed_of(const TimeBin& bin) { return bin.seconds > 0 ? bin.tokens / bin.seconds : std::nan(""); }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string rounded(double number, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, number);
  return text;
}

std::string grouped(double number) {
  std::string digits = rounded(number, 0);
  for (size_t at = digits.size(); at > 3 + (digits[0] == '-');) digits.insert(at -= 3, ",");
  return digits;
}

std::vector<TimeBin> time_bins(const TraceRecord& trace, double seconds, size_t count) {
  std::vector<TimeBin> bins(count);
  std::vector<std::map<int32_t, double>> strategies(count);
  const double width = seconds / static_cast<double>(count);
  for (const TickRecord& tick : trace.ticks) {
    const double end = tick.begin + tick.seconds;
    for (size_t i = static_cast<size_t>(tick.begin / width); i < count && static_cast<double>(i) * width < end; ++i) {
      const double left = static_cast<double>(i) * width, inside = std::min(end, left + width) - std::max(tick.begin, left);
      if (inside <= 0) continue;
      const double share = inside / tick.seconds;
      TimeBin& bin = bins[i];
      bin.seconds += inside;
      bin.batch += tick.batch * inside;
      bin.drafted += share * static_cast<double>(tick.drafted);
      bin.accepted += share * static_cast<double>(tick.accepted);
      bin.tokens += share * static_cast<double>(tick.tokens);
      strategies[i][tick.strategy] += inside;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (bins[i].seconds > 0) bins[i].batch /= bins[i].seconds;
    const auto longest = std::max_element(strategies[i].begin(), strategies[i].end(),
                                          [](const auto& a, const auto& b) { return a.second < b.second; });
    if (longest != strategies[i].end()) bins[i].strategy = longest->first;
  }
  return bins;
}

std::string batch_chart(const TraceRecord& trace, double seconds, double batch) {
  Svg svg("batch", "Active batch over time, coloured by strategy", 240);
  const Axis axis(batch, 4);
  svg.y_axis(axis);
  const std::vector<TimeBin> bins = time_bins(trace, seconds, kBins);
  const std::vector<std::string> colours = strategy_colours(trace.strategies);
  std::vector<std::string> areas(trace.strategies.size());
  const double width = kPlotWidth / kBins;
  for (size_t i = 0; i < bins.size(); ++i) {
    if (bins[i].strategy < 0) continue;
    const double left = svg.x(static_cast<double>(i) / kBins);
    areas[static_cast<size_t>(bins[i].strategy)] += "M" + n(left) + " " + n(svg.bottom()) + "V" +
                                                    n(svg.y(bins[i].batch / axis.end)) + "h" + n(width) + "V" +
                                                    n(svg.bottom()) + "z";
  }
  std::map<int32_t, double> lasted;
  double all = 0;
  for (const TickRecord& tick : trace.ticks) lasted[tick.strategy] += tick.seconds, all += tick.seconds;
  std::string legend = "<ul class=\"legend\">";
  std::vector<int32_t> order;
  for (const auto& [strategy, time] : lasted) order.push_back(strategy);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const Strategy &x = trace.strategies[static_cast<size_t>(a)], &y = trace.strategies[static_cast<size_t>(b)];
    return std::tie(x.drafters, x.depth) < std::tie(y.drafters, y.depth);
  });
  for (const int32_t i : order) {
    const size_t at = static_cast<size_t>(i);
    const Strategy& s = trace.strategies[at];
    const std::string name = s.drafters.empty() ? "nothing verified" : s.drafters + ", depth " + std::to_string(s.depth);
    if (!areas[at].empty())
      svg.add("<path class=\"area\" fill=\"" + colours[at] + "\" d=\"" + areas[at] + "\"><title>" + html_text(name) +
              "</title></path>");
    legend += "<li><span class=\"swatch\" style=\"background:" + colours[at] + "\"></span>" + html_text(name) + " <b>" +
              rounded(100 * lasted[i] / all, 1) + "&#8201;%</b></li>";
  }
  svg.time_axis(seconds);
  return svg.done() + legend + "</ul>\n";
}

std::string acceptance_chart(const TraceRecord& trace, double seconds) {
  const std::vector<TimeBin> bins = time_bins(trace, seconds, kBins / 2);
  if (std::none_of(bins.begin(), bins.end(), [](const TimeBin& bin) { return bin.drafted > 0; })) return "";
  Svg svg("acceptance", "Share of drafted tokens that were kept, over time", 180);
  svg.y_axis(Axis(100, 4), "%");
  svg.add("<path class=\"line\" d=\"" +
          line_over(svg, bins, [](const TimeBin& b) { return b.drafted > 0 ? b.accepted / b.drafted : std::nan(""); }) +
          "\"/>");
  svg.time_axis(seconds);
  return svg.done();
}

double greatest_speed(const TraceRecord& trace, double seconds) {
  double most = 0;
  for (const TimeBin& bin : time_bins(trace, seconds, kBins / 4)) most = std::max(most, bin.seconds > 0 ? speed_of(bin) : 0);
  return most;
}

std::string speed_chart(const TraceRecord& trace, double seconds, double speed) {
  Svg svg("speed", "Tokens per second over time", 180);
  const Axis axis(speed, 4);
  svg.y_axis(axis);
  const std::vector<TimeBin> bins = time_bins(trace, seconds, kBins / 4);
  svg.add("<path class=\"line\" d=\"" + line_over(svg, bins, [&axis](const TimeBin& b) { return speed_of(b) / axis.end; }) +
          "\"/>");
  svg.time_axis(seconds);
  return svg.done();
}

// Two bins an octave: response lengths spread over powers of two.
std::string length_chart(const std::vector<int64_t>& sample_tokens) {
  if (sample_tokens.empty()) return "";
  const auto bin_of = [](int64_t tokens) {
    return tokens < 2 ? 0 : static_cast<size_t>(std::floor(2 * std::log2(static_cast<double>(tokens)) + 1e-9));
  };
  const size_t first = bin_of(*std::min_element(sample_tokens.begin(), sample_tokens.end()));
  const size_t last = bin_of(*std::max_element(sample_tokens.begin(), sample_tokens.end()));
  std::vector<int64_t> counts(last - first + 1);
  for (const int64_t tokens : sample_tokens) ++counts[bin_of(tokens) - first];
  Svg svg("lengths", "Tokens of a response, and how many responses", 200);
  const Axis axis(static_cast<double>(*std::max_element(counts.begin(), counts.end())), 4);
  svg.y_axis(axis);
  const double width = kPlotWidth / static_cast<double>(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) {
    const double from = std::ceil(std::exp2(static_cast<double>(first + i) / 2) - 1e-9),
                 left = kLeft + static_cast<double>(i) * width;
    const double until = std::ceil(std::exp2(static_cast<double>(first + i + 1) / 2) - 1e-9) - 1;
    if (counts[i] > 0) {
      const double top = svg.y(static_cast<double>(counts[i]) / axis.end);
      svg.add("<rect class=\"bar\" x=\"" + n(left + 1) + "\" width=\"" + n(std::max(1.0, width - 2)) + "\" y=\"" + n(top) +
              "\" height=\"" + n(svg.bottom() - top) + "\"><title>" + grouped(from) + " to " + grouped(until) +
              " tokens: " + std::to_string(counts[i]) + "</title></rect>");
    }
    if ((first + i) % 2 == 0) svg.text(left, svg.bottom() + 18, "middle", grouped(from));
  }
  svg.text(kWidth - kRight, svg.bottom() + 34, "end", "tokens of a response");
  return svg.done();
}

// Both axes in powers of ten: a rollout's ticks take from one to a hundred times as long as its last ones.
std::string prediction_chart(const TraceRecord& trace) {
  constexpr double kLeastMs = 1e-6;
  std::vector<const TickRecord*> foretold;
  for (const TickRecord& tick : trace.ticks) {
    if (tick.expected_ms > kLeastMs && 1e3 * tick.seconds > kLeastMs && !tick.prefills) foretold.push_back(&tick);
  }
  if (foretold.empty()) return "";
  std::vector<double> errors, times;
  double expected_tokens = 0, tokens = 0;
  for (const TickRecord* tick : foretold) {
    const double observed = 1e3 * tick->seconds;
    errors.push_back(std::abs(tick->expected_ms / observed - 1));
    times.push_back(observed);
    times.push_back(tick->expected_ms);
    expected_tokens += tick->expected_tokens;
    tokens += tick->expected_tokens > 0 ? static_cast<double>(tick->tokens) : 0;
  }
  const auto [least, most] = std::minmax_element(times.begin(), times.end());
  // Ends at 1, 2 or 5 times a power of ten.
  std::vector<double> marks;
  for (double power = std::pow(10, std::floor(std::log10(*least))); marks.empty() || marks.back() < *most; power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (!marks.empty() && marks.back() >= *most) break;
      if (factor * power <= *least) marks.clear();
      marks.push_back(factor * power);
    }
  }
  if (marks.size() == 1) marks.push_back(2 * marks[0]);
  const double from = std::log(marks.front()), octaves = std::log(marks.back()) - from;
  const auto share = [&](double ms) { return (std::log(ms) - from) / octaves; };
  Svg svg("predictions", "Predicted against observed time of a tick", 420);
  for (const double mark : marks) {
    const std::string name = rounded(mark, std::max(0, static_cast<int>(-std::floor(std::log10(mark) + 1e-9))));
    const double x = svg.x(share(mark)), y = svg.y(share(mark));
    svg.add("<line class=\"grid\" x1=\"" + n(kLeft) + "\" x2=\"" + n(kWidth - kRight) + "\" y1=\"" + n(y) + "\" y2=\"" + n(y) +
            "\"/>");
    svg.add("<line class=\"grid\" x1=\"" + n(x) + "\" x2=\"" + n(x) + "\" y1=\"" + n(kTop) + "\" y2=\"" + n(svg.bottom()) +
            "\"/>");
    svg.text(kLeft - 8, y + 4, "end", name);
    svg.text(x, svg.bottom() + 18, "middle", name);
  }
  svg.add("<line class=\"ideal\" x1=\"" + n(svg.x(0)) + "\" y1=\"" + n(svg.y(0)) + "\" x2=\"" + n(svg.x(1)) + "\" y2=\"" +
          n(svg.y(1)) + "\"/>");
  constexpr size_t kMostDots = 3000;
  const size_t every = (foretold.size() + kMostDots - 1) / kMostDots;
  std::string dots;
  for (size_t i = 0; i < foretold.size(); i += every) {
    dots += "M" + n(svg.x(share(1e3 * foretold[i]->seconds))) + " " + n(svg.y(share(foretold[i]->expected_ms))) + "h0.1";
  }
  svg.add("<path class=\"dots\" d=\"" + dots + "\"/>");
  svg.text(kLeft + 8, kTop + 14, "start", "predicted milliseconds");
  svg.text(kWidth - kRight, svg.bottom() + 34, "end", "observed milliseconds");
  std::string note = "<p class=\"note\">Median error " + rounded(100 * median(errors), 1) + "&#8201;% over " +
                     grouped(static_cast<double>(foretold.size())) + " ticks without prompts.";
  if (expected_tokens > 0) note += " Tokens: " + rounded(100 * tokens / expected_tokens, 1) + "&#8201;% of those expected.";
  return svg.done() + note + "</p>\n";
}

std::string bar_chart(const std::vector<Bar>& bars) {
  double most = 0;
  for (const Bar& bar : bars) most = std::max(most, bar.value);
  constexpr double kRow = 30, kNames = 240, kValues = 90;
  constexpr size_t kMostName = 30;  // characters of 7.5 units
  std::string text = "<svg class=\"chart\" data-chart=\"runs\" viewBox=\"0 0 " + n(kWidth) + " " +
                     n(kRow * static_cast<double>(bars.size())) +
                     "\" role=\"img\" aria-label=\"Tokens per second of each run\">\n";
  for (size_t i = 0; i < bars.size(); ++i) {
    const double top = kRow * static_cast<double>(i), width = most > 0 ? (kWidth - kNames - kValues) * bars[i].value / most : 0;
    const std::string middle = n(top + kRow / 2 + 4.5);
    text += "<text x=\"" + n(kNames - 10) + "\" y=\"" + middle + "\" text-anchor=\"end\">" +
            html_text(shortened(bars[i].name, kMostName)) + "<title>" + html_text(bars[i].name) + "</title></text>\n";
    text += "<rect class=\"bar\" x=\"" + n(kNames) + "\" y=\"" + n(top + 5) + "\" width=\"" + n(std::max(1.0, width)) +
            "\" height=\"" + n(kRow - 10) + "\"/>\n";
    text += "<text x=\"" + n(kNames + width + 8) + "\" y=\"" + middle + "\">" + grouped(bars[i].value) + "</text>\n";
  }
  return text + "</svg>\n";
}

}  // namespace otr::cli
