// FakeHost: a BatchHost of pure numbers that plays the engine's part and finds fault with the batcher.
//
// Sequences hold page numbers with reference counts, siblings share their prompt's pages, and the pages of a group's prompt
// stay behind as evictable ones that later sequences of the group attach to. tick() schedules, checks every promise that one
// plan makes, and commits it: a sequence that ran up to its newest token gets one more, until it is complete.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "sched/batcher.h"

namespace otr {

struct FakeSequence {
  // The request.
  int32_t num_prompt = 1;
  int32_t max_tokens = 2;      // prompt and response
  int32_t num_siblings = 0;    // samples that start from this one's prompt
  int32_t group = -1;          // sequences of one group share a prompt; -1: of its own
  bool is_score = false;       // all tokens are known and want logits
  bool stops_at_once = false;  // the first token ends it

  // Its life.
  uint64_t age = 0;
  int32_t num_tokens = 0, num_computed = 0;
  std::vector<int32_t> pages = {};
  bool alive = true;
  bool planned = false;  // has run since it last joined

  int32_t num_target() const { return is_score ? num_tokens - 1 : num_tokens; }
};

class FakeHost final : public BatchHost {
 public:
  static constexpr int32_t kPage = 64;

  FakeHost(const BatchLimits& limits, int32_t num_pages)
      : limits_(limits),
        batcher_(limits),
        references_(static_cast<size_t>(num_pages), 0),
        cached_by_(static_cast<size_t>(num_pages), -1) {}

  // Returns the slot. Later is younger.
  int32_t add(FakeSequence s) {
    s.age = next_age_;
    next_age_ += 1 + static_cast<uint64_t>(s.num_siblings);
    s.num_tokens = s.is_score ? s.max_tokens : s.num_prompt;
    return insert(s);
  }

  void cancel(int32_t slot) { finish(at(slot)); }

  // One tick. False if nothing ran.
  bool tick() {
    preempted_.clear();
    plan_ = batcher_.schedule(this);
    check_plan();
    commit();
    ++ticks_;
    return !plan_.empty();
  }

  const Batcher& batcher() const { return batcher_; }
  const std::vector<RowRun>& plan() const { return plan_; }
  std::vector<int32_t> planned_slots() const {
    std::vector<int32_t> slots;
    for (const RowRun& run : plan_) slots.push_back(run.slot);
    return slots;
  }
  const std::vector<int32_t>& preempted() const { return preempted_; }  // of the last tick, while running
  const FakeSequence& sequence(int32_t slot) const { return sequences_[static_cast<size_t>(slot)]; }
  int32_t num_slots() const { return static_cast<int32_t>(sequences_.size()); }
  int64_t ticks() const { return ticks_; }
  int64_t preemptions() const { return preemptions_; }
  int32_t pages_in_use() const { return static_cast<int32_t>(references_.size()) - pages_available(); }
  int32_t used_peak() const { return used_peak_; }
  bool all_done() const {
    return std::none_of(sequences_.begin(), sequences_.end(), [](const FakeSequence& s) { return s.alive; });
  }
  // Takes free pages out of the game.
  void reserve(int32_t count) {
    for (; count > 0; --count) ++references_[static_cast<size_t>(take())];
  }
  // Hands `slot` pages as if it had computed that many positions.
  void give(int32_t slot, int32_t num_computed) {
    FakeSequence& s = at(slot);
    for (int32_t n = (num_computed + kPage - 1) / kPage; n > 0; --n) {
      s.pages.push_back(take());
      ++references_[static_cast<size_t>(s.pages.back())];
    }
    s.num_computed = num_computed;
  }
  void share(int32_t from, int32_t to) {
    at(to).pages = at(from).pages;
    for (const int32_t page : at(to).pages) ++references_[static_cast<size_t>(page)];
    at(to).num_computed = at(from).num_computed;
  }

  // ---- BatchHost ----
  SequenceView view(int32_t slot) const override {
    const FakeSequence& s = sequence(slot);
    return {.num_target = s.num_target(),
            .num_computed = s.num_computed,
            .remaining = s.max_tokens - s.num_tokens,
            .logits_from = s.is_score ? s.num_prompt - 1 : s.num_tokens - 1};
  }
  int32_t pages_available() const override {
    return static_cast<int32_t>(std::count(references_.begin(), references_.end(), 0));
  }
  int32_t pages_held(int32_t slot) const override { return static_cast<int32_t>(sequence(slot).pages.size()); }
  int32_t pages_private(int32_t slot) const override {
    const std::vector<int32_t>& pages = sequence(slot).pages;
    return static_cast<int32_t>(std::count_if(pages.begin(), pages.end(), [this](int32_t p) { return references(p) == 1; }));
  }
  int32_t pages_to_write(int32_t slot, int32_t begin, int32_t end) const override {
    if (begin >= end) return 0;
    const int32_t held = pages_held(slot);
    return std::max(0, (end + kPage - 1) / kPage - held) + (begin / kPage < held && shared(slot, begin / kPage));
  }
  void attach_prefix(int32_t slot) override {
    FakeSequence& s = at(slot);
    EXPECT_TRUE(s.pages.empty());
    if (s.is_score || s.group < 0) return;
    const auto it = cache_.find(s.group);
    if (it == cache_.end()) return;
    const size_t most = static_cast<size_t>((s.num_tokens - 1) / kPage);
    for (size_t i = 0; i < std::min(most, it->second.size()); ++i) {
      s.pages.push_back(it->second[i]);
      ++references_[static_cast<size_t>(it->second[i])];
    }
    s.num_computed = pages_held(slot) * kPage;
  }
  void drop_pages(int32_t slot, bool counted) override {
    FakeSequence& s = at(slot);
    EXPECT_FALSE(counted && is_oldest_running(s)) << "the oldest running sequence gave way";
    EXPECT_FALSE(counted && s.pages.empty()) << "a sequence without pages gave way";
    EXPECT_TRUE(counted || !s.planned) << "a running sequence lost its pages without being preempted";
    give_back(s);
    if (counted) preempted_.push_back(slot);
    preemptions_ += counted;
  }
  void take_pages(int32_t slot, int32_t begin, int32_t end) override {
    FakeSequence& s = at(slot);
    EXPECT_EQ(begin, s.num_computed);
    EXPECT_LE(pages_to_write(slot, begin, end), pages_available()) << "more pages are taken than there are";
    const size_t first = static_cast<size_t>(begin / kPage);
    if (first < s.pages.size() && shared(slot, begin / kPage)) {
      const int32_t copy = take();
      --references_[static_cast<size_t>(s.pages[first])];
      ++references_[static_cast<size_t>(copy)];
      s.pages[first] = copy;
    }
    while (pages_held(slot) * kPage < end) {
      const int32_t page = take();
      ++references_[static_cast<size_t>(page)];
      s.pages.push_back(page);
    }
    used_peak_ = std::max(used_peak_, pages_in_use());
  }

 private:
  FakeSequence& at(int32_t slot) { return sequences_[static_cast<size_t>(slot)]; }
  int32_t references(int32_t page) const { return references_[static_cast<size_t>(page)]; }
  bool shared(int32_t slot, int32_t index) const { return references(sequence(slot).pages[static_cast<size_t>(index)]) > 1; }

  int32_t insert(const FakeSequence& s) {
    sequences_.push_back(s);
    const int32_t slot = num_slots() - 1;
    batcher_.add(slot, s.age);
    return slot;
  }

  // A page nobody holds: one without cached content, or the deepest of some group's cached prompt.
  int32_t take() {
    for (int32_t page = 0; page < static_cast<int32_t>(references_.size()); ++page) {
      if (references(page) == 0 && cached_by_[static_cast<size_t>(page)] < 0) return page;
    }
    for (auto& [group, pages] : cache_) {
      if (pages.empty() || references(pages.back()) > 0) continue;
      const int32_t page = pages.back();
      pages.pop_back();
      cached_by_[static_cast<size_t>(page)] = -1;
      return page;
    }
    ADD_FAILURE() << "no page is left";
    return 0;
  }

  void give_back(FakeSequence& s) {
    for (const int32_t page : s.pages) --references_[static_cast<size_t>(page)];
    s.pages.clear();
    s.num_computed = 0;
    s.planned = false;
  }

  void finish(FakeSequence& s) {
    batcher_.remove(static_cast<int32_t>(&s - sequences_.data()));
    give_back(s);
    s.alive = false;
  }

  // Of those known to run.
  bool is_oldest_running(const FakeSequence& s) const {
    return s.planned && std::none_of(sequences_.begin(), sequences_.end(),
                                     [&s](const FakeSequence& o) { return o.alive && o.planned && o.age < s.age; });
  }

  void check_plan() {
    EXPECT_LE(batcher_.num_running(), limits_.max_batch);
    EXPECT_LE(static_cast<int32_t>(plan_.size()), batcher_.num_running());
    std::set<int32_t> slots;
    int32_t chunk = 0, logits = 0;
    uint64_t last_age = 0;
    for (const RowRun& run : plan_) {
      const FakeSequence& s = sequence(run.slot);
      const SequenceView v = view(run.slot);
      EXPECT_TRUE(s.alive && slots.insert(run.slot).second);
      EXPECT_EQ(run.begin, s.num_computed);
      EXPECT_GT(run.end, run.begin);
      EXPECT_LE(run.end, s.num_target());
      EXPECT_LE(run.end, pages_held(run.slot) * kPage);
      for (int32_t i = run.begin / kPage; i < pages_held(run.slot); ++i)
        EXPECT_FALSE(shared(run.slot, i)) << "a shared page is written";
      EXPECT_TRUE(slots.size() == 1 || s.age > last_age) << "not in order of age";
      last_age = s.age;
      if (s.num_target() - s.num_computed > 1) chunk += run.end - run.begin;
      logits += std::max(0, run.end - std::max(run.begin, v.logits_from));
    }
    EXPECT_LE(chunk, limits_.prefill_chunk);
    EXPECT_LE(logits, limits_.max_logit_rows);
  }

  void commit() {
    for (const RowRun& run : plan_) {
      FakeSequence s = sequence(run.slot);  // siblings may move the array
      at(run.slot).num_computed = run.end;
      at(run.slot).planned = true;
      if (s.is_score) {
        if (run.end == s.num_target()) finish(at(run.slot));
        continue;
      }
      if (run.begin < s.num_prompt && run.end >= s.num_prompt && s.group >= 0 && cache_[s.group].empty()) {
        std::vector<int32_t>& cached = cache_[s.group];
        cached.assign(sequence(run.slot).pages.begin(), sequence(run.slot).pages.begin() + s.num_prompt / kPage);
        for (const int32_t page : cached) cached_by_[static_cast<size_t>(page)] = s.group;
      }
      if (run.end < s.num_tokens) continue;
      for (int32_t i = 0; i < s.num_siblings; ++i) start_sibling(run.slot, s.age + 1 + static_cast<uint64_t>(i));
      at(run.slot).num_siblings = 0;
      if (++at(run.slot).num_tokens == s.max_tokens || s.stops_at_once) finish(at(run.slot));
    }
  }

  void start_sibling(int32_t leader, uint64_t age) {
    FakeSequence s = sequence(leader);
    s.age = age;
    s.num_siblings = 0;
    s.stops_at_once = false;
    s.planned = false;
    ++s.num_tokens;
    for (const int32_t page : s.pages) ++references_[static_cast<size_t>(page)];
    const int32_t slot = insert(s);
    if (s.num_tokens == s.max_tokens) finish(at(slot));
  }

  const BatchLimits limits_;
  Batcher batcher_;
  std::vector<FakeSequence> sequences_;
  std::vector<int32_t> references_;                // by page
  std::vector<int32_t> cached_by_;                 // by page: the group whose prompt it holds, or -1
  std::map<int32_t, std::vector<int32_t>> cache_;  // by group: its prompt's full pages
  uint64_t next_age_ = 1;
  std::vector<RowRun> plan_;
  std::vector<int32_t> preempted_;
  int64_t ticks_ = 0, preemptions_ = 0;
  int32_t used_peak_ = 0;
};

}  // namespace otr
