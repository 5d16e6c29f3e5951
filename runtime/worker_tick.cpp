// The main path: one tick, from the schedule to the committed tokens.
#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <new>
#include <utility>

#include "runtime/race.h"
#include "runtime/worker.h"
#include "spec/verify.h"

namespace otr {
namespace {

const Forest kNoDraft;

// Rows of a run without the newest token of its sequence.
int32_t rows_behind(const Sequence& s, const RowRun& run) { return run.end - run.begin - (run.end == s.num_tokens() ? 1 : 0); }

}  // namespace

const Ending Worker::kFaulted = {.ended = true, .reason = OTR_FINISH_ERROR, .error = kIsNotFinite};

// One tick. False if there was nothing to run.
bool Worker::step() {
  const SpecCounts& spec = speculator_->counts();
  marks_ = {.clock = PacedStopwatch(pace_.get()),
            .generated_tokens = stats_.generated_tokens,
            .prefill_tokens = stats_.prefill_tokens,
            .verify_steps = spec.verify_steps,
            .draft_tokens = spec.draft_tokens,
            .accepted_tokens = spec.accepted_tokens};
  const double drafted = stats_.draft_seconds;
  page_work_.clear();
  if (stats_.ticks == options_.proofs.preempt_at_tick) batcher_.preempt_one(this);
  advance_rebuilds();
  const std::vector<RowRun>& runs = schedule();  // schedule: who runs which positions, on which pages
  rebuild_.begin_pass(runs);
  if (runs.empty()) return wait_for_pages() || await_drafts();
  blind_.reset();
  draft(runs);  // draft: what may come after them, on pages to spare
  assemble(runs);
  marks_.verify_at = marks_.clock.seconds();
  target().run(rows_.batch(), rebuild_.gate());  // run: the forward program …
  if (device_->accelerator() != nullptr)
    speculator_->look_ahead();  // … beside which, on a device, drafters look up for the next tick
  draw(runs);                   // verify: the target's own draw at every row that wants one, drafted or not …
  hold_pass(runs.size());
  const double waited = rebuild_.waited_seconds(),
               verifying = std::max(0.0, marks_.clock.seconds() - marks_.verify_at - waited);
  settle_copies();
  commit(runs);  // commit: … kept, with its pages; finished samples leave
  const double seconds = marks_.clock.seconds(), drafting = stats_.draft_seconds - drafted;
  speculator_->end_tick({.verify_rows = rows_.batch().num_rows,
                         .draft_ms = 1e3 * drafting,
                         .verify_ms = 1e3 * verifying,
                         .tick_ms = 1e3 * (seconds - waited)});
  if (options_.trace != nullptr) trace_tick(runs.size(), drafting, verifying, seconds);
  rebuild_.end_tick(marks_.rows_behind, seconds - waited);
  ++stats_.ticks;
  stats_.kernel_seconds += verifying;
  stats_.busy_seconds += seconds;
#ifndef NDEBUG
  if (const Status status = check_pages(); !status.ok()) fail_all(status);
#endif
  return true;
}

// What is on trial runs alone from the tick after the one in which it has joined.
const std::vector<RowRun>& Worker::schedule() {
  for (int pass = 0;; ++pass) {
    try_alone();
    const std::vector<RowRun>* runs = &batcher_.schedule(this);
    const bool joined = runs->empty() && slot_on_trial() != alone_.slot;  // an empty batch; or it gives way
    if (joined && pass == 0) continue;
    if (runs->empty() && alone_.slot >= 0 && !view(alone_.slot).waits) {  // others have the pages that it lacks
      stop_alone();
      runs = &batcher_.schedule(this);
    }
    if (options_.proofs.breaks_of_group != 0) break_on(*runs);
    alone_.has_run |= alone_.slot >= 0 && !runs->empty();
    return *runs;
  }
}

// In a process that has run nothing yet, its first tick has one row, and no word is said of it: what breaks on that is the
// machine.
void Worker::try_alone() {
  end_trial();
  if (const int32_t slot = slot_on_trial(); slot != alone_.slot) {
    stop_alone();
    alone_ = {.slot = slot, .has_run = stats_.ticks > 0};
    if (slot >= 0) alone_.accepted = live(slot).raw_logprobs.size();
  }
  if (alone_.slot < 0 || !alone_.has_run || alone_.is_said) return;
  alone_.is_said = true;
  options_.host->tries(&live(alone_.slot));
}

void Worker::stop_alone() {
  if (std::exchange(alone_, {}).is_said) options_.host->tries(nullptr);
}

int32_t Worker::slot_on_trial() const {
  int32_t found = -1;
  for (int32_t i = 0; i < batcher_.num_running(); ++i) {
    const int32_t slot = batcher_.running_slot(i);
    if (live(slot).is_on_trial && (found < 0 || slot == alone_.slot)) found = slot;
  }
  return found;
}

// What a process has not reported is lost with it: a sample that breaks one may have to find that again until it breaks the
// next.
void Worker::end_trial() {
  Sequence* s = alone_.is_said ? live_[static_cast<size_t>(alone_.slot)].get() : nullptr;
  if (s != nullptr && s->raw_logprobs.size() >= alone_.accepted + kMostUnreported) s->is_on_trial = false;
}

void Worker::break_on(const std::vector<RowRun>& runs) const {
  const WorkerProofs& p = options_.proofs;
  for (const RowRun& run : runs) {
    const Sequence& s = live(run.slot);
    const bool breaks = s.group->id == p.breaks_of_group && (p.breaks_of_sample < 0 || s.sample == p.breaks_of_sample);
    if (breaks && run.end > p.breaks_at) std::abort();
  }
}

// What the pass has found is told nobody before a paced pass is over.
void Worker::hold_pass(size_t batch) {
  if (pace_ == nullptr) return;
  const RowBatch rows = rows_.batch();
  const CostRole role = rows.num_rows > static_cast<int32_t>(batch) ? CostRole::kVerify : CostRole::kTarget;
  pace_->hold(rebuild_.held_ms(options_.pace->target.time_ms(role, pass_shape(static_cast<double>(batch), rows))));
}

void Worker::trace_tick(size_t batch, double draft, double verify, double tick) {
  const SpecCounts& spec = speculator_->counts();
  options_.trace->tick({.worker = options_.index,
                        .number = stats_.ticks,
                        .draft_at = marks_.draft_at,
                        .draft = draft,
                        .verify_at = marks_.verify_at,
                        .verify = verify,
                        .tick = tick,
                        .batch = static_cast<int32_t>(batch),
                        .rows = rows_.batch().num_rows,
                        .offered = static_cast<int32_t>(speculator_->offered().size()),
                        .verified = spec.verify_steps - marks_.verify_steps,
                        .drafted = spec.draft_tokens - marks_.draft_tokens,
                        .accepted = spec.accepted_tokens - marks_.accepted_tokens,
                        .tokens = stats_.generated_tokens - marks_.generated_tokens,
                        .prefill_tokens = stats_.prefill_tokens - marks_.prefill_tokens,
                        .plan = &speculator_->chosen()});
  stats_.trace_error = options_.trace->error();
}

// Lets the policy choose among the runs that may draft, and takes pages for their nodes as long as there are any that no
// sequence holds: a draft preempts nobody.
void Worker::draft(const std::vector<RowRun>& runs) {
  speculator_->begin_tick(runs.size());
  places_.assign(runs.size(), RunPlace{});
  if (speculator_->on()) {
    int32_t num_rows = 0, silent_rows = 0;
    for (size_t i = 0; i < runs.size(); ++i) {
      const Sequence& s = live(runs[i].slot);
      num_rows += runs[i].end - runs[i].begin;
      silent_rows += std::clamp(s.logits_from() - runs[i].begin, 0, runs[i].end - runs[i].begin);
      if (const int32_t depth = draft_depth(s, runs[i], speculator_->policy().depth); depth > 0)
        speculator_->offer(i, s, depth);
    }
    speculator_->choose(num_rows, silent_rows);
    for (size_t i = 0; i < runs.size(); ++i) {
      Sequence& s = live(runs[i].slot);
      const int32_t depth = speculator_->depth(i) > 0 ? draft_depth(s, runs[i], speculator_->depth(i)) : 0;
      if (depth <= 0) continue;
      s.pages.prepare_write(&target().prefix_cache(), &target().page_pool(), runs[i].end, runs[i].end + depth, &page_work_);
      speculator_->plan(i, s, depth);
    }
  }
  target().prepare(page_work_);
  const PacedStopwatch drafting(pace_.get());
  marks_.draft_at = marks_.clock.seconds();
  try {
    speculator_->draft(options_.max_draft_rows);
  } catch (const std::bad_alloc&) {  // a draft that fails costs speed, and nobody's sample
    speculator_->drop_drafts();
  }
  stats_.draft_seconds += drafting.seconds();
  fork_work_.clear();
  for (size_t i = 0; i < runs.size(); ++i) fork(i, live(runs[i].slot), runs[i]);
  target().prepare(fork_work_);
}

// Gives every path of a run's forest but the first its own pages; what finds no room is not drafted. Behind several rows there
// is one path: others would need copies of all those rows.
void Worker::fork(size_t run, const Sequence& s, const RowRun& rows) {
  Forest* forest = speculator_->mutable_forest(run);
  places_[run].first_path = paths_.size();
  if (forest->empty()) return;
  if (rows.end - rows.begin > 1) return forest->truncate(forest->run_end(0));
  const int32_t begin = rows.end;
  for (int32_t node = forest->run_end(0); node < forest->size(); node = forest->run_end(node)) {
    const int32_t depth = (*forest)[forest->run_end(node) - 1].depth;
    if (paths_.add(s.pages, DraftPaths::kNoPath, begin, begin, begin + depth, &target().prefix_cache(), &fork_work_) ==
        DraftPaths::kNoPath)
      forest->truncate(node);
  }
}

// How deep the sequence of this run may draft, up to `most`: not past its limit, and not past the pages there are. Tokens of a
// response that have no keys yet, since they were adopted or their pages lost, run in the same pass as what is drafted behind
// them.
int32_t Worker::draft_depth(const Sequence& s, const RowRun& run, int32_t most) const {
  const bool decodes = !s.group->is_score && s.group->blocked.empty() && run.end == s.num_tokens() &&
                       (run.end - run.begin == 1 || s.num_tokens() > s.num_prompt());
  if (!decodes || rebuild_.comes_in_pass(s)) return 0;  // a drafter would read what is not there yet
  const int32_t depth = std::min(most, s.max_tokens - s.num_tokens() - 1);
  if (s.pages.pages_to_write(target().page_pool(), run.end, run.end + depth) <= target().prefix_cache().num_available())
    return depth;
  return std::min(depth, s.pages.num_pages() * kPageTokens - run.end);
}

void Worker::assemble(const std::vector<RowRun>& runs) {
  rows_.clear();
  int32_t row = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const RowRun& run = runs[i];
    const Sequence& s = live(run.slot);
    const Forest& forest = speculator_->forest(i);
    draft_tokens_.clear();
    for (int32_t node = 0; node < (forest.empty() ? 0 : forest.run_end(0)); ++node) draft_tokens_.push_back(forest[node].token);
    const std::span<const int32_t> tokens(s.tokens.data() + run.begin, static_cast<size_t>(run.end - run.begin));
    const int32_t logit = rows_.add(tokens, run.begin, s.pages.pages(), s.logits_from(), draft_tokens_);
    places_[i].row = row;
    places_[i].root = row + run.end - run.begin - 1;
    places_[i].logit = logit;
    add_paths(i, s, run.end);
    row += run.end - run.begin + forest.size();
    marks_.rows_behind += rows_behind(s, run);
  }
  stats_.kv_pages_peak = std::max(stats_.kv_pages_peak, target().page_pool().num_in_use());
  stats_.batch_peak = std::max(stats_.batch_peak, batcher_.num_running());
}

// The paths of a run's forest beyond the first, which continues the run itself. Rows come in the order of the nodes.
void Worker::add_paths(size_t run, const Sequence& s, int32_t begin) {
  const Forest& forest = speculator_->forest(run);
  if (forest.empty()) return;
  const int32_t root_row = places_[run].root, first_page = begin / kPageTokens;
  int32_t path = places_[run].first_path;
  for (int32_t node = forest.run_end(0), end; node < forest.size(); node = end, ++path) {
    end = forest.run_end(node);
    draft_tokens_.clear();
    for (int32_t i = node; i < end; ++i) draft_tokens_.push_back(forest[i].token);
    const std::span<const PageId> own = paths_.pages(path);
    rows_.add_path(draft_tokens_, begin + forest[node].depth - 1,
                   std::span(s.pages.pages()).first(static_cast<size_t>(first_page)), own);
    // What it shares with others since the run's last token is computed once, on their pages.
    for (int32_t at = forest[node].parent; at != Forest::kRoot; at = forest[at].parent) {
      rows_.add_copy(root_row + 1 + at, own[static_cast<size_t>((begin + forest[at].depth - 1) / kPageTokens - first_page)]);
    }
    if (begin % kPageTokens != 0) rows_.add_copy(root_row, own[0]);
  }
}

// Lists the tick's draws in the order commit() takes them, and draws. A prompt's last row serves every sample of its group.
void Worker::draw(const std::vector<RowRun>& runs) {
  draws_.clear();
  penalties_.clear();
  for (size_t i = 0; i < runs.size(); ++i) {
    const Sequence& s = live(runs[i].slot);
    places_[i].draw = static_cast<int32_t>(draws_.size());
    if (scores_row_by_row(s)) continue;
    int32_t logits_row = places_[i].logit;
    for (int32_t row = std::max(runs[i].begin, s.logits_from()); row < runs[i].end; ++row, ++logits_row) {
      draws_.push_back(s.draw(logits_row, row + 1, s.group->is_score ? s.tokens[static_cast<size_t>(row) + 1] : -1));
      if (s.group->is_score) continue;
      for (const auto& sibling : s.group->blocked) draws_.push_back(sibling->draw(logits_row, row + 1, -1));
    }
    draw_draft(s, speculator_->forest(i), runs[i], logits_row);
  }
  results_.resize(draws_.size());
  target().draw(draws_.data(), static_cast<int32_t>(draws_.size()), results_.data());
}

// A draw after every node, with the tokens on the way to it as its past.
void Worker::draw_draft(const Sequence& s, const Forest& forest, const RowRun& run, int32_t first_logit) {
  for (int32_t node = 0; node < forest.size(); ++node) {
    const int32_t depth = forest[node].depth;
    draft_tokens_.resize(static_cast<size_t>(depth));
    for (int32_t at = node; at != Forest::kRoot; at = forest[at].parent) {
      draft_tokens_[static_cast<size_t>(forest[at].depth - 1)] = forest[at].token;
    }
    draws_.push_back(s.draw(first_logit + node, run.end + depth, -1));
    penalties_.extend(s, draft_tokens_, &draws_.back());
  }
}

void Worker::commit(const std::vector<RowRun>& runs) {
  for (size_t i = 0; i < runs.size(); ++i) {
    const RowRun& run = runs[i];
    const RunPlace& at = places_[i];
    Sequence* s = &live(run.slot);
    if (s->runs_to < run.end) continue;  // what it read was lost meanwhile: see settle_copies()
    s->num_computed = run.end;
    stats_.prefill_tokens += rows_behind(*s, run);
    if (rows_faulted(at.row, run.end - run.begin)) {
      finish(s, OTR_FINISH_ERROR, {.text = kIsNotFinite});
      continue;
    }
    if (s->group->is_score) {
      commit_score(s, run, at);
      continue;
    }
    if (run.begin < s->num_prompt() && run.end >= s->num_prompt()) {
      s->pages.publish(&target().prefix_cache(), s->tokens, s->num_prompt() / kPageTokens);
    }
    if (run.end < s->num_tokens()) continue;
    // Samples that waited for this prompt take their own first draws and share its pages before it may finish.
    if (!s->group->blocked.empty()) unblocked_.swap(s->group->blocked);
    num_blocked_ -= static_cast<int64_t>(unblocked_.size());
    for (size_t b = 0; b < unblocked_.size(); ++b) {
      Sequence* sibling = unblocked_[b].get();
      start(&unblocked_[b]);
      sibling->pages.share_from(s->pages, &target().page_pool());
      sibling->num_computed = s->num_computed;
      commit_decode(
          sibling, kNoDraft,
          {.row = at.row, .root = at.root, .logit = at.logit, .draw = at.draw + 1 + static_cast<int32_t>(b), .first_path = 0});
    }
    unblocked_.clear();
    commit_decode(s, speculator_->forest(i), at);
  }
  paths_.clear(&target().page_pool());
}

bool Worker::rows_faulted(int32_t first_row, int32_t num_rows) const {
  const uint8_t* fault = target().program().fault() + first_row;
  return std::any_of(fault, fault + num_rows, [](uint8_t f) { return f != 0; });
}

// Keeps the drafted tokens that the target drew itself, and its draw after them. The nodes' rows follow the run's last one;
// draws likewise.
void Worker::commit_decode(Sequence* s, const Forest& forest, const RunPlace& at) {
  const SampleResult* draws = results_.data() + at.draw;
  drawn_.clear();
  for (int32_t i = 0; i <= forest.size(); ++i) drawn_.push_back(draws[i].token);
  accepted_.resize(static_cast<size_t>(forest.max_depth()));
  accepted_.resize(static_cast<size_t>(accept(forest, drawn_, accepted_)));

  int32_t num_new = 0;
  Ending ending = commit_token(s, draws[0], &num_new);
  for (size_t d = 0; !ending.ended && d < accepted_.size(); ++d) {
    ++s->num_computed;
    const int32_t node = accepted_[d];
    ending = rows_faulted(at.root + 1 + node, 1) ? kFaulted : commit_token(s, draws[1 + node], &num_new);
  }
  const size_t kept = std::min(accepted_.size(), static_cast<size_t>(num_new));
  speculator_->observe(s, forest, {accepted_.data(), kept}, num_new, ending.ended);
  if (s->race != nullptr) {
    s->race->publish(*s, num_new);
    s->raced_tokens += num_new;
  }
  if (!accepted_.empty()) {
    const int32_t path = forest.run_of(accepted_.back());
    if (path > 0) paths_.keep(at.first_path + path - 1, &s->pages, &target().page_pool());
  }
  if (ending.ended) return finish(s, ending.reason, {.text = ending.error});
  s->pages.truncate(&target().page_pool(), s->num_tokens());
  if (options_.reports_progress) report_.progress.add(s);
}

// Appends what the target drew after the sequence's newest token.
Ending Worker::commit_token(Sequence* s, const SampleResult& drawn, int32_t* num_new) {
  if (drawn.fault != 0) return kFaulted;
  s->tokens.push_back(drawn.token);
  s->logprobs.push_back(drawn.logprob);
  s->raw_logprobs.push_back(drawn.raw_logprob);
  s->note_penalty(drawn.token, true);
  ++stats_.generated_tokens;
  ++*num_new;
  const std::optional<otr_finish_reason> end = s->end();
  return end ? Ending{.ended = true, .reason = *end} : Ending{};
}

void Worker::record_score(Sequence* s, const SampleResult& scored) {
  if (scored.fault != 0 && s->error.empty()) s->error = kIsNotFinite;
  s->logprobs.push_back(scored.logprob);
  s->raw_logprobs.push_back(scored.raw_logprob);
  s->note_penalty(scored.token, true);
  ++stats_.scored_tokens;
}

// Penalised scores go row by row, since each row's penalties see the tokens before it; any score that is complete ends.
void Worker::commit_score(Sequence* s, const RowRun& run, const RunPlace& at) {
  const int32_t first = std::max(run.begin, s->logits_from());
  for (int32_t row = first; row < run.end; ++row) {
    if (scores_row_by_row(*s)) {
      const SampleDraw draw = s->draw(at.logit + row - first, row + 1, s->tokens[static_cast<size_t>(row) + 1]);
      SampleResult scored;
      target().draw(&draw, 1, &scored);
      record_score(s, scored);
    } else {
      record_score(s, results_[static_cast<size_t>(at.draw + row - first)]);
    }
  }
  if (!s->error.empty()) {
    s->num_reported = static_cast<int32_t>(s->raw_logprobs.size());  // nobody is to take it for complete
    finish(s, OTR_FINISH_ERROR, {.text = s->error});
  } else if (run.end == s->num_target()) finish(s, OTR_FINISH_SCORE);
  else if (options_.reports_progress) report_.progress.add(s);
}

// ---- What the batcher may ask and do -------------------------------------------------------------------------------------

SequenceView Worker::view(int32_t slot) const {
  const Sequence& s = live(slot);
  const bool yields = slot != alone_.slot && (alone_.slot >= 0 || s.is_on_trial);
  const bool runs_one = slot == alone_.slot && !alone_.has_run;
  return {.num_target = s.num_target(),
          .num_computed = s.num_computed,
          .remaining = s.max_tokens - s.num_tokens(),
          .logits_from = s.logits_from(),
          .runs_to = runs_one ? std::min(s.runs_to, s.num_computed + 1) : s.runs_to,
          .waits = yields || (s.num_target() - s.num_computed == 1 && speculator_->waits(slot))};
}

int32_t Worker::pages_private(int32_t slot) const {
  return live(slot).pages.num_private(target().page_pool()) + live(slot).num_copied_pages();
}

int32_t Worker::pages_to_write(int32_t slot, int32_t begin, int32_t end) const {
  return live(slot).pages.pages_to_write(target().page_pool(), begin, end);
}

void Worker::attach_prefix(int32_t slot) {
  Sequence& s = live(slot);
  if (s.group->is_score) return;  // it uses no cached prompt
  s.num_computed = s.prefix_hit = s.pages.attach_prefix(&target().prefix_cache(), s.tokens);
  stats_.prefix_hit_tokens += s.prefix_hit;
  if (s.lease != nullptr || waits_for_sibling(s)) s.runs_to = s.num_computed;  // until advance_rebuilds()
}

void Worker::drop_pages(int32_t slot, bool counted) {
  Sequence& s = live(slot);
  rebuild_.drop(&s);
  s.pages.release_all(&target().page_pool());
  s.num_computed = 0;
  if (!counted) stats_.prefix_hit_tokens -= s.prefix_hit;  // it could not join after all: the hit saved nothing
  s.prefix_hit = 0;
  stats_.preemptions += counted;
}

void Worker::take_pages(int32_t slot, int32_t begin, int32_t end) {
  live(slot).pages.prepare_write(&target().prefix_cache(), &target().page_pool(), begin, end, &page_work_);
}

Status Worker::check_pages() const {
  const PagePool& pool = target().page_pool();
  std::vector<int32_t> references(static_cast<size_t>(pool.num_pages()), 0), leases = references;
  rebuild_.add_leases(&references, &leases);
  for (const auto& s : live_) {
    if (s == nullptr) continue;
    for (PageId page : s->pages.pages()) ++references[static_cast<size_t>(page)];
    for (int32_t i = s->first_copied; i < static_cast<int32_t>(s->copied.size()); ++i)
      ++references[static_cast<size_t>(s->copied[static_cast<size_t>(i)])];
  }
  OTR_RETURN_IF_ERROR(pool.check(references, leases));
  return target().prefix_cache().check();
}

}  // namespace otr
