#include "runtime/report_wire.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/wire_fields.h"
#include "runtime/wire_orders.h"

namespace otr {
namespace {

constexpr double kMaxSeconds = 1e12;

void put_load(const WorkerLoad& l, WireWriter* w) {
  w->put(l.arrived);
  for (const int32_t n : {l.samples, l.running, l.queued, l.free_places, l.free_pages, l.next_pages}) w->put(n);
}

WorkerLoad read_load(WireReader* r) {
  WorkerLoad l;
  l.arrived = r->integer<int64_t>("arrived", 0, kMaxCount);
  for (int32_t* n : {&l.samples, &l.running, &l.queued, &l.free_places, &l.free_pages, &l.next_pages})
    *n = r->integer("load", 0, kMaxInt);
  return l;
}

// One list of a worker's counters for both directions.
template <typename Stats, typename Visit>
void for_each_count(Stats& s, const Visit& visit) {
  for (auto* n : {&s.ticks,          &s.generated_tokens, &s.prefill_tokens,    &s.scored_tokens,        &s.finished_samples,
                  &s.preemptions,    &s.migrations,       &s.prefix_hit_tokens, &s.weight_bytes_written, &s.kv_copied_tokens,
                  &s.kv_overlaps,    &s.kv_overlaps_lost, &s.replicas,          &s.lost_replicas,        &s.lost_tokens,
                  &s.adopted_tokens, &s.drafts_elsewhere, &s.impatient,         &s.full_links,           &s.full_sockets}) {
    visit(*n);
  }
  auto& d = s.drafting;
  for (auto* n : {&d.ticks, &d.requests, &d.ended_requests, &d.drafted_tokens, &d.kept_tokens, &d.wasted_tokens, &d.rollbacks,
                  &d.closed_windows, &d.reconfigured, &d.full_links}) {
    visit(*n);
  }
  visit(d.busy_seconds);
  for (auto* n : {&s.kv_pages_in_use, &s.kv_pages_leased, &s.kv_pages_peak, &s.batch_peak, &d.kv_pages_in_use}) visit(*n);
  for (auto* n : {&s.busy_seconds, &s.kernel_seconds, &s.draft_seconds, &s.decide_seconds}) visit(*n);
  auto& p = s.pace;
  for (auto* n : {&p.passes, &p.late}) visit(*n);
  for (auto* n : {&p.modelled_ms, &p.late_ms, &p.overshoot_ms, &p.worst_late_ms}) visit(*n);
  std::for_each(p.needed.begin(), p.needed.end(), visit);
  for (auto* n :
       {&s.spec.decode_steps, &s.spec.decode_tokens, &s.spec.verify_steps, &s.spec.draft_tokens, &s.spec.accepted_tokens})
    visit(*n);
  for (auto& c : s.spec.drafters) {
    for (auto* n : {&c.drafts, &c.drafted, &c.accepted}) visit(*n);
    for (auto* counts : {&c.drafted_at, &c.accepted_at}) std::for_each(counts->begin(), counts->end(), visit);
    for (auto* counts : {&c.drafted_rank, &c.accepted_rank}) std::for_each(counts->begin(), counts->end(), visit);
    for (auto* counts : {&c.judged_at_pi, &c.kept_at_pi}) std::for_each(counts->begin(), counts->end(), visit);
    std::for_each(c.sum_of_pi.begin(), c.sum_of_pi.end(), visit);
  }
}

struct ReadCount {
  WireReader& r;
  void operator()(int64_t& n) const { n = r.integer<int64_t>("counter", 0, kMaxCount); }
  void operator()(int32_t& n) const { n = r.integer("counter", 0, kMaxInt); }
  void operator()(double& x) const { x = r.number("seconds", 0.0, kMaxSeconds); }
};

}  // namespace

void encode_ready(const ReadyMessage& ready, WireBytes* out) {
  WireWriter w(out);
  w.put(ready.facts.num_threads);
  w.put(ready.facts.num_pages);
  w.put(ready.facts.activation_bytes);
  w.put(ready.facts.captures.captures);
  w.put(ready.facts.captures.target_bytes);
  w.put(ready.facts.captures.draft_bytes);
  w.put(ready.facts.captures.seconds);
  put_costs(ready.costs, &w);
  put_load(ready.load, &w);
}

Result<ReadyMessage> decode_ready(WireView in) {
  WireReader r(in);
  ReadyMessage ready;
  ready.facts.num_threads = r.integer("num_threads", 1, kMaxInt);
  ready.facts.num_pages = r.integer("num_pages", 1, kMaxInt);
  ready.facts.activation_bytes = r.integer<int64_t>("activation_bytes", 0, kMaxCount);
  CaptureFacts& c = ready.facts.captures;
  c.captures = r.integer("captures", 0, kMaxInt);
  for (int64_t* bytes : {&c.target_bytes, &c.draft_bytes}) *bytes = r.integer<int64_t>("capture_bytes", 0, kMaxCount);
  c.seconds = r.number("capture_seconds", 0.0, kMaxSeconds);
  ready.costs = read_costs(&r);
  ready.load = read_load(&r);
  OTR_RETURN_IF_ERROR(r.finish("ready"));
  return ready;
}

// ---- Reports -------------------------------------------------------------------------------------------------------------

namespace {

void put_progress(const Progress& progress, WireWriter* w) {
  w->put(static_cast<uint32_t>(progress.segments.size()));
  for (const ProgressSegment& p : progress.segments) {
    w->put(p.group);
    w->put(p.sample);
    w->put(p.first);
    w->put(p.count);
    put_spec(p.spec, w);
  }
  w->put_array(std::span(progress.tokens));
  w->put_array(std::span(progress.logprobs));
  w->put_array(std::span(progress.raw_logprobs));
}

// What the samples are and may become is the ledger's to check.
void read_progress(WireReader* r, Progress* progress) {
  constexpr size_t kSegmentBytes = 52;
  progress->segments.resize(r->count("segments", kSegmentBytes));
  for (ProgressSegment& p : progress->segments) {
    p.group = r->integer<uint64_t>("group", 0, UINT64_MAX);
    p.sample = r->integer<uint32_t>("sample", 0, UINT32_MAX);
    p.first = r->integer("first", 0, kMaxInt);
    p.count = r->integer("count", 1, kMaxInt);
    p.spec = read_spec(r);
  }
  r->array("tokens", &progress->tokens);
  r->array("logprobs", &progress->logprobs);
  r->array("raw_logprobs", &progress->raw_logprobs);
}

void put_names(const std::vector<SampleName>& names, WireWriter* w) {
  w->put(static_cast<uint32_t>(names.size()));
  for (const SampleName& n : names) {
    w->put(n.group);
    w->put(n.sample);
  }
}

void read_names(const char* field, WireReader* r, std::vector<SampleName>* names) {
  constexpr size_t kNameBytes = 12;
  names->resize(r->count(field, kNameBytes));
  for (SampleName& n : *names) {
    n.group = r->integer<uint64_t>("group", 0, UINT64_MAX);
    n.sample = r->integer<uint32_t>("sample", 0, UINT32_MAX);
  }
}

}  // namespace

void encode_progress(const Progress& progress, WireBytes* out) {
  WireWriter w(out);
  put_progress(progress, &w);
}

Result<Progress> decode_progress(WireView in, int32_t vocab_size) {
  WireReader r(in);
  Progress p;
  read_progress(&r, &p);
  int64_t total = 0;
  for (const ProgressSegment& segment : p.segments) total += segment.count;
  const size_t size = p.tokens.size();
  if (static_cast<int64_t>(size) != total || p.logprobs.size() != size || p.raw_logprobs.size() != size)
    r.fail("progress", "has arrays of different lengths");
  check_tokens("tokens", p.tokens, vocab_size, &r);
  OTR_RETURN_IF_ERROR(r.finish("progress"));
  return p;
}

void ProcessReport::clear() {
  stats.reset();
  progress.clear();
  finished.clear();
  given.clear();
  files.clear();
  answered.reset();
  lent.reset();
  replicas.clear();
  dropped.clear();
}

void encode_report(const ProcessReport& report, WireBytes* out) {
  WireWriter w(out);
  put_load(report.load, &w);
  w.put(static_cast<uint8_t>(report.stats.has_value()));
  if (report.stats) for_each_count(*report.stats, [&w](const auto& n) { w.put(n); });
  put_progress(report.progress, &w);
  w.put(static_cast<uint32_t>(report.finished.size()));
  for (const SampleEnd& e : report.finished) {
    w.put(e.group);
    w.put(e.sample);
    w.put(static_cast<int32_t>(e.reason));
    w.put(e.error);
  }
  w.put(static_cast<uint32_t>(report.given.size()));
  for (const SampleGiven& g : report.given) {
    w.put(g.group);
    w.put(g.sample);
    w.put(g.to);
    w.put(g.num_blocked);
    w.put(g.num_positions);
    w.put(g.generation);
    w.put(g.parcel);
  }
  w.put(static_cast<uint8_t>(report.answered.has_value()));
  if (report.answered) put_move(*report.answered, &w);
  w.put(static_cast<uint8_t>(report.lent.has_value()));
  if (report.lent) put_lend(*report.lent, &w);
  put_names(report.replicas, &w);
  put_names(report.dropped, &w);
}

Status decode_report(WireView in, int32_t num_workers, ProcessReport* report) {
  report->clear();
  WireReader r(in);
  report->load = read_load(&r);
  if (r.flag("has_stats")) for_each_count(report->stats.emplace(), ReadCount{r});
  constexpr size_t kEndBytes = 20, kGivenBytes = 40;
  read_progress(&r, &report->progress);
  report->finished.resize(r.count("finished", kEndBytes));
  for (SampleEnd& e : report->finished) {
    e.group = r.integer<uint64_t>("group", 0, UINT64_MAX);
    e.sample = r.integer<uint32_t>("sample", 0, UINT32_MAX);
    e.reason = static_cast<otr_finish_reason>(r.integer("reason", 0, static_cast<int32_t>(OTR_FINISH_SCORE)));
    e.error = r.text("error");
  }
  report->given.resize(r.count("given", kGivenBytes));
  for (SampleGiven& g : report->given) {
    g.group = r.integer<uint64_t>("group", 0, UINT64_MAX);
    g.sample = r.integer<uint32_t>("sample", 0, UINT32_MAX);
    g.to = r.integer("to", 0, num_workers - 1);
    g.num_blocked = r.integer("num_blocked", 0, kMaxInt);
    g.num_positions = r.integer("num_positions", 0, kMaxInt);
    g.generation = r.integer<uint64_t>("generation", 0, UINT64_MAX);
    g.parcel = r.integer<uint64_t>("parcel", 0, g.num_positions == 0 ? 0 : UINT64_MAX);
  }
  if (r.flag("has_answer")) report->answered = read_move(num_workers, &r);
  if (r.flag("has_lent")) report->lent = read_lend(num_workers, &r);
  read_names("replicas", &r, &report->replicas);
  read_names("dropped", &r, &report->dropped);
  return r.finish("report");
}

// ---- Traces --------------------------------------------------------------------------------------------------------------

namespace {

// One list of a tick's numbers for both directions.
template <typename Tick, typename Plan, typename Visit>
void for_each_number(Tick& t, Plan& p, const Visit& visit) {
  for (auto* n : {&t.number, &t.verified, &t.drafted, &t.accepted, &t.tokens, &t.prefill_tokens}) visit(*n);
  for (auto* n : {&t.batch, &t.rows, &t.offered, &p.depth, &p.top_k, &p.verify_tokens}) visit(*n);
  for (auto* x : {&t.draft_at, &t.draft, &t.verify_at, &t.verify, &t.tick, &p.expected_ms, &p.expected_tokens}) visit(*x);
}

}  // namespace

void encode_tick(const TraceTick& tick, int64_t ended_ns, WireBytes* out) {
  const auto is_wrong = [](double x) { return !(x >= 0 && x <= kMaxSeconds); };  // of what is only expected
  TickPlan plan{.drafters = tick.plan->drafters,
                .depth = tick.plan->depth,
                .top_k = tick.plan->top_k,
                .verify_tokens = tick.plan->verify_tokens,
                .row_depth = {},
                .model_depth = {},
                .expected_ms = tick.plan->expected_ms,
                .expected_tokens = tick.plan->expected_tokens};
  if (is_wrong(plan.expected_ms)) plan.expected_ms = 0;
  if (is_wrong(plan.expected_tokens)) plan.expected_tokens = 0;
  WireWriter w(out);
  w.put(ended_ns);
  w.put(plan.drafters);
  for_each_number(tick, std::as_const(plan), [&w](const auto& n) { w.put(n); });
}

Status decode_ticks(WireView in, int32_t worker, int64_t now_ns, const std::function<void(const TraceTick&)>& visit) {
  constexpr size_t kTickBytes = 8 + sizeof(TickPlan::drafters) + 6 * 8 + 6 * 4 + 7 * 8;
  if (in.size() % kTickBytes != 0) return bad_input("trace: a tick is cut off");
  for (; !in.empty(); in = in.subspan(kTickBytes)) {
    WireReader r(in.first(kTickBytes));
    TraceTick tick;
    TickPlan plan;
    tick.worker = worker;
    tick.plan = &plan;
    const int64_t ended_ns = r.integer<int64_t>("ended", 0, now_ns);
    tick.age = 1e-9 * static_cast<double>(now_ns - ended_ns);
    plan.drafters = r.integer<decltype(plan.drafters)>("drafters", 0, std::numeric_limits<decltype(plan.drafters)>::max());
    for_each_number(tick, plan, ReadCount{r});
    OTR_RETURN_IF_ERROR(r.finish("trace"));
    visit(tick);
  }
  return {};
}

void encode_heartbeat(const Heartbeat& heartbeat, WireBytes* out) {
  WireWriter w(out);
  w.put(heartbeat.turns);
  w.put(static_cast<uint8_t>(heartbeat.at_rest));
}

Result<Heartbeat> decode_heartbeat(WireView in) {
  WireReader r(in);
  Heartbeat h;
  h.turns = r.integer<uint64_t>("turns", 0, UINT64_MAX);
  h.at_rest = r.flag("at_rest");
  OTR_RETURN_IF_ERROR(r.finish("heartbeat"));
  return h;
}

void encode_failed(const Status& status, WireBytes* out) {
  WireWriter w(out);
  w.put(static_cast<int32_t>(status.code()));
  w.put(status.message());
}

Status decode_failed(WireView in) {
  WireReader r(in);
  const int32_t code = r.integer("code", 1, static_cast<int32_t>(StatusCode::kLost));
  const std::string text = r.text("text");
  OTR_RETURN_IF_ERROR(r.finish("failed"));
  return Status(static_cast<StatusCode>(code), text);
}

}  // namespace otr
