// Fits the cost model to profiling sweeps and compares it with the parameters published beside them, in Markdown tables.
//
//   roofline_fit FOLDER [--graphs] [--steady]
//
// FOLDER holds the sweeps of EfficientRollout's authors (their repository's sd_toggle): sweep_NAME.csv, with median
// milliseconds by batch, seq, gamma and mode (target_decode, drafter_decode, target_verify), and NAME.json, with the parameters
// they fitted. Ours are fitted from the CSV alone. Both are scored by the same code, on all depths and, ours fitted on two, on
// the others: R2 of each role; the toggle's regret: by how much the mean time of (speculating where the predicted speedup is at
// least the margin, else not) exceeds that of the better choice; and how often the sign of (speedup - 1) is right where
// measurement is more than 3 % from 1. As in the paper's validation a verification yields depth tokens (tau = gamma). Rows with
// batch 0 are the sweep's warm-up and left out. Beside them stands what no fit can know better: the drafter's own measured
// times at the depths that were fitted to, cell by cell, with the target's passes and verifications as they were measured.
//
// --graphs: a level's rows are rounded up to a multiple of (depth + 1), as vLLM's captured batch sizes are when it speculates.
// --steady: without the drafter's cells that are not of their batch. A sweep's drafter_decode row is the median of all passes
// of a run, also of those before the last sample has come and after the first has gone; its verifications are counted at the
// full batch alone. Left out, of fits and scores, are cells with fewer than half as many verifications as drafter passes, and
// cells that took 3 % less than one of the same depth with no more samples and no more context.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/base/status.h"
#include "spec/cost_fit.h"
#include "spec/cost_model.h"

namespace otr {
namespace {

namespace fs = std::filesystem;

struct Measured {
  CostPoint point;
  int depth = 0;    // 0 for plain decoding, which has none
  int samples = 0;  // passes that it is the median of
};

struct Options {
  bool graphs = false, steady = false;
};

// Milliseconds of a pass of that role at that depth.
using Forecast = std::function<double(CostRole, const PassShape&, int)>;

using Depths = std::set<int>;

struct Sweep {
  std::string name;
  std::vector<Measured> measured;
  Depths depths;

  // Plain decoding, and what was measured at these depths.
  std::vector<CostPoint> points(const Depths& at) const {
    std::vector<CostPoint> chosen;
    for (const Measured& m : measured) {
      if (m.point.role == CostRole::kTarget || at.contains(m.depth)) chosen.push_back(m.point);
    }
    return chosen;
  }
};

// Leaves out the drafter's cells that are not of their batch.
void keep_steady(Sweep* sweep) {
  using Cell = std::tuple<double, double, int>;
  std::map<Cell, int> verifications;
  std::vector<Measured> draft;
  for (const Measured& m : sweep->measured) {
    if (m.point.role == CostRole::kVerify) verifications[{m.point.pass.batch, m.point.pass.context, m.depth}] = m.samples;
    if (m.point.role == CostRole::kDraft) draft.push_back(m);
  }
  std::erase_if(sweep->measured, [&](const Measured& m) {
    if (m.point.role != CostRole::kDraft) return false;
    const PassShape& pass = m.point.pass;
    if (2 * verifications[{pass.batch, pass.context, m.depth}] < m.samples) return true;
    return std::any_of(draft.begin(), draft.end(), [&](const Measured& less) {
      return less.depth == m.depth && less.point.pass.batch <= pass.batch && less.point.pass.context <= pass.context &&
             less.point.ms > 1.03 * m.point.ms;
    });
  });
}

// Reads the columns that are needed, by their names in the first line.
Result<Sweep> read_sweep(const fs::path& path, const Options& options) {
  const std::map<std::string, CostRole> modes = {
      {"target_decode", CostRole::kTarget}, {"drafter_decode", CostRole::kDraft}, {"target_verify", CostRole::kVerify}};
  Sweep sweep;
  std::ifstream file(path);
  std::map<std::string, size_t> columns;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    std::vector<std::string> cells;
    std::stringstream stream(line);
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    if (number == 1) {
      for (size_t i = 0; i < cells.size(); ++i) columns[cells[i]] = i;
      continue;
    }
    try {
      const auto cell = [&](const char* name) { return cells.at(columns.at(name)); };
      const auto mode = modes.find(cell("mode"));
      const int batch = std::stoi(cell("batch")), depth = std::stoi(cell("gamma"));
      if (mode == modes.end() || batch < 1) continue;
      const double samples = batch;
      double rows = samples;
      if (mode->second == CostRole::kVerify) rows = samples * (depth + 1);
      if (mode->second == CostRole::kDraft && options.graphs) rows = std::ceil(samples / (depth + 1)) * (depth + 1);
      sweep.measured.push_back({{mode->second, {samples, rows, std::stod(cell("seq"))}, std::stod(cell("median_ms"))},
                                depth,
                                std::stoi(cell("n_samples"))});
      if (mode->second == CostRole::kVerify) sweep.depths.insert(depth);
    } catch (const std::exception&) {
      return bad_input(path.string() + ":" + std::to_string(number) + ": not a row of a sweep");
    }
  }
  if (sweep.measured.empty()) return bad_input(path.string() + " cannot be read or holds no measurement");
  if (options.steady) keep_steady(&sweep);
  return sweep;
}

Result<CostModel> read_published(const fs::path& path) {
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  try {
    const auto &hardware = json.at("hardware"), &model = json.at("model"), &fitted = json.at("calibration");
    constexpr double kMicro = 1e-6;
    RooflineConstants c;
    c.target_bytes = model.at("W_t");
    c.draft_bytes = model.at("W_d");
    c.draft_factor = fitted.at("eta_d");
    c.kv_bytes = fitted.at("kappa_eff");
    c.dense_flops = model.at("C_dense");
    c.attention_flops = model.at("C_attn");
    c.bandwidth = hardware.at("BW_eff");
    c.compute = fitted.at("F_eff");
    c.target_s = fitted.at("c_T").get<double>() * kMicro;
    c.draft_s = fitted.at("c_D").get<double>() * kMicro;
    c.verify_s = fitted.at("c_V").get<double>() * kMicro;
    return cost_model_from(c);
  } catch (const nlohmann::json::exception&) {
    return bad_input(path.string() + " cannot be read or lacks a parameter");
  }
}

Forecast forecast_of(const CostModel& model) {
  return [model](CostRole role, const PassShape& pass, int) { return model.time_ms(role, pass); };
}

// A drafter's pass takes the mean of what it took at these depths (of those that the sweep has), others what they took.
Forecast remembered(const Sweep& sweep, const Depths& known) {
  return [&sweep, known](CostRole role, const PassShape& pass, int depth) {
    double sum = 0, other = 0;
    int count = 0;
    for (const Measured& m : sweep.measured) {
      const PassShape& p = m.point.pass;
      if (m.point.role != role || p.batch != pass.batch || p.context != pass.context) continue;
      if (role != CostRole::kDraft && m.depth == depth) return m.point.ms;
      if (m.depth == depth) other = m.point.ms;
      if (known.contains(m.depth)) sum += m.point.ms, ++count;
    }
    return count > 0 ? sum / count : other;
  };
}

struct Score {
  std::array<double, kNumCostRoles> r2 = {};
  double regret = 0, regret_with_margin = 0;
  int clear = 0, right = 0;  // points more than 3 % from a speedup of 1, and those whose sign is right
};

double r2_of(const Forecast& forecast, const Sweep& sweep, const Depths& at, CostRole role) {
  double count = 0, sum = 0, squares = 0, missed = 0;
  for (const Measured& m : sweep.measured) {
    if (m.point.role != role || (m.depth != 0 && !at.contains(m.depth))) continue;
    const double ms = m.point.ms, error = forecast(role, m.point.pass, m.depth) - ms;
    ++count, sum += ms, squares += ms * ms, missed += error * error;
  }
  const double spread = squares - sum * sum / count;
  return spread > 0 ? 1 - missed / spread : 1;
}

Score score(const Forecast& forecast, const Sweep& sweep, const Depths& at) {
  using Key = std::tuple<CostRole, double, double, int>;  // batch, context, depth
  std::map<Key, const CostPoint*> by_key;
  for (const Measured& m : sweep.measured) by_key[{m.point.role, m.point.pass.batch, m.point.pass.context, m.depth}] = &m.point;
  const auto find = [&](CostRole role, const PassShape& pass, int depth) {
    const auto it = by_key.find({role, pass.batch, pass.context, depth});
    return it == by_key.end() ? nullptr : it->second;
  };
  Score result;
  for (size_t r = 0; r < kNumCostRoles; ++r) result.r2[r] = r2_of(forecast, sweep, at, static_cast<CostRole>(r));
  int points = 0;
  for (const Measured& m : sweep.measured) {
    if (m.point.role != CostRole::kVerify || !at.contains(m.depth)) continue;
    const CostPoint* target = find(CostRole::kTarget, m.point.pass, 0);
    const CostPoint* draft = find(CostRole::kDraft, m.point.pass, m.depth);
    if (target == nullptr || draft == nullptr) continue;
    const auto speedup = [&](auto ms) {
      return m.depth * ms(*target, 0) / (m.depth * ms(*draft, m.depth) + ms(m.point, m.depth));
    };
    const double real = speedup([](const CostPoint& point, int) { return point.ms; });
    const double foretold = speedup([&](const CostPoint& point, int depth) { return forecast(point.role, point.pass, depth); });
    const auto regret = [&](double margin) { return std::max(1.0, real) / (foretold >= 1 + margin ? real : 1.0) - 1; };
    result.regret += regret(0);
    result.regret_with_margin += regret(0.05);
    ++points;
    if (std::abs(real - 1) <= 0.03) continue;
    ++result.clear;
    result.right += (real > 1) == (foretold > 1);
  }
  if (points > 0) {
    result.regret /= points;
    result.regret_with_margin /= points;
  }
  return result;
}

std::string text_of(const Depths& depths) {
  std::string text;
  for (const int depth : depths) text += (text.empty() ? "" : ", ") + std::to_string(depth);
  return text;
}

void print_score(const char* parameters, const std::string& fitted_on, const Depths& at, const Score& s) {
  const auto r2 = [&](CostRole role) { return s.r2[static_cast<size_t>(role)]; };
  std::printf("| %s | %s | %s | %.3f | %.3f | %.3f | %.2f %% | %.2f %% | %d of %d (%.1f %%) |\n", parameters, fitted_on.c_str(),
              text_of(at).c_str(), r2(CostRole::kTarget), r2(CostRole::kDraft), r2(CostRole::kVerify), 100 * s.regret,
              100 * s.regret_with_margin, s.right, s.clear, s.clear > 0 ? 100.0 * s.right / s.clear : 100.0);
}

Status report(const fs::path& csv, const Options& options) {
  OTR_ASSIGN_OR_RETURN(Sweep sweep, read_sweep(csv, options));
  sweep.name = csv.stem().string().substr(std::string("sweep_").size());
  OTR_ASSIGN_OR_RETURN(const CostModel published, read_published(csv.parent_path() / (sweep.name + ".json")));
  OTR_ASSIGN_OR_RETURN(const CostFit fit, fit_cost_model(sweep.points(sweep.depths)));
  std::printf("\n%s\n\n", sweep.name.c_str());
  std::printf(
      "| parameters | fitted on depths | scored on depths | R2 target | R2 drafter | R2 verify | regret, margin 0 | margin 5 "
      "%% "
      "| right sign |\n|---|---|---|---|---|---|---|---|---|\n");
  print_score("ours", text_of(sweep.depths), sweep.depths, score(forecast_of(fit.model), sweep, sweep.depths));
  print_score("published", "all", sweep.depths, score(forecast_of(published), sweep, sweep.depths));
  print_score("measured", text_of(sweep.depths), sweep.depths, score(remembered(sweep, sweep.depths), sweep, sweep.depths));
  for (const int one : sweep.depths) {
    for (const int other : sweep.depths) {
      if (other <= one) continue;
      const Depths known = {one, other};
      Depths unknown = sweep.depths;
      std::erase_if(unknown, [&](int depth) { return known.contains(depth); });
      OTR_ASSIGN_OR_RETURN(const CostFit held, fit_cost_model(sweep.points(known)));
      print_score("ours", text_of(known), unknown, score(forecast_of(held.model), sweep, unknown));
      print_score("published", "all", unknown, score(forecast_of(published), sweep, unknown));
      print_score("measured", text_of(known), unknown, score(remembered(sweep, known), sweep, unknown));
    }
  }
  std::printf(
      "\n| role | weights_ms | kv_ms | row_ms | attention_ms | sample_ms | context_ms | overlap "
      "|\n|---|---|---|---|---|---|---|---|\n");
  const std::array<const char*, kNumCostRoles> names = {"target", "drafter", "verify"};
  for (size_t r = 0; r < kNumCostRoles; ++r) {
    const RoleCost& c = fit.model.roles[r];
    std::printf("| %s | %.3f | %.2e | %.4f | %.2e | %.4f | %.2e | %.2f |\n", names[r], c.weights_ms, c.kv_ms, c.row_ms,
                c.attention_ms, c.sample_ms, c.context_ms, c.overlap);
  }
  return {};
}

int run(int argc, char** argv) {
  Options options;
  bool usage = argc < 2;
  for (int i = 2; i < argc; ++i) {
    const std::string flag = argv[i];
    options.graphs |= flag == "--graphs";
    options.steady |= flag == "--steady";
    usage |= flag != "--graphs" && flag != "--steady";
  }
  if (usage) {
    std::fputs("usage: roofline_fit FOLDER [--graphs] [--steady]\n", stderr);
    return 2;
  }
  std::vector<fs::path> sweeps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(argv[1], error)) {
    const fs::path& path = entry.path();
    if (path.extension() == ".csv" && path.filename().string().starts_with("sweep_")) sweeps.push_back(path);
  }
  std::sort(sweeps.begin(), sweeps.end());
  Status status = sweeps.empty() ? bad_input(std::string(argv[1]) + ": no sweep_NAME.csv") : Status();
  for (const fs::path& sweep : sweeps) {
    if (status.ok()) status = report(sweep, options);
  }
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 3;
}

}  // namespace
}  // namespace otr

int main(int argc, char** argv) { return otr::run(argc, argv); }
