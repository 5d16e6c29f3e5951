#include "runtime/ledger.h"

#include <algorithm>
#include <utility>

#include "kernels/page/page.h"

namespace otr {
namespace {

Status contradiction(uint64_t group, uint32_t sample, const std::string& what) {
  return bad_input("sample " + std::to_string(sample) + " of group " + std::to_string(group) + " " + what);
}

int32_t most_accepted(const LedgerGroup& g, const LedgerSample& s) { return s.max_tokens - g.group->num_prompt; }

bool can_end(const LedgerGroup& g, const LedgerSample& s, otr_finish_reason reason) {
  const bool is_complete = s.num_accepted() == most_accepted(g, s);
  const std::vector<int32_t>& stops = g.group->stop_ids;
  switch (reason) {
    case OTR_FINISH_STOP: return !s.tokens.empty() && std::binary_search(stops.begin(), stops.end(), s.tokens.back());
    case OTR_FINISH_LENGTH: return is_complete && !g.group->is_score;
    case OTR_FINISH_SCORE: return is_complete && g.group->is_score;
    case OTR_FINISH_ABORT: return g.group->cancelled;
    case OTR_FINISH_ERROR: return true;
  }
  return false;
}

LedgerSample ledger_sample(const Sequence& s, int32_t worker) {
  LedgerSample l;
  l.sample = s.sample;
  l.age = s.age;
  l.worker = worker;
  l.max_tokens = s.max_tokens;
  l.noise = s.noise;
  const size_t most = static_cast<size_t>(s.max_tokens - s.num_prompt());
  if (!s.group->is_score) {
    l.tokens.reserve(most);
    l.tokens.assign(s.tokens.begin() + s.num_prompt(), s.tokens.end());
  }
  l.logprobs.reserve(most);
  l.raw_logprobs.reserve(most);
  l.logprobs = s.logprobs;
  l.raw_logprobs = s.raw_logprobs;
  l.weight_spans = s.weight_spans;
  l.spec = s.spec;
  return l;
}

}  // namespace

void Progress::reserve(size_t num_segments, size_t num_tokens) {
  segments.reserve(num_segments);
  tokens.reserve(num_tokens);
  logprobs.reserve(num_tokens);
  raw_logprobs.reserve(num_tokens);
}

void Progress::add(Sequence* s) {
  const size_t first = static_cast<size_t>(s->num_reported), end = s->raw_logprobs.size();
  if (first == end) return;
  segments.push_back({.group = s->group->id,
                      .sample = s->sample,
                      .first = s->num_reported,
                      .count = static_cast<int32_t>(end - first),
                      .spec = s->spec});
  for (size_t i = first; i < end; ++i) {
    tokens.push_back(s->group->is_score ? -1 : s->tokens[static_cast<size_t>(s->num_prompt()) + i]);
    logprobs.push_back(s->logprobs[i]);
    raw_logprobs.push_back(s->raw_logprobs[i]);
  }
  s->num_reported = static_cast<int32_t>(end);
}

int32_t Progress::longest() const {
  int32_t most = 0;
  for (const ProgressSegment& s : segments) most = std::max(most, s.count);
  return most;
}

void Progress::clear() {
  segments.clear();
  tokens.clear();
  logprobs.clear();
  raw_logprobs.clear();
}

const LedgerSample* LedgerGroup::find(uint32_t sample) const {
  const auto it = std::lower_bound(samples.begin(), samples.end(), sample,
                                   [](const LedgerSample& s, uint32_t index) { return s.sample < index; });
  return it == samples.end() || it->sample != sample || it->is_closed ? nullptr : &*it;
}

std::unique_ptr<Sequence> restore(const LedgerGroup& g, const LedgerSample& l) {
  auto s = std::make_unique<Sequence>();
  s->group = g.group;
  s->sample = l.sample;
  s->age = l.age;
  s->max_tokens = l.max_tokens;
  s->noise = l.noise;
  const size_t most = static_cast<size_t>(most_accepted(g, l));
  s->tokens.reserve(static_cast<size_t>(l.max_tokens));
  s->tokens = g.prompt;
  s->tokens.insert(s->tokens.end(), l.tokens.begin(), l.tokens.end());
  s->logprobs.reserve(most);
  s->logprobs = l.logprobs;
  s->raw_logprobs.reserve(most);
  s->raw_logprobs = l.raw_logprobs;
  s->weight_spans = l.weight_spans;
  s->num_reported = l.num_accepted();
  s->pages.reserve((l.max_tokens + kPageTokens - 1) / kPageTokens);
  if (g.group->sampling.penalised()) {
    s->penalties.reserve(static_cast<size_t>(l.max_tokens));
    const size_t num_prompt = static_cast<size_t>(g.group->num_prompt);
    const std::span<const int32_t> seen(s->tokens.data(), num_prompt + static_cast<size_t>(l.num_accepted()));
    const std::vector<PenaltyEntry> penalties = penalties_of(seen, num_prompt);
    s->penalties.assign(penalties.begin(), penalties.end());
  }
  s->spec = l.spec;
  s->finish_reason = l.finish_reason;
  s->error = l.error;
  return s;
}

void Ledger::open(std::span<const std::unique_ptr<Sequence>> sequences, int32_t worker) {
  const Sequence& first = *sequences.front();
  LedgerGroup g;
  g.group = first.group;
  const auto end = first.group->is_score ? first.tokens.end() : first.tokens.begin() + first.num_prompt();
  g.prompt.assign(first.tokens.begin(), end);
  g.samples.reserve(sequences.size());
  for (const auto& s : sequences) g.samples.push_back(ledger_sample(*s, worker));
  std::sort(g.samples.begin(), g.samples.end(),
            [](const LedgerSample& a, const LedgerSample& b) { return a.sample < b.sample; });
  g.num_open = static_cast<int32_t>(g.samples.size());
  groups_.emplace(first.group->id, std::move(g));
}

Status Ledger::append(int32_t worker, const Progress& progress, int32_t vocab_size) {
  const size_t total = progress.tokens.size();
  leaps_.clear();
  if (has_leapt_) leaps_.reserve(progress.segments.size());  // else nothing has changed
  if (progress.logprobs.size() != total || progress.raw_logprobs.size() != total)
    return bad_input("progress has arrays of different lengths");
  size_t at = 0;
  for (const ProgressSegment& p : progress.segments) {
    if (p.count < 1 || static_cast<size_t>(p.count) > total - at)
      return contradiction(p.group, p.sample, "has numbers that did not come");
    OTR_RETURN_IF_ERROR(append_segment(worker, p, at, progress, vocab_size));
    at += static_cast<size_t>(p.count);
  }
  return at == total ? Status() : bad_input("progress has numbers without a sample");
}

// Of a sample that races, what is known already is compared.
Status Ledger::append_segment(int32_t worker, const ProgressSegment& p, size_t at, const Progress& progress,
                              int32_t vocab_size) {
  LedgerSample* s = find(p.group, p.sample);
  if (s == nullptr || s->is_over() || !s->is_at(worker)) {
    if (is_straggler(worker, p.group, p.sample)) return {};
    return contradiction(p.group, p.sample, "is not at the worker that reports it");
  }
  const LedgerGroup& g = groups_.at(p.group);
  const int32_t known = s->raced ? std::min(s->num_accepted() - p.first, p.count) : 0;
  if (p.first < 0 || p.first + known > s->num_accepted() || known < 0 || (!s->raced && p.first != s->num_accepted()) ||
      p.count > most_accepted(g, *s) - p.first) {
    return contradiction(p.group, p.sample,
                         "has " + std::to_string(s->num_accepted()) + " tokens and cannot get " + std::to_string(p.count) +
                             " from " + std::to_string(p.first) + " on");
  }
  const bool is_score = g.group->is_score;
  for (size_t i = at; i < at + static_cast<size_t>(p.count); ++i) {
    if (is_score ? progress.tokens[i] != -1 : progress.tokens[i] < 0 || progress.tokens[i] >= vocab_size) {
      return contradiction(p.group, p.sample, "cannot have token " + std::to_string(progress.tokens[i]));
    }
  }
  const auto same = [&](const auto& from, const auto& have) {
    return std::equal(have.begin() + p.first, have.begin() + p.first + known, from.begin() + static_cast<std::ptrdiff_t>(at));
  };
  if (known > 0 && !(same(progress.tokens, s->tokens) && same(progress.logprobs, s->logprobs) &&
                     same(progress.raw_logprobs, s->raw_logprobs))) {
    return contradiction(p.group, p.sample, "is not what another replica of it is");
  }
  if (known == p.count) return {};
  const std::ptrdiff_t begin = static_cast<std::ptrdiff_t>(at) + known, end = static_cast<std::ptrdiff_t>(at) + p.count;
  const auto copy = [begin, end](const auto& from, auto* to) {
    to->insert(to->end(), from.begin() + begin, from.begin() + end);
  };
  if (s->leaps) leaps_.push_back({.group = p.group, .sample = p.sample, .first = p.first + known, .count = p.count - known});
  if (!is_score) copy(progress.tokens, &s->tokens);
  copy(progress.logprobs, &s->logprobs);
  copy(progress.raw_logprobs, &s->raw_logprobs);
  s->spec = p.spec;
  return {};
}

Result<LedgerSample*> Ledger::ended_at(int32_t worker, uint64_t group, uint32_t sample) {
  LedgerSample* s = find(group, sample);
  if (s != nullptr && !s->is_over() && s->is_at(worker)) return s;
  const auto late = stragglers_.find({group, sample, worker});
  if (late == stragglers_.end()) return contradiction(group, sample, "is not at the worker that ends it");
  stragglers_.erase(late);
  return nullptr;
}

// Without memory nothing has changed but which replica counts as the sample.
void Ledger::make_stragglers(int32_t worker, uint64_t group, LedgerSample* s) {
  if (worker != s->worker) *std::find(s->replicas.begin(), s->replicas.end(), worker) = std::exchange(s->worker, worker);
  decltype(stragglers_) late;
  for (const int32_t other : s->replicas) late.emplace(group, s->sample, other);
  stragglers_.merge(late);
}

Result<bool> Ledger::fail(int32_t worker, uint64_t group, uint32_t sample) {
  OTR_ASSIGN_OR_RETURN(LedgerSample * s, ended_at(worker, group, sample));
  if (s == nullptr) return false;
  make_stragglers(worker, group, s);
  s->replicas.clear();
  s->has_failed = true;
  return true;
}

Result<bool> Ledger::finish(int32_t worker, uint64_t group, uint32_t sample, otr_finish_reason reason, const std::string& error,
                            bool is_last) {
  OTR_ASSIGN_OR_RETURN(LedgerSample * s, ended_at(worker, group, sample));
  if (s == nullptr) return false;
  const LedgerGroup& g = groups_.at(group);
  if (!can_end(g, *s, reason))
    return contradiction(group, sample, std::string("cannot end with ") + otr_finish_reason_text(reason));
  if (reason == OTR_FINISH_ERROR && !is_last && lose(worker, group, sample)) return false;
  s->error = error;
  make_stragglers(worker, group, s);
  if (reason == OTR_FINISH_ERROR && g.group->is_score) s->raw_logprobs.clear();
  s->finish_reason = reason;
  s->is_finished = true;
  return true;
}

void Ledger::move(uint64_t group, uint32_t sample, int32_t from, int32_t to) {
  LedgerSample* s = find(group, sample);
  if (s != nullptr && !s->is_over() && s->worker == from) {
    s->worker = to;
  } else if (s != nullptr && !s->is_over()) {
    const auto replica = std::find(s->replicas.begin(), s->replicas.end(), from);
    if (replica != s->replicas.end()) *replica = to;
  } else if (const auto late = stragglers_.find({group, sample, from}); late != stragglers_.end()) {
    auto node = stragglers_.extract(late);
    node.value() = {group, sample, to};
    stragglers_.insert(std::move(node));
  }
}

bool Ledger::lend(uint64_t group, uint32_t sample, int32_t to, bool leaps) {
  LedgerSample* s = find(group, sample);
  if (s == nullptr || s->is_over()) {
    stragglers_.emplace(group, sample, to);  // it is on its way nevertheless
    return false;
  }
  s->replicas.push_back(to);
  s->raced = true;
  s->leaps = leaps;
  has_leapt_ |= leaps;
  return true;
}

bool Ledger::lose(int32_t worker, uint64_t group, uint32_t sample) {
  LedgerSample* s = find(group, sample);
  if (s == nullptr || s->replicas.empty()) return false;
  if (s->worker == worker) {
    s->worker = s->replicas.back();
    s->replicas.pop_back();
  } else {
    s->replicas.erase(std::find(s->replicas.begin(), s->replicas.end(), worker));
  }
  return true;
}

Status Ledger::drop(int32_t worker, uint64_t group, uint32_t sample) {
  if (const auto late = stragglers_.find({group, sample, worker}); late != stragglers_.end()) {
    stragglers_.erase(late);
    return {};
  }
  const LedgerSample* s = find(group, sample);
  if (s != nullptr && !s->is_over() && s->is_at(worker) && lose(worker, group, sample)) return {};
  return contradiction(group, sample, "has no replica that could be dropped");
}

int32_t Ledger::lose_stragglers(int32_t worker) {
  return static_cast<int32_t>(std::erase_if(stragglers_, [worker](const auto& s) { return std::get<2>(s) == worker; }));
}

template <typename Visit>
void Ledger::for_each_unfinished(const Visit& visit) {
  for (auto& [id, group] : groups_) {
    for (LedgerSample& s : group.samples) {
      if (!s.is_closed && !s.is_finished) visit(group, s);
    }
  }
}

void Ledger::reserve_spans() {
  for_each_unfinished([](const LedgerGroup&, LedgerSample& s) { reserve_span(&s.weight_spans); });
}

void Ledger::rewind() {
  stragglers_.clear();
  for_each_unfinished([](const LedgerGroup& g, LedgerSample& s) {
    s.replicas.clear();
    s.raced = s.leaps = false;
    if (!g.group->is_score) return;
    s.logprobs.resize(static_cast<size_t>(g.group->num_unscored()));
    s.raw_logprobs.resize(static_cast<size_t>(g.group->num_unscored()));
  });
}

void Ledger::change_weights(uint64_t version) {
  for_each_unfinished([version](const LedgerGroup&, LedgerSample& s) {
    add_weight_span(s.tokens.size(), version, &s.weight_spans);  // a score has none of its own
  });
}

void Ledger::close(uint64_t group, uint32_t sample) {
  LedgerSample* s = find(group, sample);
  if (s == nullptr) return;
  *s = LedgerSample{
      .sample = sample, .tokens = {}, .logprobs = {}, .raw_logprobs = {}, .weight_spans = {}, .is_closed = true, .error = {}};
  const auto it = groups_.find(group);
  if (--it->second.num_open == 0) groups_.erase(it);
}

const LedgerGroup* Ledger::find(uint64_t group) const {
  const auto it = groups_.find(group);
  return it == groups_.end() ? nullptr : &it->second;
}

LedgerSample* Ledger::find(uint64_t group, uint32_t sample) {
  const auto it = groups_.find(group);
  return it == groups_.end() ? nullptr : it->second.find(sample);
}

}  // namespace otr
