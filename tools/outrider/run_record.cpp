#include "tools/outrider/run_record.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "tools/outrider/failure.h"

namespace otr::cli {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& where, const std::string& reason) {
  throw Failure(kExitBadInput, where + ": " + reason);
}

// The fields of an object, each checked.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) refuse(where_, "expected an object");
  }

  bool has(const char* key) const { return object_.contains(key); }
  const json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) refuse(where_, "'" + std::string(key) + "' is missing");
    return *found;
  }
  std::string text(const char* key) const {
    const json& value = at(key);
    if (!value.is_string()) refuse(where_, "'" + std::string(key) + "' is no text");
    return value.get<std::string>();
  }
  double number(const char* key) const {
    const json& value = at(key);
    constexpr double kMost = 1e15;
    if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= kMost)) {
      refuse(where_, "'" + std::string(key) + "' is no number from 0 to 1e15");
    }
    return value.get<double>();
  }
  int64_t count(const char* key, int64_t most = 1'000'000'000'000) const {
    const json& value = at(key);
    if (!value.is_number_integer() || value.get<double>() < 0 || value.get<double>() > static_cast<double>(most)) {
      refuse(where_, "'" + std::string(key) + "' is no count from 0 to " + std::to_string(most));
    }
    return value.get<int64_t>();
  }
  int32_t small_count(const char* key) const { return static_cast<int32_t>(count(key, std::numeric_limits<int32_t>::max())); }

 private:
  const json& object_;
  const std::string where_;
};

class TraceReader {
 public:
  std::vector<TraceRecord> read(const std::string& path, std::istream& file) {
    std::string line;
    bool opened = false, closed = false;
    for (int64_t number = 1; std::getline(file, line); ++number) {
      const std::string where = path + ":" + std::to_string(number);
      const bool cut = file.eof();  // no newline: what a full disk left of an event
      if (line.ends_with('\r')) line.pop_back();
      if (line.ends_with(',')) line.pop_back();
      if (line.empty()) continue;
      if (closed) refuse(where, "something follows the end of the trace");
      if (!opened) {
        if (line != "[") refuse(where, "not a trace of outrider: its first line is not '['");
        opened = true;
      } else if (line == "]") {
        closed = true;
      } else {
        json event = json::parse(line, nullptr, /*allow_exceptions=*/false);
        if (event.is_discarded() && cut) break;
        if (event.is_discarded()) refuse(where, "no JSON object a line");
        add(event, where);
      }
    }
    if (!described_) refuse(path, "not a trace of outrider: it does not say who ran");
    std::erase_if(records_, [](const TraceRecord& r) { return r.ticks.empty(); });
    if (records_.empty()) refuse(path, "the trace has no tick");
    double first = records_.front().ticks.front().begin;
    for (const TraceRecord& r : records_) first = std::min(first, r.ticks.front().begin);
    for (TraceRecord& r : records_) {
      for (TickRecord& tick : r.ticks) tick.begin -= first;
      r.policy = policy_, r.isa = isa_, r.num_threads = num_threads_;
      if (r.seconds() <= 0) refuse(path, "the ticks of the trace take no time");
    }
    return std::move(records_);
  }

 private:
  void add(const json& event, const std::string& where) {
    const Fields fields(event, where);
    const std::string name = fields.text("name"), phase = fields.text("ph");
    if (name == "outrider" && phase == "M") describe(Fields(fields.at("args"), where + ": args"));
    if (name == "tick" && phase == "X") add_tick(record_of(fields), fields, Fields(fields.at("args"), where + ": args"), where);
    if (name == "sample" && phase == "i")
      record_of(fields)->sample_tokens.push_back(Fields(fields.at("args"), where + ": args").count("tokens"));
  }

  // A worker's events are a thread's of the trace, from 1 on.
  TraceRecord* record_of(const Fields& event) {
    constexpr int64_t kMostWorkers = 256;
    const size_t worker = static_cast<size_t>(std::max<int64_t>(1, event.count("tid", kMostWorkers))) - 1;
    while (records_.size() <= worker) {
      records_.emplace_back();
      records_.back().worker = static_cast<int32_t>(records_.size()) - 1;
    }
    return &records_[worker];
  }

  void describe(const Fields& args) {
    policy_ = args.text("policy");
    isa_ = args.text("isa");
    num_threads_ = args.small_count("num_threads");
    described_ = true;
  }

  void add_tick(TraceRecord* record, const Fields& event, const Fields& args, const std::string& where) {
    const double begin = 1e-6 * event.number("ts"), seconds = 1e-6 * event.number("dur");
    constexpr double kRounding = 1e-6;
    if (!record->ticks.empty() && begin < record->seconds() - kRounding)
      refuse(where, "the tick begins before the last one ended");
    TickRecord tick{.begin = begin,
                    .seconds = seconds,
                    .batch = args.small_count("batch"),
                    .strategy = strategy(record, args, where),
                    .prefills = false,
                    .drafted = args.count("drafted"),
                    .accepted = args.count("accepted"),
                    .tokens = args.count("tokens"),
                    .expected_ms = 0,
                    .expected_tokens = 0};
    if (tick.accepted > tick.drafted) refuse(where, "more is accepted than was drafted");
    if (tick.drafted == 0) tick.strategy = 0;  // asked, a lookup most often finds nothing
    tick.prefills = args.count("prefill_tokens") > 0;
    if (args.has("expected_ms")) tick.expected_ms = args.number("expected_ms");
    if (args.has("expected_tokens")) tick.expected_tokens = args.number("expected_tokens");
    record->ticks.push_back(tick);
  }

  static int32_t strategy(TraceRecord* record, const Fields& args, const std::string& where) {
    Strategy s;
    const json& drafters = args.at("drafters");
    if (!drafters.is_array()) refuse(where, "'drafters' is no list");
    for (const json& name : drafters) {
      if (!name.is_string()) refuse(where, "a drafter's name is no text");
      s.drafters += (s.drafters.empty() ? "" : "+") + name.get<std::string>();
    }
    if (!s.drafters.empty()) s.depth = args.small_count("depth");
    auto& known = record->strategies;
    const auto found = std::find(known.begin(), known.end(), s);
    if (found != known.end()) return static_cast<int32_t>(found - known.begin());
    constexpr size_t kMostStrategies = 4096;
    if (known.size() == kMostStrategies) refuse(where, "the trace has more than 4096 strategies");
    known.push_back(s);
    return static_cast<int32_t>(known.size()) - 1;
  }

  std::vector<TraceRecord> records_;  // by worker
  std::string policy_, isa_;
  int32_t num_threads_ = 0;
  bool described_ = false;
};

StatsRecord read_stats(const std::string& path, std::istream& file) {
  const json parsed = json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) refuse(path, "neither a trace nor the JSON object that --stats writes");
  const Fields stats(parsed, path), speculation(stats.at("speculation"), path + ": speculation"),
      settings(stats.at("settings"), path + ": settings");
  StatsRecord s{.policy = stats.text("policy"),
                .isa = stats.text("isa"),
                .trace = settings.has("trace") ? settings.text("trace") : "",
                .num_threads = stats.small_count("num_threads"),
                .ticks = stats.count("ticks"),
                .samples = stats.count("samples"),
                .tokens = stats.count("tokens"),
                .batch_peak = stats.count("batch_peak"),
                .drafted = speculation.count("draft_tokens"),
                .accepted = speculation.count("accepted_tokens"),
                .decode_steps = speculation.count("decode_steps"),
                .decode_tokens = speculation.count("decode_tokens"),
                .seconds = stats.number("wall_seconds")};
  if (s.accepted > s.drafted) refuse(path, "more is accepted than was drafted");
  return s;
}

// "x/off.trace.json": "off".
std::string run_name(const std::string& path) {
  const std::filesystem::path stem = std::filesystem::path(path).stem();
  return (stem.extension() == ".trace" || stem.extension() == ".stats" ? stem.stem() : stem).string();
}

RunRecord read_run(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(path, std::string("cannot be read: ") + std::strerror(errno));
  if (std::filesystem::is_directory(path)) refuse(path, "is a folder");
  RunRecord run{.name = run_name(path), .traces = {}, .stats = {}};
  const int first = file.peek();
  if (first == '[') run.traces = TraceReader().read(path, file);
  else if (first == '{') run.stats = read_stats(path, file);
  else refuse(path, first == EOF ? "is empty" : "neither a trace nor the JSON object that --stats writes");
  return run;
}

}  // namespace

std::vector<RunRecord> read_runs(const std::vector<std::string>& paths) {
  std::vector<RunRecord> runs;
  std::vector<std::filesystem::path> files;
  for (const std::string& path : paths) {
    RunRecord run = read_run(path);
    const std::filesystem::path file = std::filesystem::weakly_canonical(path);
    const auto same_run = [&](const RunRecord& other, const std::filesystem::path& other_file) {
      const auto names = [](const RunRecord& stats, const std::filesystem::path& trace) {
        return stats.stats && !stats.stats->trace.empty() && std::filesystem::weakly_canonical(stats.stats->trace) == trace;
      };
      return (names(run, other_file) && !other.traces.empty() && !other.stats) ||
             (names(other, file) && !run.traces.empty() && other.traces.empty());
    };
    size_t at = 0;
    while (at < runs.size() && !same_run(runs[at], files[at])) ++at;
    if (at == runs.size()) {
      runs.push_back(std::move(run));
      files.push_back(file);
    } else if (!run.traces.empty()) {
      runs[at].traces = std::move(run.traces);
    } else {
      runs[at].stats = std::move(run.stats);
    }
  }
  return runs;
}

}  // namespace otr::cli
