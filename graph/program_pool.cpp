#include "graph/program_pool.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "kernels/base/clock.h"

namespace otr {

ProgramPool::Entry& ProgramPool::Entry::operator=(Entry&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(number_, other.number_);
  return *this;
}

ProgramPool::Entry::~Entry() {
  if (pool_ == nullptr) return;
  Program& program = pool_->programs_[static_cast<size_t>(number_)];
  pool_->release(&program);
  program = {};
}

int32_t ProgramPool::Entry::bucket_of(int32_t rows) const {
  const std::vector<int32_t>& buckets = pool_->programs_[static_cast<size_t>(number_)].buckets;
  const auto found = std::lower_bound(buckets.begin(), buckets.end(), rows);
  assert(found != buckets.end());
  return *found;
}

void ProgramPool::Entry::launch(int32_t bucket) const {
  const Program& program = pool_->programs_[static_cast<size_t>(number_)];
  const auto at = std::lower_bound(program.buckets.begin(), program.buckets.end(), bucket) - program.buckets.begin();
  assert(program.buckets[static_cast<size_t>(at)] == bucket && !program.captures.empty());
  pool_->accelerator_->launch(program.captures[static_cast<size_t>(at)]);
}

std::vector<int32_t> ProgramPool::buckets(int32_t max_rows) {
  constexpr int32_t kStep = 256;
  std::vector<int32_t> sizes;
  for (int32_t size = 1; size < max_rows; size = size < kStep ? 2 * size : size + kStep) sizes.push_back(size);
  sizes.push_back(max_rows);
  return sizes;
}

Result<ProgramPool::Entry> ProgramPool::add(ProgramRole role, int32_t max_rows, Launches launches) {
  programs_.push_back({.role = role, .launches = std::move(launches), .buckets = buckets(max_rows), .captures = {}});
  Entry entry;  // which empties its place whatever fails from here on
  entry.pool_ = this;
  entry.number_ = static_cast<int32_t>(programs_.size()) - 1;
  OTR_RETURN_IF_ERROR(capture(&programs_.back()));
  return entry;
}

// Largest first: what does not fit is found before anything else was done for it.
Status ProgramPool::capture(Program* program) {
  const Stopwatch time;
  program->captures.assign(program->buckets.size(), {});
  try {
    for (size_t i = program->buckets.size(); i-- > 0;) {
      const int32_t bucket = program->buckets[i];
      const Result<Capture> made = accelerator_->capture([&] { program->launches(bucket); });
      if (!made.ok()) {
        release(program);
        return {made.status().code(), "capturing a program of " + std::to_string(bucket) + " rows: " + made.status().message()};
      }
      program->captures[i] = made.value();
    }
  } catch (...) {  // half a program would be taken for a whole one
    release(program);
    throw;
  }
  capture_seconds_ += time.seconds();
  return {};
}

Status ProgramPool::capture() {
  for (Program& program : programs_) {
    if (program.launches == nullptr || !program.captures.empty()) continue;
    if (Status status = capture(&program); !status.ok()) {
      release();
      return status;
    }
  }
  return {};
}

void ProgramPool::release(Program* program) {
  for (const Capture& c : program->captures) {
    if (c.executable != nullptr) accelerator_->destroy(c);
  }
  program->captures.clear();
}

void ProgramPool::release() {
  for (Program& program : programs_) release(&program);
}

int32_t ProgramPool::num_captures() const {
  size_t count = 0;
  for (const Program& program : programs_) count += program.captures.size();
  return static_cast<int32_t>(count);
}

int64_t ProgramPool::bytes(ProgramRole role) const {
  int64_t bytes = 0;
  for (const Program& program : programs_) {
    if (program.role != role) continue;
    for (const Capture& c : program.captures) bytes += c.bytes;
  }
  return bytes;
}

}  // namespace otr
