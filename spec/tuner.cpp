#include "spec/tuner.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace otr {
namespace {

constexpr double kDecay = 0.98;      // a tick: some 50 count
constexpr double kPriorWeight = 10;  // ticks that say the model is right
constexpr double kMostWrong = 2;     // a factor beyond this is held for this
constexpr double kFirstTicks = 2;    // what the account begins with, in ticks
constexpr double kMostTicks = 4;     // and what it saves at most
constexpr int64_t kStale = 64;       // ticks after which an arm is looked at again

}  // namespace

size_t Tuner::bucket_of(double rows) {
  const uint32_t n = static_cast<uint32_t>(std::clamp(rows, 1.0, 65536.0));
  return static_cast<size_t>(std::bit_width(n));
}

double Tuner::factor(double rows, int arm) const {
  const Record& r = records_[bucket_of(rows)][static_cast<size_t>(arm)];
  if (!on_ || r.weight == 0) return 1;
  const double tokens = r.tokens + kPriorWeight, ms = r.ms + kPriorWeight;
  return std::clamp(tokens / ms, 1 / kMostWrong, kMostWrong);
}

int Tuner::choose(double rows, std::span<const Arm> arms, double ms) {
  if (ticks_ == 0) account_ms_ = kFirstTicks * ms;
  ++ticks_;
  // What a long good phase saves is not for a bad one that follows.
  account_ms_ = std::min(account_ms_ + kExploring * ms, kMostTicks * ms);
  int best = 0;
  double best_value = 0;
  for (int a = 0; a < static_cast<int>(arms.size()); ++a) {
    const double value = arms[static_cast<size_t>(a)].value * factor(rows, a);
    if (value > best_value) best = a, best_value = value;
  }
  // Of those that might be better, the one that was not seen for longest.
  int oldest = best;
  for (int a = 1; on_ && a < static_cast<int>(arms.size()); ++a) {
    const Arm& arm = arms[static_cast<size_t>(a)];
    if (a == best || arm.extra_ms > account_ms_) continue;
    const int64_t last = last_used_[static_cast<size_t>(a)];
    if (!arm.curious && (arm.hoped <= best_value || (last != 0 && ticks_ - last < kStale))) continue;
    if (oldest == best || last < last_used_[static_cast<size_t>(oldest)]) oldest = a;
  }
  explored_ = oldest != best;
  if (explored_) account_ms_ -= arms[static_cast<size_t>(oldest)].extra_ms;
  last_used_[static_cast<size_t>(oldest)] = ticks_;
  return oldest;
}

void Tuner::observe(double rows, int arm, double expected_tokens, double expected_ms, double tokens, double ms) {
  if (!(expected_tokens > 0 && expected_ms > 0 && ms > 0)) return;
  Record& r = records_[bucket_of(rows)][static_cast<size_t>(arm)];
  // A tick that the machine spent elsewhere says little about the arm.
  const double credible = std::min(ms, 4 * expected_ms);
  for (double* sum : {&r.tokens, &r.ms, &r.weight}) *sum *= kDecay;
  r.tokens += tokens / expected_tokens;
  r.ms += credible / expected_ms;
  r.weight += 1;
}

}  // namespace otr
