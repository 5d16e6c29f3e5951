// outrider report: runs as one self-contained page of tables and charts. No script, nothing from elsewhere.
#include <algorithm>
#include <cstdio>

#include "tools/outrider/commands.h"
#include "tools/outrider/failure.h"
#include "tools/outrider/flags.h"
#include "tools/outrider/named_files.h"
#include "tools/outrider/output_file.h"
#include "tools/outrider/report_charts.h"
#include "tools/outrider/run_record.h"

namespace otr::cli {
namespace {

constexpr const char* kUsage =
    "Usage: outrider report FILE… -o report.html\n\n"
    "A page about one or several rollouts, from what --trace and --stats wrote. A trace that a stats file names joins its "
    "run.\n";
constexpr const char* kNotes =
    "\nExit codes: 0, 2 usage, 3 a file that is neither a trace nor statistics, with the reason, 4 failure.\n";

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --paper: #fff; --text: #1d2430; --quiet: #667085; --grid: #e6e9ef; --mark: #2f6fb7; --plain: #b9c0cb; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171c; --text: #e4e7ec; --quiet: #98a2b3; --grid: #2a303a; --mark: #6aa9ee; --plain: #566070; }
}
body { margin: 0 auto; max-width: 64rem; padding: 2.5rem 1.5rem 4rem; background: var(--paper); color: var(--text);
       font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.25rem; margin: 3rem 0 .2rem; padding-top: 1.2rem; border-top: 1px solid var(--grid); }
h3 { font-size: .95rem; margin: 1.8rem 0 .4rem; }
p { margin: .3rem 0 1rem; } .quiet, .note { color: var(--quiet); } .note { font-size: .85rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 1.5rem 0; font-size: .82rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .45rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--grid); }
th { font-weight: 600; color: var(--quiet); vertical-align: bottom; } th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
svg.chart { display: block; width: 100%; height: auto; }
svg text { fill: var(--quiet); font-size: 12px; font-variant-numeric: tabular-nums; }
.grid { stroke: var(--grid); } .tick { stroke: var(--quiet); } .ideal { stroke: var(--quiet); stroke-dasharray: 5 4; }
.line { fill: none; stroke: var(--mark); stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.dots { fill: none; stroke: var(--mark); stroke-width: 4; stroke-linecap: round; stroke-opacity: .5; }
.bar { fill: var(--mark); }
.legend { list-style: none; margin: .4rem 0 0; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .82rem; color: var(--quiet); }
.legend b { font-weight: 600; color: var(--text); } .swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .45em; }
)";

// What the table says of a run, from its statistics where there are any.
struct Summary {
  std::string policy, isa;
  int32_t num_threads = 0;
  double seconds = 0, tokens = 0, samples = 0, ticks = 0, batch_peak = 0, longest = 0;
  double drafted = 0, accepted = 0, tokens_a_run = 0;
  double speed() const { return seconds > 0 ? tokens / seconds : 0; }
};

Summary summary_of(const RunRecord& run) {
  Summary s;
  double rows = 0, tokens = 0;
  for (const TraceRecord& t : run.traces) {
    s.policy = t.policy, s.isa = t.isa, s.num_threads = t.num_threads, s.seconds = std::max(s.seconds, t.seconds());
    double batch_peak = 0;
    for (const TickRecord& tick : t.ticks) {
      s.tokens += static_cast<double>(tick.tokens);
      s.drafted += static_cast<double>(tick.drafted);
      s.accepted += static_cast<double>(tick.accepted);
      batch_peak = std::max(batch_peak, static_cast<double>(tick.batch));
      rows += tick.prefills ? 0 : tick.batch;
      tokens += tick.prefills ? 0 : static_cast<double>(tick.tokens);
    }
    s.batch_peak += batch_peak;
    s.ticks += static_cast<double>(t.ticks.size());
    s.samples += static_cast<double>(t.sample_tokens.size());
    for (const int64_t length : t.sample_tokens) s.longest = std::max(s.longest, static_cast<double>(length));
  }
  s.tokens_a_run = rows > 0 ? tokens / rows : 0;
  if (run.stats) {
    const StatsRecord& t = *run.stats;
    s.policy = t.policy, s.isa = t.isa, s.num_threads = t.num_threads, s.seconds = t.seconds;
    s.tokens = static_cast<double>(t.tokens), s.samples = static_cast<double>(t.samples),
    s.ticks = static_cast<double>(t.ticks);
    s.batch_peak = static_cast<double>(t.batch_peak), s.drafted = static_cast<double>(t.drafted),
    s.accepted = static_cast<double>(t.accepted);
    s.tokens_a_run = t.decode_steps > 0 ? static_cast<double>(t.decode_tokens) / static_cast<double>(t.decode_steps) : 0;
  }
  return s;
}

std::string table_of(const std::vector<RunRecord>& runs, const std::vector<Summary>& summaries) {
  std::string text =
      "<div class=\"scroll\"><table>\n<thead><tr><th>run</th><th>policy</th><th>seconds</th><th>tokens</th><th>tokens<br>per "
      "second</th><th>against<br>the first</th>"
      "<th>samples</th><th>longest</th><th>largest<br>batch</th><th>ticks</th><th>tokens a sample<br>and "
      "tick</th><th>drafts<br>kept</th></tr></thead>\n<tbody>\n";
  const auto or_none = [](bool known, const std::string& value) { return known ? value : std::string("–"); };
  for (size_t i = 0; i < runs.size(); ++i) {
    const Summary& s = summaries[i];
    text += "<tr><td>" + html_text(runs[i].name) + "</td>";
    for (const std::string& cell :
         {html_text(s.policy), rounded(s.seconds, 2), grouped(s.tokens), grouped(s.speed()),
          or_none(s.speed() > 0 && summaries[0].speed() > 0,
                  rounded(summaries[0].speed() > 0 ? s.speed() / summaries[0].speed() : 0, 2) + "×"),
          grouped(s.samples), or_none(s.longest > 0, grouped(s.longest)), grouped(s.batch_peak), grouped(s.ticks),
          or_none(s.tokens_a_run > 0, rounded(s.tokens_a_run, 2)),
          or_none(s.drafted > 0, rounded(s.drafted > 0 ? 100 * s.accepted / s.drafted : 0, 1) + "&#8201;%")}) {
      text += "<td>" + cell + "</td>";
    }
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

std::string titled(const char* title, const std::string& chart, const char* without) {
  return std::string("<h3>") + title + "</h3>\n" +
         (chart.empty() ? std::string("<p class=\"note\">") + without + "</p>\n" : chart);
}

// What one worker did. The axes are those of all.
std::string section_of(const RunRecord& run, const TraceRecord& trace, double seconds, double batch, double speed) {
  const std::string name = run.traces.size() == 1 ? run.name : run.name + ", worker " + std::to_string(trace.worker);
  std::string text = "<section>\n<h2>" + html_text(name) + "</h2>\n<p class=\"quiet\">policy " + html_text(trace.policy) +
                     ", " + html_text(trace.isa) + ", " + std::to_string(trace.num_threads) + " threads</p>\n";
  text += titled("Active batch, by drafters and how deep they may draft", batch_chart(trace, seconds, batch), "");
  text += titled("Drafted tokens that were kept", acceptance_chart(trace, seconds), "Nothing was drafted.");
  text += titled("Tokens per second", speed_chart(trace, seconds, speed), "");
  text += titled("Lengths of the responses", length_chart(trace.sample_tokens), "No response was finished.");
  text += titled("Time of a tick, predicted against observed", prediction_chart(trace), "This policy foretells no times.");
  return text + "</section>\n";
}

std::string page(const std::vector<RunRecord>& runs) {
  std::vector<Summary> summaries;
  std::vector<Bar> bars;
  double seconds = 0, batch = 0, speed = 0;
  for (const RunRecord& run : runs) {
    summaries.push_back(summary_of(run));
    bars.push_back({run.name, summaries.back().speed()});
    if (run.traces.empty()) continue;
    for (const TraceRecord& trace : run.traces) seconds = std::max(seconds, trace.seconds());
    batch = std::max(batch, summaries.back().batch_peak);
  }
  for (const RunRecord& run : runs) {
    for (const TraceRecord& trace : run.traces) speed = std::max(speed, greatest_speed(trace, seconds));
  }
  std::string text =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>Outrider: " +
      (runs.size() == 1 ? html_text(runs[0].name) : std::to_string(runs.size()) + " runs") + "</title>\n<style>" + kStyle +
      "</style>\n</head>\n<body>\n<h1>" + (runs.size() == 1 ? "A rollout" : std::to_string(runs.size()) + " rollouts") +
      "</h1>\n";
  text += table_of(runs, summaries) + titled("Tokens per second", bar_chart(bars), "");
  for (const RunRecord& run : runs) {
    for (const TraceRecord& trace : run.traces) text += section_of(run, trace, seconds, batch, speed);
  }
  return text + "</body>\n</html>";
}

}  // namespace

int report_command(int argc, char** argv) {
  const Flag table[] = {{"o", "FILE.html", "the page; - is standard output (required)"}};
  if (printed_help(table, argc, argv, kUsage, kNotes)) return kExitOk;
  constexpr size_t kMostFiles = 1000;
  const Flags flags(table, argc, argv, kMostFiles);
  if (flags.positional().empty()) throw Failure(kExitUsage, "a FILE is required: what --trace or --stats wrote");
  OutputFile output(flags.required("o"));
  refuse_shared_files(flags, {}, {"o"});
  const std::string text = page(read_runs(flags.positional()));
  output.start();
  output.write_line(text);
  output.close();
  return kExitOk;
}

}  // namespace otr::cli
