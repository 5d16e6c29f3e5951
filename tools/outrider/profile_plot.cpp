#include "tools/outrider/profile_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <set>
#include <utility>
#include <vector>

#include "kernels/base/append_format.h"

namespace otr::cli {
namespace {

constexpr double kPanel = 220, kGapX = 70, kGapY = 78, kLeft = 64, kTop = 106;
constexpr int kPanelsInRow = 3;
constexpr double kBand = 0.15;  // drawn around "predicted = measured"

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

// A logarithmic axis over [low, high], drawn along `length` units.
struct Axis {
  double low, high;
  double at(double value) const { return kPanel * std::log(value / low) / std::log(high / low); }
};

class Figure {
 public:
  // The panel's corner.
  double x = 0, y = 0;

  void place(int panel) {
    x = kLeft + panel % kPanelsInRow * (kPanel + kGapX);
    y = kTop + panel / kPanelsInRow * (kPanel + kGapY);
    rows_ = std::max(rows_, panel / kPanelsInRow + 1);
  }
  void text(double dx, double dy, const char* style, const std::string& words) {
    append_format(&body_, "<text x=\"%.1f\" y=\"%.1f\" %s>", x + dx, y + dy, style);
    body_ += escaped(words) + "</text>\n";
  }
  void line(double x1, double y1, double x2, double y2, const char* style) {
    append_format(&body_, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x + x1, y + y1, x + x2, y + y2,
                  style);
  }
  void polyline(const std::vector<std::pair<double, double>>& points, const char* style) {
    body_ += "<polyline fill=\"none\" points=\"";
    for (const auto& [px, py] : points) append_format(&body_, "%.1f,%.1f ", x + px, y + py);
    append_format(&body_, "\" %s/>\n", style);
  }
  void rectangle(double left, double top, double width, double height, const std::string& fill, const char* style) {
    append_format(&body_, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\" %s/>\n", x + left, y + top,
                  width, height, fill.c_str(), style);
  }
  void dot(double cx, double cy, double radius, const char* style) {
    append_format(&body_, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" %s/>\n", x + cx, y + cy, radius, style);
  }
  void frame(const std::string& title, const char* x_label, const char* y_label) {
    rectangle(0, 0, kPanel, kPanel, "none", "stroke=\"#444\"");
    text(kPanel / 2, -8, "text-anchor=\"middle\" font-weight=\"bold\"", title);
    text(kPanel / 2, kPanel + 32, "text-anchor=\"middle\"", x_label);
    append_format(&body_, "<text transform=\"translate(%.1f %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n", x - 42,
                  y + kPanel / 2, y_label);
  }
  void tick_x(double at, const std::string& label) {
    line(at, kPanel, at, kPanel + 4, "stroke=\"#444\"");
    text(at, kPanel + 16, "text-anchor=\"middle\"", label);
  }
  void tick_y(double at, const std::string& label) {
    line(-4, kPanel - at, 0, kPanel - at, "stroke=\"#444\"");
    text(-7, kPanel - at + 4, "text-anchor=\"end\"", label);
  }
  // `lines`: of the heading, the first one bold.
  std::string finish(std::initializer_list<std::string> lines) {
    const double width = kLeft + kPanelsInRow * kPanel + (kPanelsInRow - 1) * kGapX + 24,
                 height = kTop + rows_ * (kPanel + kGapY);
    std::string svg;
    append_format(&svg,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" "
                  "font-size=\"11\">\n",
                  width, height);
    svg += "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
    x = y = 0;
    const std::string panels = std::exchange(body_, {});
    for (const std::string& words : lines) {
      y += 18;
      text(14, 0, &words == lines.begin() ? "font-size=\"13\" font-weight=\"bold\"" : "fill=\"#444\"", words);
    }
    return svg + body_ + panels + "</svg>\n";
  }

 private:
  std::string body_;
  int rows_ = 0;
};

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

const char* role_name(CostRole role) {
  return role == CostRole::kTarget   ? "target, plain decoding"
         : role == CostRole::kVerify ? "target, verification"
                                     : "a level of ";
}

// Measured against predicted times of one role.
void draw_times(const Profile& p, int32_t drafter, CostRole role, Figure* f) {
  const size_t fit = drafter == TimedPass::kTarget ? 0 : static_cast<size_t>(drafter);
  std::vector<std::pair<double, double>> points;
  double low = 1e300, high = 0;
  for (const TimedPass& pass : medians_of(p.passes)) {
    if (pass.drafter != drafter || pass.point.role != role) continue;
    const double predicted = p.fits[fit].model.time_ms(role, pass.point.pass);
    points.emplace_back(std::max(predicted, 1e-9), pass.point.ms);
    low = std::min({low, points.back().first, pass.point.ms});
    high = std::max({high, predicted, pass.point.ms});
  }
  if (points.empty()) return;
  const Axis axis{low / 1.3, high * 1.3};
  const double band = axis.at(axis.low * (1 + kBand));
  std::string title = role_name(role);
  if (role == CostRole::kDraft) title += "'" + p.subject.drafters[fit].name + "'";
  f->line(0, kPanel, kPanel, 0, "stroke=\"#888\"");
  f->line(0, kPanel - band, kPanel - band, 0, "stroke=\"#bbb\" stroke-dasharray=\"3 3\"");
  f->line(band, kPanel, kPanel, band, "stroke=\"#bbb\" stroke-dasharray=\"3 3\"");
  for (const auto& [predicted, ms] : points)
    f->dot(axis.at(predicted), kPanel - axis.at(ms), 2.4, "fill=\"#1f6fb4\" fill-opacity=\"0.6\"");
  for (int exponent = -6; exponent <= 9; ++exponent) {
    for (const double digit : {1.0, 3.0}) {
      const double value = digit * std::pow(10, exponent);
      if (value < axis.low || value > axis.high) continue;
      f->tick_x(axis.at(value), number(value));
      f->tick_y(axis.at(value), number(value));
    }
  }
  const Goodness& g = p.fits[fit].goodness[static_cast<size_t>(role)];
  char text[96];
  std::snprintf(text, sizeof text, "R2 %.3f, median error %.1f %%", g.r2, 100 * g.median_error);
  f->text(8, 16, "fill=\"#333\"", text);
  f->frame(title, "predicted ms", "measured ms");
}

// Red where speculation costs, white where it makes no difference, green where it pays: full at factors of 2.
std::string colour(double speedup) {
  const double strength = std::min(1.0, std::abs(std::log2(speedup)));
  const auto fade = [strength](int full) { return static_cast<int>(std::lround(255 + strength * (full - 255))); };
  char text[16];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", speedup < 1 ? fade(214) : fade(60), speedup < 1 ? fade(96) : fade(160),
                fade(90));
  return text;
}

// The predicted speed-up of the best chain over batch and context, and what was measured.
void draw_frontier(const Profile& p, int32_t drafter, double acceptance, Figure* f) {
  constexpr int kCells = 44;
  const CostModel& costs = p.fits[static_cast<size_t>(drafter)].model;
  const std::vector<TimedPass> medians = medians_of(p.passes);
  std::set<double> batches, contexts;
  for (const TimedPass& pass : medians) {
    batches.insert(pass.point.pass.batch);
    contexts.insert(pass.point.pass.context);
  }
  const Axis batch{*batches.begin() / 1.3, *batches.rbegin() * 1.3}, context{*contexts.begin() / 1.3, *contexts.rbegin() * 1.3};
  const auto value = [](const Axis& axis, int cell) {
    return axis.low * std::pow(axis.high / axis.low, (cell + 0.5) / kCells);
  };
  const double size = kPanel / kCells;
  std::vector<std::vector<bool>> pays(kCells, std::vector<bool>(kCells));
  for (int i = 0; i < kCells; ++i) {
    for (int j = 0; j < kCells; ++j) {
      const double speedup = best_chain(costs, value(batch, i), value(context, j), acceptance).speedup;
      pays[static_cast<size_t>(i)][static_cast<size_t>(j)] = speedup >= 1;
      f->rectangle(i * size, kPanel - (j + 1) * size, size + 0.3, size + 0.3, colour(speedup), "");
    }
  }
  // The border between cells that pay and cells that do not.
  constexpr const char* kBorder = "stroke=\"#1030c0\" stroke-width=\"2\" stroke-linecap=\"square\"";
  for (size_t i = 0; i < kCells; ++i) {
    for (size_t j = 0; j < kCells; ++j) {
      const double left = static_cast<double>(i) * size, bottom = kPanel - static_cast<double>(j) * size;
      if (i > 0 && pays[i][j] != pays[i - 1][j]) f->line(left, bottom, left, bottom - size, kBorder);
      if (j > 0 && pays[i][j] != pays[i][j - 1]) f->line(left, bottom, left + size, bottom, kBorder);
    }
  }
  for (const double b : batches) f->tick_x(batch.at(b), number(b));
  for (const double c : contexts) {
    f->tick_y(context.at(c), number(c));
    for (const double b : batches) {
      const std::optional<BestChain> measured = measured_chain(medians, drafter, b, c, acceptance);
      if (!measured) continue;
      const double cx = batch.at(b), cy = kPanel - context.at(c);
      if (measured->speedup >= 1) {
        f->dot(cx, cy, 3.6, "fill=\"#0a6a2a\" stroke=\"white\"");
      } else {
        f->line(cx - 3.5, cy - 3.5, cx + 3.5, cy + 3.5, "stroke=\"#8a0f0f\" stroke-width=\"2\"");
        f->line(cx - 3.5, cy + 3.5, cx + 3.5, cy - 3.5, "stroke=\"#8a0f0f\" stroke-width=\"2\"");
      }
    }
  }
  char title[96];
  std::snprintf(title, sizeof title, "'%.40s', acceptance %g", p.subject.drafters[static_cast<size_t>(drafter)].name.c_str(),
                acceptance);
  f->frame(title, "samples", "tokens of context");
}

// One batch of the ladder: a line a drafter over acceptance, speed-ups on a logarithmic axis from 1 to `most`.
void draw_rungs(const ProfileLadder& l, size_t batch, double most, Figure* f) {
  constexpr std::array<const char*, 6> kColours = {"#1f6fb4", "#c8501e", "#2a8a4a", "#7a4bb0", "#9a7b10", "#555"};
  const std::vector<double>& acceptances = l.ladder.acceptances;
  const double low = acceptances.front(), high = 1;
  const auto x_at = [&](double p) { return kPanel * (p - low) / (high - low); };
  const Axis axis{0.95, most};
  for (const double p : {0.2, 0.4, 0.6, 0.8, 1.0}) f->tick_x(x_at(p), number(p));
  for (const double s : {1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0}) {
    if (s > most) break;
    f->tick_y(axis.at(s), number(s));
    f->line(0, kPanel - axis.at(s), kPanel, kPanel - axis.at(s), s == 1 ? "stroke=\"#888\"" : "stroke=\"#eee\"");
  }
  for (size_t d = 0; d < l.drafters.size(); ++d) {
    const std::string colour = kColours[d % kColours.size()];
    const std::string stroke = "stroke=\"" + colour + "\" stroke-width=\"1.6\"", fill = "fill=\"" + colour + "\"";
    const auto y_at = [&](size_t a) { return kPanel - axis.at(l.ladder.at(d, batch, a).speedup); };
    std::vector<std::pair<double, double>> points;
    for (size_t a = 0; a < acceptances.size(); ++a) points.emplace_back(x_at(acceptances[a]), y_at(a));
    f->polyline(points, stroke.c_str());
    // The depth, at every tenth of acceptance that drafts.
    for (size_t a = 5; a < acceptances.size(); a += 5) {
      const Rung& rung = l.ladder.at(d, batch, a);
      if (rung.depth == 0) continue;
      f->dot(x_at(acceptances[a]), y_at(a), 2.4, fill.c_str());
      f->text(x_at(acceptances[a]) - 3, y_at(a) - 5, ("font-size=\"9\" text-anchor=\"end\" " + fill).c_str(),
              std::to_string(rung.depth));
    }
    f->text(8, 16 + 13 * static_cast<double>(d), fill.c_str(), l.drafters[d]);
  }
  const int32_t samples = l.ladder.batches[batch];
  f->frame(std::to_string(samples) + (samples == 1 ? " sample" : " samples"), "acceptance", "speed-up");
}

}  // namespace

double chain_tokens(double acceptance, int depth) {
  double tokens = 1, reached = 1;
  for (int d = 0; d < depth; ++d) tokens += reached *= acceptance;
  return tokens;
}

BestChain best_chain(const CostModel& costs, double batch, double context, double acceptance) {
  BestChain best{0, 0};
  for (int depth = 1; depth <= kDeepestChain; ++depth) {
    const double speedup = costs.speedup(batch, context, depth, chain_tokens(acceptance, depth));
    if (speedup > best.speedup) best = {depth, speedup};
  }
  return best;
}

std::optional<BestChain> measured_chain(std::span<const TimedPass> passes, int32_t drafter, double batch, double context,
                                        double acceptance) {
  const auto ms = [&](int32_t of, CostRole role, double rows) -> std::optional<double> {
    for (const TimedPass& pass : passes) {
      const PassShape& p = pass.point.pass;
      if (pass.drafter == of && pass.point.role == role && p.batch == batch && p.rows == rows && p.context == context)
        return pass.point.ms;
    }
    return std::nullopt;
  };
  const auto plain = ms(TimedPass::kTarget, CostRole::kTarget, batch), level = ms(drafter, CostRole::kDraft, batch);
  std::optional<BestChain> best;
  for (int depth = 1; plain && level && depth <= kDeepestChain; ++depth) {
    const auto verify = ms(TimedPass::kTarget, CostRole::kVerify, batch * (depth + 1));
    if (!verify) continue;
    const double speedup = chain_tokens(acceptance, depth) * *plain / (depth * *level + *verify);
    if (!best || speedup > best->speedup) best = {depth, speedup};
  }
  return best;
}

ProfileLadder ladder_of(const Profile& profile, int32_t context, std::span<const double> acceptances) {
  ProfileLadder l{.context = context, .drafters = {}, .ladder = {}};
  std::vector<CostModel> costs;
  for (size_t d = 0; d < profile.subject.drafters.size(); ++d) {
    l.drafters.push_back(profile.subject.drafters[d].name);
    costs.push_back(profile.fits[d].model);
  }
  l.drafters.emplace_back(kLookup);
  costs.push_back(profile.fits[0].model);
  costs.back().roles[static_cast<size_t>(CostRole::kDraft)] = {};
  costs.back().comm_ms = 0;
  std::vector<int32_t> batches;
  for (int64_t batch = 1; batch <= profile.max_batch; batch *= 2) batches.push_back(static_cast<int32_t>(batch));
  l.ladder = make_ladder(costs, batches, acceptances, context, kDeepestRung);
  return l;
}

std::string ladder_svg(const Profile& p, int32_t context) {
  std::vector<double> acceptances;
  for (int i = 20; i <= 98; i += 2) acceptances.push_back(i / 100.0);
  const ProfileLadder l = ladder_of(p, context, acceptances);
  double most = 2;
  for (const Rung& rung : l.ladder.rungs) most = std::max(most, rung.speedup);
  Figure f;
  for (size_t b = 0; b < l.ladder.batches.size(); ++b) {
    f.place(static_cast<int>(b));
    draw_rungs(l, b, most * 1.08, &f);
  }
  return f.finish({p.subject.target,
                   p.subject.machine + ", " + p.subject.isa + ", " + std::to_string(p.subject.threads) + " threads",
                   "The ladder: predicted speed-up of each drafter at its best depth (beside the dots), by the share of its "
                   "tokens that is kept,",
                   "at " + std::to_string(context) + " tokens of context. '" + kLookup + "': a drafter that runs no model"});
}

std::string profile_svg(const Profile& p) {
  Figure f;
  int panel = 0;
  const auto next = [&] { f.place(panel++); };
  next(), draw_times(p, TimedPass::kTarget, CostRole::kTarget, &f);
  next(), draw_times(p, TimedPass::kTarget, CostRole::kVerify, &f);
  const int32_t num_drafters = static_cast<int32_t>(p.subject.drafters.size());
  for (int32_t d = 0; d < num_drafters; ++d) next(), draw_times(p, d, CostRole::kDraft, &f);
  panel = (panel + kPanelsInRow - 1) / kPanelsInRow * kPanelsInRow;
  for (int32_t d = 0; d < num_drafters; ++d) {
    for (const double acceptance : kAcceptances) next(), draw_frontier(p, d, acceptance, &f);
  }
  return f.finish({p.subject.target,
                   p.subject.machine + ", " + p.subject.isa + ", " + std::to_string(p.subject.threads) + " threads",
                   "Below the times: predicted speed-up of the best chain (green: gain, red: loss; the blue line: neither),",
                   "and what the depths that were timed would have brought (dots: gain, crosses: loss)"});
}

}  // namespace otr::cli
