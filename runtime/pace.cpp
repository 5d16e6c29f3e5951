#include "runtime/pace.h"

#include <algorithm>
#include <utility>

namespace otr {

const PacedDrafter* PaceOptions::drafter(const std::string& name) const {
  const auto at = std::find_if(drafters.begin(), drafters.end(), [&name](const PacedDrafter& d) { return d.name == name; });
  return at == drafters.end() ? nullptr : &*at;
}

PacedLevels::PacedLevels(Pace* worker, const PaceOptions* options, const std::string& name) {
  const PacedDrafter* const drafter = options != nullptr ? options->drafter(name) : nullptr;
  if (drafter == nullptr) return;
  pace = worker;
  cost = drafter->cost.role(CostRole::kDraft);
  cost.pass_ms += drafter->cost.comm_ms;
  dial = drafter->dial;
}

void PacedLevels::hold(const RowBatch& rows) const {
  if (pace != nullptr) pace->hold(cost.time_ms(pass_shape(rows.num_segments, rows)));
}

PassShape pass_shape(double batch, const RowBatch& rows) {
  double context = 0;
  for (int32_t row = 0; row < rows.num_rows; ++row) context += rows.positions[row];
  const double num_rows = rows.num_rows;
  return {.batch = batch,
          .rows = num_rows,
          .context = num_rows == 0 ? 0 : context / num_rows,
          .silent = num_rows - rows.num_logit_rows};
}

// ---- The clock -----------------------------------------------------------------------------------------------------------

PaceClock::PaceClock(double scale, size_t num_sleepers, int64_t start_ns)
    : scale_(scale), start_(std::chrono::duration_cast<Wall::duration>(std::chrono::nanoseconds(start_ns))) {
  asleep_.reserve(num_sleepers);
}

double PaceClock::now_ms() const {
  if (!is_virtual()) return std::chrono::duration<double, std::milli>(Wall::now() - start_).count() / scale_;
  const std::lock_guard<std::mutex> lock(mutex_);
  return now_ms_;
}

void PaceClock::enter() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++computing_;
}

void PaceClock::leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  --computing_;
  advance();
}

void PaceClock::sleep(Sleeper* s, double until_ms, bool may_be_called) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (may_be_called && std::exchange(s->called, false)) return;
  s->until = until_ms;
  s->may_be_called = may_be_called;
  s->asleep = true;
  asleep_.push_back(s);
  --computing_;
  advance();
  const auto is_awake = [s] { return !s->asleep; };
  if (is_virtual() || until_ms == kForever) return s->woken.wait(lock, is_awake);
  const auto due =
      start_ + std::chrono::duration_cast<Wall::duration>(std::chrono::duration<double, std::milli>(until_ms * scale_));
  if (!s->woken.wait_until(lock, due, is_awake)) rouse(s);
}

void PaceClock::call(Sleeper* s) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (s->asleep && s->may_be_called) rouse(s);
  else s->called = true;
}

// On behalf of the sleeper: no time may pass before it goes on.
void PaceClock::rouse(Sleeper* s) {
  s->asleep = false;
  std::erase(asleep_, s);
  ++computing_;
  s->woken.notify_one();
}

void PaceClock::advance() {
  if (!is_virtual() || computing_ > 0 || asleep_.empty()) return;
  const auto sooner = [](const Sleeper* a, const Sleeper* b) { return a->until < b->until; };
  const double next = (*std::min_element(asleep_.begin(), asleep_.end(), sooner))->until;
  if (next == kForever) return;
  now_ms_ = std::max(now_ms_, next);
  for (size_t i = asleep_.size(); i-- > 0;) {
    if (asleep_[i]->until <= now_ms_) rouse(asleep_[i]);
  }
}

// ---- A worker ------------------------------------------------------------------------------------------------------------

void Pace::begin() {
  clock_.enter();
  begins_ms_ = computes_ms_ = now_ms();
}

void Pace::hold(double ms) {
  ++num_pauses_;
  const double done = now_ms(), due = begins_ms_ + ms;
  stats_.add_pass(ms, done - computes_ms_);
  computes_ms_ = done;
  begins_ms_ = due;
  if (done > due) {
    ++stats_.late;
    stats_.late_ms += done - due;
    stats_.worst_late_ms = std::max(stats_.worst_late_ms, done - due);
    if (done - due > ms) begins_ms_ = done;
    return;
  }
  clock_.sleep(&sleeper_, due, false);
  computes_ms_ = now_ms();
  stats_.overshoot_ms += computes_ms_ - due;
}

void Pace::idle() {
  clock_.sleep(&sleeper_, now_ms() + kIdleMs, false);
  begins_ms_ = computes_ms_ = now_ms();
}

void Pace::wait(double limit_ms) {
  ++num_pauses_;
  clock_.sleep(&sleeper_, now_ms() + limit_ms, true);
  begins_ms_ = computes_ms_ = now_ms();
}

}  // namespace otr
