// A worker's thread between two ticks: its orders, the life of a sequence, its report. Ticks are in worker_tick.cpp.
#include "runtime/worker.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "kernels/base/fp_env.h"
#include "runtime/race.h"

namespace otr {
namespace {

BatchLimits batch_limits(const WorkerOptions& o) {
  return {.max_batch = o.max_batch, .prefill_chunk = o.prefill_chunk, .max_logit_rows = o.max_logit_rows()};
}

RowLimits row_limits(const WorkerOptions& o, const ModelRunner& target) {
  const int64_t context_pages = (context_limit(target.config()) + kPageTokens - 1) / kPageTokens;
  return {.max_rows = o.bucket().max_rows,
          .max_segments = o.max_batch + o.max_draft_rows,
          .max_logit_rows = o.bucket().max_logit_rows,
          .max_pages_per_sequence = static_cast<int32_t>(std::min<int64_t>(context_pages, target.page_pool().num_pages())),
          .max_copies = o.max_draft_rows * kMaxDraftDepth};
}

}  // namespace

// Who drafts for others has pages of its own for that, whatever it drafts for itself.
Result<RoomBeside> Worker::room_beside(const WorkerOptions& options, bool drafts_for_others) {
  std::vector<std::string> drafters = options.speculation.policy.drafters;
  std::erase(drafters, options.speculation.decoupled);
  if (drafts_for_others) drafters.push_back(options.server.model.name);
  return otr::room_beside(options.speculation.models, drafters);
}

Result<std::unique_ptr<Worker>> Worker::create(const WorkerOptions& options, std::unique_ptr<Device> device) {
  std::unique_ptr<Worker> w(new Worker(options, std::move(device)));
  SpeculatorOptions speculation = options.speculation;
  speculation.pace_options = options.pace;
  speculation.pace = w->pace_.get();
  OTR_ASSIGN_OR_RETURN(w->speculator_, Speculator::create(speculation, *w->device_, w->live_));
  if (options.serves.empty()) return w;
  DraftServerOptions server = options.server;
  server.tree.paced = PacedLevels(w->pace_.get(), options.pace, server.model.name);
  const ModelRunner* const own = w->speculator_->model_of(server.model.name);
  if (own != nullptr && !w->speculator_->costs().empty())
    server.costs = {w->speculator_->costs()[w->speculator_->number_of(server.model.name)]};
  OTR_ASSIGN_OR_RETURN(w->server_, DraftServer::create(server, *w->device_, own != nullptr ? own : options.share_server_model));
  for (DraftLink* link : options.serves) w->server_->add_link(link);
  return w;
}

Worker::Worker(const WorkerOptions& options, std::unique_ptr<Device> device)
    : options_(options),
      device_(std::move(device)),
      pace_(options.pace != nullptr ? std::make_unique<Pace>(options.pace_clock) : nullptr),
      batcher_(batch_limits(options_)),
      rebuild_(&target(), &mailbox_, options_.proofs.rebuild, pace_.get(), options_.prefill_chunk),
      random_(options.proofs.migration_seed + static_cast<uint32_t>(options.index)),
      rows_(row_limits(options_, target()), target().tile_rows()),
      paths_(options.max_draft_rows, 2 * options.max_draft_rows) {  // kMaxDraftDepth positions touch two pages at most
  mailbox_.set_pace(pace_.get());
  const size_t batch = static_cast<size_t>(options_.max_batch), chunk = static_cast<size_t>(options_.prefill_chunk);
  const size_t draft_rows = static_cast<size_t>(options_.max_draft_rows);
  places_.reserve(batch);
  draft_tokens_.reserve(kMaxDraftNodes);
  drawn_.reserve(kMaxDraftNodes + 1);
  accepted_.reserve(kMaxDraftDepth);
  page_work_.copy_from.reserve(batch);
  page_work_.copy_to.reserve(batch);
  page_work_.zero.reserve(4 * batch + chunk / kPageTokens);
  fork_work_.copy_from.reserve(draft_rows);
  fork_work_.copy_to.reserve(draft_rows);
  fork_work_.zero.reserve(2 * draft_rows);
  if (options_.reports_progress) report_.progress.reserve(batch, batch + draft_rows + chunk);
}

Worker::~Worker() {
  mailbox_.stop();
  join();
  rebuild_.reclaim();  // whoever borrowed may outlive it
  for (auto& s : live_) {
    if (s == nullptr) continue;
    rebuild_.drop(s.get());
    s->pages.release_all(&target().page_pool());
    s->group->disband();
  }
}

void Worker::join() {
  if (thread_.joinable()) thread_.join();
}

void Worker::loop() {
  pin_fp_environment();
  device_->pool().pin_caller();
  if (pace_ != nullptr) pace_->begin();
  while (mailbox_.take(busy(), &orders_, [this] { options_.host->rested(); })) {
    bool ticks = false;
    const double began = pace_ != nullptr ? pace_->now_ms() : 0;
    const uint64_t pauses = pace_ != nullptr ? pace_->num_pauses() : 0;
    const bool has_served = std::exchange(served_, false);
    if (orders_.pending()) blind_.reset();
    try {
      follow_orders();
      speculator_->exchange();
      served_ = server_ != nullptr && server_->tick();
      ticks = !batcher_.empty();
      if (ticks && !step()) fail_all(Status(StatusCode::kInternal, "the scheduler found nothing to run among live requests"));
    } catch (const std::exception& e) {
      fail_all(status_of(e));
    }
    if (ticks || report_.pending() || (has_served && !served_)) report();
    if (served_) blind_.reset();
    // No request runs, and it is busy all the same: what it owes, or has drafted, finds no room. That is for others to end.
    if (pace_ == nullptr && !ticks && !served_ && busy()) mailbox_.await(blind_.next_ms());
    if (pace_ != nullptr && busy() && (pace_->num_pauses() == pauses || pace_->now_ms() == began)) pace_->idle();
  }
  if (pace_ != nullptr) pace_->end();
}

bool Worker::busy() const {
  return !batcher_.empty() || orders_.pending() || speculator_->owes() || (server_ != nullptr && (served_ || server_->busy()));
}

// All that run wait for their drafts: so does the worker, unless it has something else to do. What it owes it tries again: room
// in a queue is announced, but where the queue looked full to this worker alone. False: nobody waits.
bool Worker::await_drafts() {
  bool waits = false;
  for (int32_t i = 0; i < batcher_.num_running(); ++i) waits |= speculator_->waits(batcher_.running_slot(i));
  if (!waits || served_) return waits;
  if (!speculator_->owes()) mailbox_.await(RemoteDrafter::kPatienceMs);
  else if (pace_ == nullptr) mailbox_.await(blind_.next_ms());
  return true;
}

// ---- Orders --------------------------------------------------------------------------------------------------------------

void Worker::follow_orders() {
  orders_.rung = false;
  if (orders_.roles) {
    speculator_->set_decoupled(orders_.roles->decoupled);
    if (server_ != nullptr) server_->set(orders_.roles->setting);
    orders_.roles.reset();
  }
  if (std::exchange(orders_.end_step, false)) speculator_->end_step();
  start_arrived();
  if (std::exchange(orders_.cancelled, false)) abort_cancelled();
  if (orders_.move) {
    give(*orders_.move);
    report_.answered = std::exchange(orders_.move, std::nullopt);
  }
  if (std::exchange(orders_.lease_ended, false)) report_.pages_returned |= rebuild_.take_back();
  if (orders_.lend) {
    try {
      lend(&*orders_.lend);
    } catch (const std::bad_alloc&) {  // replicas cost speed, and nobody's sample
      orders_.lend->most = 0;
    }
    report_.lent = std::exchange(orders_.lend, std::nullopt);
  }
  adopt_tokens();
  if (options_.proofs.migrate_every > 0) migrate_at_random();
  if (options_.index == 0 && stats_.ticks == options_.proofs.migrate_at_tick && stats_.migrations == 0) {
    while (batcher_.num_running() > 0) give(&live(batcher_.running_slot(0)), 1 % options_.num_workers);
  }
}

void Worker::start_arrived() {
  while (std::unique_ptr<Sequence> s = orders_.arrived.pop()) {
    const size_t num_blocked = s->group->blocked.size();
    num_blocked_ += static_cast<int64_t>(num_blocked);
    num_arrived_ += 1 + static_cast<int64_t>(num_blocked);
    // One tick may draw for all its logit rows and for every blocked sample at once.
    const size_t most_draws = static_cast<size_t>(options_.bucket().max_logit_rows) + static_cast<size_t>(num_blocked_);
    Sequence* sequence = s.get();
    try {
      draws_.reserve(most_draws);
      results_.reserve(most_draws);
      if (options_.reports_progress) report_.progress.reserve(most_draws, most_draws);
      start(&s);
    } catch (const std::exception& e) {
      options_.host->broke(status_of(e));
      if (s == nullptr) throw;  // it is live, and fails with the others
      const Failure failure{.text = std::string("internal error: ") + e.what(), .is_engines = true};
      conclude_blocked(s->group.get(), OTR_FINISH_ERROR, failure);
      conclude(std::move(s), OTR_FINISH_ERROR, failure);
      continue;
    }
    // It was cancelled, or its race was decided, on its way from one worker to another.
    if (sequence->group->cancelled || is_decided(*sequence)) finish(sequence, OTR_FINISH_ABORT);
    // A score of one token without a prompt has nothing to run.
    else if (sequence->group->is_score && sequence->num_target() == 0) finish(sequence, OTR_FINISH_SCORE);
  }
}

void Worker::abort_cancelled() {
  for (const auto& s : live_) {
    if (s != nullptr && (s->group->cancelled || is_decided(*s))) finish(s.get(), OTR_FINISH_ABORT);
  }
}

// Of the queue the oldest first: it would wait longest. Of what runs the cheapest first, and never all.
void Worker::give(const Move& move) {
  for (int32_t given = 0; given < move.count;) {
    Sequence* s = nullptr;
    if (move.running) s = batcher_.num_running() > 1 ? cheapest_running() : nullptr;
    else if (batcher_.num_waiting() > 0) s = &live(batcher_.oldest_waiting());
    if (s == nullptr || stays(*s)) return;
    given += 1 + static_cast<int32_t>(s->group->blocked.size());
    give(s, move.to);
  }
}

// Its tokens go, and what was drawn with them. Its pages stay, lent to the other worker.
void Worker::give(Sequence* s, int32_t to) {
  const int64_t num_blocked = static_cast<int64_t>(s->group->blocked.size());
  num_blocked_ -= num_blocked;
  stats_.migrations += 1 + num_blocked;
  stats_.prefix_hit_tokens -= s->num_computed == s->prefix_hit ? s->prefix_hit : 0;  // it saved nothing
  rebuild_.drop(s);
  rebuild_.lend(s);
  s->num_computed = s->prefix_hit = 0;
  s->goes_to = to;
  report_.given.push(leave(s));
}

// The running sequence that has the fewest tokens to compute again.
Sequence* Worker::cheapest_running() const {
  Sequence* cheapest = nullptr;
  for (int32_t i = 0; i < batcher_.num_running(); ++i) {
    Sequence& s = live(batcher_.running_slot(i));
    if (!stays(s) && (cheapest == nullptr || s.num_tokens() < cheapest->num_tokens())) cheapest = &s;
  }
  return cheapest;
}

// One that has not come to its newest token since it arrived goes the more seldom the more ticks that takes: else it might
// never.
void Worker::migrate_at_random() {
  if (batcher_.empty() || random_() % static_cast<uint32_t>(options_.proofs.migrate_every) != 0) return;
  Sequence* s = nullptr;
  for (size_t at = random_() % live_.size(); s == nullptr; at = (at + 1) % live_.size()) s = live_[at].get();
  constexpr uint32_t kSeldom = 4;
  // A sample that decodes always has its newest token to run; a score with one token left is about to end, and who has run
  // nothing is behind even with a prompt of one token.
  if (stays(*s)) return;
  const bool decodes = !s->group->is_score && s->num_computed > 0;
  const int32_t behind = s->num_target() - s->num_computed - (decodes ? 1 : 0);
  if (behind > 0 && random_() % (kSeldom * static_cast<uint32_t>(1 + behind / options_.prefill_chunk)) != 0) return;
  give(s, static_cast<int32_t>(random_() % static_cast<uint32_t>(options_.num_workers)));
}

// ---- The life of a sequence ----------------------------------------------------------------------------------------------

// Gives the sequence a slot and hands it to the batcher and the drafters. If that throws, *s is null if it is live
// nevertheless.
void Worker::start(std::unique_ptr<Sequence>* s) {
  if (free_slots_.empty()) {
    free_slots_.reserve(live_.size() + 1);  // every slot may be free one day
    live_.emplace_back();
    free_slots_.push_back(static_cast<int32_t>(live_.size()) - 1);
  }
  const int32_t slot = free_slots_.back();
  batcher_.add(slot, (*s)->age);
  free_slots_.pop_back();
  (*s)->slot = slot;
  live_[static_cast<size_t>(slot)] = std::move(*s);
  if (!live(slot).group->is_score) speculator_->join(live(slot));
}

// Takes a live sequence out of the batch, its pages and its slot.
std::unique_ptr<Sequence> Worker::leave(Sequence* s) {
  if (options_.reports_progress) report_.progress.add(s);
  return detach(s);
}

// Without a word of it.
std::unique_ptr<Sequence> Worker::detach(Sequence* s) {
  if (s->slot == alone_.slot) stop_alone();
  batcher_.remove(s->slot);
  if (!s->group->is_score) speculator_->leave(*s);
  s->pages.release_all(&target().page_pool());
  free_slots_.push_back(s->slot);
  return std::move(live_[static_cast<size_t>(s->slot)]);
}

// Whatever fails from here on, the sample is among the finished.
void Worker::conclude(std::unique_ptr<Sequence> s, otr_finish_reason reason, const Failure& failure) {
  rebuild_.drop(s.get());
  // How far a score had come when it failed depends on the chunks it ran in.
  if (reason == OTR_FINISH_ERROR && s->group->is_score) s->raw_logprobs.clear();
  if (s->race != nullptr && lose(*s, reason)) return report_.dropped.push(std::move(s));
  s->finish_reason = reason;
  if (pace_ != nullptr) s->finished_ms = pace_->now_ms();
  s->engine_failed = failure.is_engines;
  try {
    s->error = failure.text;
  } catch (const std::bad_alloc&) {  // the text is lost, the reason is not
  }
  ++stats_.finished_samples;
  report_.finished.push(std::move(s));
}

// Ends a live sequence. If it still had to run the prompt for others, they end the same way: their outcome is its. Whoever goes
// on with its tokens finds what it has computed.
void Worker::finish(Sequence* s, otr_finish_reason reason, const Failure& failure) {
  const std::shared_ptr<Group> group = s->group;
  if (!group->is_score && reason != OTR_FINISH_ERROR) {
    s->pages.publish(&target().prefix_cache(), s->tokens, s->num_computed / kPageTokens);
  }
  conclude(leave(s), reason, failure);
  conclude_blocked(group.get(), reason, failure);
}

// Others of the group may be at other workers, once none is blocked: then nothing is written.
void Worker::conclude_blocked(Group* group, otr_finish_reason reason, const Failure& failure) {
  if (group->blocked.empty()) return;
  num_blocked_ -= static_cast<int64_t>(group->blocked.size());
  for (auto& b : std::exchange(group->blocked, {})) conclude(std::move(b), reason, failure);
}

void Worker::fail_all(const Status& why) {
  options_.host->broke(why);
  Failure failure{.is_engines = true};
  try {
    failure.text = "internal error: " + why.message();
  } catch (const std::bad_alloc&) {  // the text is lost, the samples are not
  }
  paths_.clear(&target().page_pool());
  for (const auto& s : live_) {
    if (s != nullptr) finish(s.get(), OTR_FINISH_ERROR, failure);
  }
  for (auto& s : unblocked_) {
    if (s != nullptr) conclude(std::move(s), OTR_FINISH_ERROR, failure);
  }
  unblocked_.clear();
}

// ---- The report ----------------------------------------------------------------------------------------------------------

int64_t Worker::weight_bytes_written() const {
  int64_t bytes = target().weight_bytes_written() + (server_ != nullptr ? server_->model().weight_bytes_written() : 0);
  for (const ModelRunner* drafter : speculator_->own_models()) bytes += drafter->weight_bytes_written();
  return bytes;
}

WorkerLoad Worker::load() const {
  const int32_t running = batcher_.num_running(), waiting = batcher_.num_waiting();
  WorkerLoad load{.arrived = num_arrived_,
                  .samples = running + waiting + static_cast<int32_t>(num_blocked_),
                  .running = running,
                  .queued = waiting,
                  .free_places = options_.max_batch - running,
                  .free_pages = pages_available(),
                  .next_pages = 0};
  if (waiting > 0) load.next_pages = (live(batcher_.oldest_waiting()).num_target() + kPageTokens - 1) / kPageTokens;
  return load;
}

// The counters go out with the results they count: who has received the last sample reads final numbers, and finds the trace
// complete.
void Worker::report() {
  stats_.kv_pages_in_use = target().page_pool().num_in_use();
  stats_.kv_pages_leased = target().page_pool().num_leased();
  stats_.weight_bytes_written = weight_bytes_written();
  stats_.spec = speculator_->counts();
  if (const RemoteDrafter* const remote = speculator_->remote(); remote != nullptr) {
    stats_.drafts_elsewhere = remote->num_opened();
    stats_.impatient = remote->num_impatient();
    stats_.full_links = remote->num_full();
  }
  if (server_ != nullptr) stats_.drafting = server_->stats();
  stats_.decide_seconds = speculator_->decide_seconds();
  if (pace_ != nullptr) stats_.pace = pace_->stats();
  if (options_.trace != nullptr) {
    report_.finished.for_each([this](const Sequence& s) {
      if (s.group->is_score) return;
      options_.trace->sample({.worker = options_.index,
                              .group = s.group->id,
                              .sample = s.sample,
                              .tokens = static_cast<int64_t>(s.tokens.size()) - s.num_prompt(),
                              .finish_reason = otr_finish_reason_text(s.finish_reason)});
    });
    if (batcher_.empty()) options_.trace->flush();
    stats_.trace_error = options_.trace->error();
  }
  options_.host->report(options_.index, stats_, load(), &report_);
  report_.answered.reset();
  report_.pages_returned = false;
  report_.lent.reset();
}

}  // namespace otr
