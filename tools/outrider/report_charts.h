// The charts of `outrider report`, as inline SVG. Colours of text, grid and paper come from the page's style, so that one chart
// serves light and dark.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/outrider/run_record.h"

namespace otr::cli {

std::string html_text(std::string_view text);      // escaped
std::string rounded(double number, int decimals);  // "12.3"
std::string grouped(double number);                // "12,345"

// A share of the chart's width, from its left to its right.
struct TimeBin {
  double seconds = 0;  // inside ticks
  double batch = 0;    // mean of these seconds
  double drafted = 0, accepted = 0, tokens = 0;
  int32_t strategy = -1;  // that ran longest; -1: no tick
};
std::vector<TimeBin> time_bins(const TraceRecord& trace, double seconds, size_t count);

// `seconds`, `batch`, `speed`: the axes' ends, the same for all runs of a page.
std::string batch_chart(const TraceRecord& trace, double seconds, double batch);
std::string acceptance_chart(const TraceRecord& trace, double seconds);  // "" where nothing was drafted
std::string speed_chart(const TraceRecord& trace, double seconds, double speed);
double greatest_speed(const TraceRecord& trace, double seconds);      // that the chart would draw
std::string length_chart(const std::vector<int64_t>& sample_tokens);  // "" without samples
// Ticks that were foretold and run no prompt; "" where there is none.
std::string prediction_chart(const TraceRecord& trace);

struct Bar {
  std::string name;
  double value;
};
std::string bar_chart(const std::vector<Bar>& bars);

}  // namespace otr::cli
