// The engine's main path: one tick, from the schedule to the committed tokens.
#include <algorithm>
#include <cassert>

#include "kernels/base/clock.h"
#include "runtime/engine.h"
#include "spec/verify.h"

namespace otr {
namespace {

// One text for both places a fault can show: which of them sees it first depends on the chunks.
constexpr const char* kNotFinite = "a key, value or logit is NaN or Inf";

}  // namespace

// One tick. False if there was nothing to run.
bool Engine::step() {
  const Stopwatch tick;
  page_work_.clear();
  const std::vector<RowRun>& runs = batcher_.schedule(this);  // schedule: who runs which positions, on which pages
  if (runs.empty()) return false;
  assemble(runs);
  const Stopwatch kernels;
  worker_->run(page_work_, rows_.batch());  // run: page copies, then the forward program
  draw(runs);                               // verify: the target's own draw at every row that wants one …
  tick_stats_.kernel_seconds += kernels.seconds();
  commit(runs);                             // commit: … kept, with its pages; finished samples leave
  ++tick_stats_.ticks;
  tick_stats_.busy_seconds += tick.seconds();
#ifndef NDEBUG
  if (const Status status = check_pages(); !status.ok()) fail_all(status.message());
#endif
  return true;
}

void Engine::assemble(const std::vector<RowRun>& runs) {
  rows_.clear();
  first_logits_.clear();
  for (const RowRun& run : runs) {
    const Sequence& s = live(run.slot);
    const std::span<const int32_t> tokens(s.tokens.data() + run.begin, static_cast<size_t>(run.end - run.begin));
    first_logits_.push_back(rows_.add(tokens, run.begin, s.pages.pages(), s.logits_from()));
    tick_stats_.prefill_tokens += run.end - run.begin - (run.end == s.num_tokens() ? 1 : 0);
  }
  tick_stats_.kv_pages_peak = std::max(tick_stats_.kv_pages_peak, worker_->page_pool().num_in_use());
  tick_stats_.batch_peak = std::max(tick_stats_.batch_peak, batcher_.num_running());
}

// Lists the tick's draws in the order commit() takes them, and draws. A prompt's last row serves every sample of its group.
void Engine::draw(const std::vector<RowRun>& runs) {
  draws_.clear();
  for (size_t i = 0; i < runs.size(); ++i) {
    const Sequence& s = live(runs[i].slot);
    if (scores_row_by_row(s)) continue;
    int32_t logits_row = first_logits_[i];
    for (int32_t row = std::max(runs[i].begin, s.logits_from()); row < runs[i].end; ++row, ++logits_row) {
      draws_.push_back(s.draw(logits_row, row + 1, s.group->is_score ? s.tokens[static_cast<size_t>(row) + 1] : -1));
      if (s.group->is_score) continue;
      for (const auto& sibling : s.group->blocked) draws_.push_back(sibling->draw(logits_row, row + 1, -1));
    }
  }
  results_.resize(draws_.size());
  worker_->draw(draws_.data(), static_cast<int32_t>(draws_.size()), results_.data());
}

void Engine::commit(const std::vector<RowRun>& runs) {
  size_t next_draw = 0;
  int32_t first_row = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const RowRun& run = runs[i];
    Sequence* s = &live(run.slot);
    const int32_t num_rows = run.end - run.begin;
    const int32_t num_draws = scores_row_by_row(*s) ? 0 : std::max(0, run.end - std::max(run.begin, s->logits_from()));
    const SampleResult* drawn = results_.data() + next_draw;
    next_draw += static_cast<size_t>(num_draws);
    if (num_draws > 0 && !s->group->is_score) next_draw += s->group->blocked.size();
    s->num_computed = run.end;
    const bool faulted = rows_faulted(first_row, num_rows);
    first_row += num_rows;
    if (!s->group->is_score && run.begin < s->num_prompt() && run.end >= s->num_prompt() && !faulted) {
      worker_->prefix_cache().insert(s->tokens, s->pages.pages(), s->num_prompt() / kPageTokens);
    }
    if (faulted) {
      finish(s, OTR_FINISH_ERROR, kNotFinite);
    } else if (s->group->is_score) {
      for (int32_t d = 0; d < num_draws; ++d) record_score(s, drawn[d]);
      commit_score(s, run, first_logits_[i]);
    } else if (num_draws > 0) {
      // Samples that waited for this prompt take their own first draws and share its pages before it may finish.
      std::vector<std::unique_ptr<Sequence>> blocked = std::move(s->group->blocked);
      s->group->blocked.clear();
      for (size_t b = 0; b < blocked.size(); ++b) {
        Sequence* sibling = blocked[b].get();
        --num_blocked_;
        start(std::move(blocked[b]));
        sibling->pages.share_from(s->pages, &worker_->page_pool());
        sibling->num_computed = s->num_computed;
        commit_sequence(sibling, drawn[1 + b]);
      }
      commit_sequence(s, drawn[0]);
    }
  }
}

bool Engine::rows_faulted(int32_t first_row, int32_t num_rows) const {
  const uint8_t* fault = worker_->program().fault() + first_row;
  return std::any_of(fault, fault + num_rows, [](uint8_t f) { return f != 0; });
}

// Appends what the target drew; `drawn` is the draw after the sequence's newest token.
void Engine::commit_sequence(Sequence* s, const SampleResult& drawn) {
  if (drawn.fault != 0) {
    finish(s, OTR_FINISH_ERROR, kNotFinite);
    return;
  }
  const std::vector<int32_t>& stops = s->group->stop_ids;
  s->tokens.push_back(drawn.token);
  s->logprobs.push_back(drawn.logprob);
  s->raw_logprobs.push_back(drawn.raw_logprob);
  s->note_penalty(drawn.token, true);
  ++tick_stats_.generated_tokens;
  if (std::binary_search(stops.begin(), stops.end(), drawn.token)) finish(s, OTR_FINISH_STOP);
  else if (s->num_tokens() == s->max_tokens) finish(s, OTR_FINISH_LENGTH);
}

void Engine::record_score(Sequence* s, const SampleResult& scored) {
  if (scored.fault != 0 && s->error.empty()) s->error = kNotFinite;
  s->logprobs.push_back(scored.logprob);
  s->raw_logprobs.push_back(scored.raw_logprob);
  s->note_penalty(scored.token, true);
  ++tick_stats_.scored_tokens;
}

// Penalised scores go row by row, since each row's penalties see the tokens before it; then any score that is complete ends.
void Engine::commit_score(Sequence* s, const RowRun& run, int32_t first_logit) {
  if (scores_row_by_row(*s)) {
    int32_t logits_row = first_logit;
    for (int32_t row = std::max(run.begin, s->logits_from()); row < run.end; ++row, ++logits_row) {
      const SampleDraw draw = s->draw(logits_row, row + 1, s->tokens[static_cast<size_t>(row) + 1]);
      SampleResult scored;
      worker_->draw(&draw, 1, &scored);
      record_score(s, scored);
    }
  }
  if (!s->error.empty()) finish(s, OTR_FINISH_ERROR, s->error);
  else if (run.end == s->num_target()) finish(s, OTR_FINISH_SCORE);
}

// ---- What the batcher may ask and do -------------------------------------------------------------------------------------

SequenceView Engine::view(int32_t slot) const {
  const Sequence& s = live(slot);
  return {.num_target = s.num_target(), .num_computed = s.num_computed, .remaining = s.max_tokens - s.num_tokens(),
          .logits_from = s.logits_from()};
}

void Engine::attach_prefix(int32_t slot) {
  Sequence& s = live(slot);
  if (s.group->is_score) return;  // a score recomputes everything
  s.num_computed = s.prefix_hit = s.pages.attach_prefix(&worker_->prefix_cache(), s.tokens);
  tick_stats_.prefix_hit_tokens += s.prefix_hit;
}

void Engine::drop_pages(int32_t slot, bool counted) {
  Sequence& s = live(slot);
  s.pages.release_all(&worker_->page_pool());
  s.num_computed = 0;
  if (!counted) tick_stats_.prefix_hit_tokens -= s.prefix_hit;  // it could not join after all: the hit saved nothing
  s.prefix_hit = 0;
  tick_stats_.preemptions += counted;
}

void Engine::take_pages(int32_t slot, int32_t begin, int32_t end) {
  live(slot).pages.prepare_write(&worker_->prefix_cache(), &worker_->page_pool(), begin, end, &page_work_);
}

Status Engine::check_pages() const {
  const PagePool& pool = worker_->page_pool();
  std::vector<int32_t> references(static_cast<size_t>(pool.num_pages()), 0);
  for (const auto& s : live_) {
    if (s == nullptr) continue;
    for (PageId page : s->pages.pages()) ++references[static_cast<size_t>(page)];
  }
  OTR_RETURN_IF_ERROR(pool.check(references));
  return worker_->prefix_cache().check();
}

}  // namespace otr
