#include "tools/outrider/run_checkpoint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/outrider/failure.h"

namespace otr::cli {
namespace {

constexpr double kShareOfTime = 0.01;
constexpr int kVersion = 1;

nlohmann::ordered_json to_json(const RunState& s) {
  nlohmann::ordered_json held = nlohmann::ordered_json::array();
  for (const HeldLine& line : s.held) held.push_back({line.tag, line.sample, line.text});
  return {{"version", kVersion},
          {"lines_read", s.lines_read},
          {"input_hash", s.input_hash},
          {"bad_lines", s.bad_lines},
          {"output_bytes", s.output_bytes},
          {"first_tag", s.first_tag},
          {"num_written", s.num_written},
          {"held", held},
          {"num_samples", s.num_samples},
          {"num_failed_samples", s.num_failed_samples},
          {"num_tokens", s.num_tokens}};
}

RunState from_json(const nlohmann::json& j) {
  RunState s;
  j.at("lines_read").get_to(s.lines_read);
  j.at("input_hash").get_to(s.input_hash);
  j.at("bad_lines").get_to(s.bad_lines);
  j.at("output_bytes").get_to(s.output_bytes);
  j.at("first_tag").get_to(s.first_tag);
  j.at("num_written").get_to(s.num_written);
  for (const nlohmann::json& line : j.at("held")) {
    s.held.push_back({line.at(0).get<uint64_t>(), line.at(1).get<uint32_t>(), line.at(2).get<std::string>()});
  }
  j.at("num_samples").get_to(s.num_samples);
  j.at("num_failed_samples").get_to(s.num_failed_samples);
  j.at("num_tokens").get_to(s.num_tokens);
  return s;
}

}  // namespace

uint64_t hash_line(uint64_t hash, std::string_view line) {
  constexpr uint64_t kOffset = 0xcbf29ce484222325ull, kPrime = 0x100000001b3ull;
  if (hash == 0) hash = kOffset;
  for (const char c : line) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  return (hash ^ '\n') * kPrime;
}

RunCheckpoint::RunCheckpoint(std::string path, double seconds, std::string settings)
    : path_(std::move(path)), period_(seconds), settings_(std::move(settings)) {}

std::optional<RunState> RunCheckpoint::resume(otr_engine* engine) const {
  struct stat info;
  if (::stat(path_.c_str(), &info) != 0 && errno == ENOENT) return std::nullopt;
  const auto refuse = [](const std::string& why) -> Failure { return {kExitBadInput, "checkpoint " + why}; };
  size_t size = 0;
  std::string text;
  otr_status status;
  while ((status = otr_checkpoint_user_data(path_.c_str(), text.data(), text.size(), &size)) != OTR_OK && size > text.size())
    text.resize(size);
  if (status != OTR_OK) throw refuse(otr_last_error(nullptr));
  text.resize(size);
  RunState state;
  try {
    const nlohmann::json parsed = nlohmann::json::parse(text);
    if (parsed.at("version") != kVersion) throw refuse(path_ + ": of another version of the program");
    const std::string theirs = parsed.at("settings").get<std::string>();
    if (theirs != settings_) throw refuse(path_ + ": of a run with other settings: " + theirs + "; here they are " + settings_);
    state = from_json(parsed);
  } catch (const nlohmann::json::exception&) {
    throw refuse(path_ + ": not of a rollout");
  }
  if (otr_checkpoint_load(engine, path_.c_str()) != OTR_OK) throw refuse(otr_last_error(engine));
  return state;
}

bool RunCheckpoint::is_due(int64_t num_samples) const {
  const double since = std::chrono::duration<double>(Clock::now() - last_).count();
  return since >= period_ || (num_samples > saved_samples_ && since * kShareOfTime >= last_cost_);
}

void RunCheckpoint::save(otr_engine* engine, const std::function<RunState()>& take) {
  const Clock::time_point start = Clock::now();
  const RunState state = take();
  nlohmann::ordered_json user = to_json(state);
  user["settings"] = settings_;
  const std::string text = user.dump();
  if (otr_checkpoint_save(engine, path_.c_str(), text.data(), text.size()) != OTR_OK) {
    throw Failure(kExitFailure, "checkpoint: " + std::string(otr_last_error(engine)));
  }
  last_ = Clock::now();
  last_cost_ = std::chrono::duration<double>(last_ - start).count();
  seconds_ += last_cost_;
  saved_samples_ = state.num_samples;
  ++num_saved_;
}

void RunCheckpoint::remove() const { ::unlink(path_.c_str()); }

}  // namespace otr::cli
