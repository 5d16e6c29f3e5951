#include "tools/outrider/workload.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "loader/file.h"
#include "tools/outrider/failure.h"
#include "tools/outrider/line_reader.h"
#include "tools/outrider/normal.h"
#include "tools/outrider/status_failure.h"

namespace otr::cli {
namespace {

using nlohmann::json;

constexpr double kLeast = 0.02, kMost = 0.99;
constexpr double kPromptShare = 0.7;  // of the variance of lengths
constexpr int64_t kMostTokens = int64_t{1} << 24;
constexpr uint64_t kMostStatsBytes = uint64_t{64} << 20;

std::vector<float> drawn_p(std::span<const AcceptanceLaw> acceptance, Normal* normal) {
  std::vector<float> p;
  for (const AcceptanceLaw& law : acceptance) p.push_back(law.drawn(normal));
  return p;
}

int32_t tokens_of(const json& line, const char* count, const char* list, int32_t fallback) {
  if (line.contains(list)) {
    if (!line[list].is_array()) throw BadLine(std::string(list) + " must be an array");
    return static_cast<int32_t>(line[list].size());
  }
  if (!line.contains(count)) return fallback;
  const json& value = line[count];
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kMostTokens) {
    throw BadLine(std::string(count) + " must be an integer from 0 to " + std::to_string(kMostTokens));
  }
  return value.get<int32_t>();
}

SimulatedRequest parse_request(std::string_view text, const WorkloadLaw& law, std::span<const AcceptanceLaw> acceptance,
                               Normal* normal, std::vector<std::string>* ids) {
  const json line = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) throw BadLine("is no JSON object");
  SimulatedRequest r;
  r.tokens = tokens_of(line, "tokens", "token_ids", 0);
  r.prompt = tokens_of(line, "prompt_tokens", "prompt_token_ids", law.prompt);
  if (r.tokens < 1) throw BadLine("has neither tokens nor token_ids");
  r.p = drawn_p(acceptance, normal);
  if (ids != nullptr) {
    if (!line.contains("id")) throw BadLine("has no id, which says whose sample it is");
    ids->push_back(line["id"].dump());
  }
  if (!line.contains("p")) return r;
  if (!line["p"].is_object()) throw BadLine("p must be an object");
  for (const auto& [name, value] : line["p"].items()) {
    const auto found =
        std::find_if(acceptance.begin(), acceptance.end(), [&n = name](const auto& a) { return a.drafter == n; });
    if (found == acceptance.end()) throw BadLine("p names a drafter that there is not: " + name);
    if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= 1)) throw BadLine("p must be from 0 to 1");
    r.p[static_cast<size_t>(found - acceptance.begin())] = value.get<float>();
  }
  return r;
}

}  // namespace

float AcceptanceLaw::drawn(Normal* normal) const {
  return static_cast<float>(std::clamp(mean + deviation * (*normal)(), kLeast, kMost));
}

AcceptanceLaw parse_acceptance(const std::string& flag, const std::string& text, double deviation) {
  const auto refuse = [&]() -> Failure {
    return {kExitUsage, "--" + flag + " " + text + ": must be NAME=MEAN[:DEVIATION], both from 0 to 1"};
  };
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) throw refuse();
  AcceptanceLaw law;
  law.drafter = text.substr(0, equals);
  law.deviation = deviation;
  const char* at = text.c_str() + equals + 1;
  for (double* const number : {&law.mean, &law.deviation}) {
    char* end = nullptr;
    *number = std::strtod(at, &end);
    if (end == at || !(*number >= 0 && *number <= 1)) throw refuse();
    at = end;
    if (*at == '\0') return law;
    if (*at++ != ':' || number == &law.deviation) throw refuse();
  }
  return law;
}

std::vector<SimulatedRequest> drawn_requests(const WorkloadLaw& law, std::span<const AcceptanceLaw> acceptance, size_t count) {
  Normal normal(law.seed);
  std::vector<SimulatedRequest> requests(count);
  double prompts = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i % static_cast<size_t>(law.samples) == 0) prompts = normal();
    const double own = law.samples == 1 ? prompts : std::sqrt(kPromptShare) * prompts + std::sqrt(1 - kPromptShare) * normal();
    SimulatedRequest& r = requests[i];
    r.prompt = law.prompt;
    r.tokens = static_cast<int32_t>(std::clamp<double>(std::round(law.median * std::exp(law.sigma * own)), 1, law.most));
    r.p = drawn_p(acceptance, &normal);
  }
  return requests;
}

std::vector<SimulatedRequest> read_requests(const std::string& path, const WorkloadLaw& law,
                                            std::span<const AcceptanceLaw> acceptance, std::vector<std::string>* ids) {
  Normal normal(law.seed);
  std::vector<SimulatedRequest> requests;
  LineReader reader(path);
  std::string_view line;
  for (LineReader::Next next; (next = reader.next(/*may_block=*/true, &line)) != LineReader::Next::kEnd;) {
    const std::string where = reader.name() + ":" + std::to_string(reader.line_number()) + ": ";
    if (next == LineReader::Next::kTooLong) throw Failure(kExitBadInput, where + "is too long");
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    try {
      requests.push_back(parse_request(line, law, acceptance, &normal, ids));
    } catch (const BadLine& bad) {
      throw Failure(kExitBadInput, where + bad.what());
    }
  }
  if (requests.empty()) throw Failure(kExitBadInput, path + ": holds no request");
  return requests;
}

void read_acceptance(const std::string& path, std::vector<AcceptanceLaw>* acceptance) {
  const json stats = json::parse(check_model(read_text_file(path, kMostStatsBytes)), nullptr, /*allow_exceptions=*/false);
  const auto counts = [](const json& drafter, const char* key) {
    return drafter.value(key, json::array()).get<std::vector<double>>();
  };
  bool found = false;
  try {
    for (const auto& [name, drafter] : stats.at("speculation").at("drafters").items()) {
      const std::vector<double> drafted = counts(drafter, "drafted_at_depth"), kept = counts(drafter, "accepted_at_depth");
      double judged = 0, right = 0;
      for (size_t i = 0; i < std::min(drafted.size(), kept.size()); ++i) {
        judged += i == 0 ? drafted[i] : std::min(drafted[i], kept[i - 1]);
        right += kept[i];
      }
      for (AcceptanceLaw& law : *acceptance) {
        if (law.drafter != name || judged <= 0) continue;
        law.mean = std::min(1.0, right / judged);
        found = true;
      }
    }
  } catch (const json::exception&) {
    throw Failure(kExitBadInput, path + ": holds no counts of drafters, as a rollout's --stats do");
  }
  if (!found) throw Failure(kExitBadInput, path + ": counts none of the drafters");
}

}  // namespace otr::cli
