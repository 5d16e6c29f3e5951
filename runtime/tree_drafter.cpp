#include "runtime/tree_drafter.h"

#include <algorithm>
#include <utility>

namespace otr {
namespace {

// Gives the paths' pages back at the end of a propose(), however it ends.
class PathsOfOneCall {
 public:
  PathsOfOneCall(DraftPaths* paths, PagePool* pool) : paths_(paths), pool_(pool) {}
  ~PathsOfOneCall() { paths_->clear(pool_); }
  PathsOfOneCall(const PathsOfOneCall&) = delete;
  PathsOfOneCall& operator=(const PathsOfOneCall&) = delete;

 private:
  DraftPaths* paths_;
  PagePool* pool_;
};

static_assert(kMaxCandidates <= Calibration::kMostCandidates);

CandidatePlace place_of(const Candidates& c) {
  const size_t count = static_cast<size_t>(c.count);
  return {.scores = {c.score, count}, .pi = {c.pi, count}, .gaps = {c.gap, count}, .mean_score = c.mean_score};
}

// Bit i: candidate i is a child of this node of the forest.
uint32_t verified_of(const Forest& forest, int32_t node, const Candidates& c) {
  uint32_t bits = 0;
  for (int32_t i = 0; i < c.count && node != Forest::kNone; ++i) {
    bits |= uint32_t{forest.child(node, c.tokens[i]) != Forest::kNone} << i;
  }
  return bits;
}

}  // namespace

TreeDrafter::TreeDrafter(const TreeDrafterOptions& options, ModelRunner& model, const ForwardProgram& program,
                         const LiveSequences& live)
    : model_(model),
      program_(program),
      options_(options),
      live_(live),
      rows_({.max_rows = options.max_batch + options.chunk + options.max_draft_rows,
             .max_segments = options.max_batch + options.max_draft_rows,
             .max_logit_rows = options.max_batch + options.max_draft_rows,
             .max_pages_per_sequence = static_cast<int32_t>(std::min<int64_t>(
                 (context_limit(model.config()) + kPageTokens - 1) / kPageTokens, model.page_pool().num_pages()))},
            model.tile_rows()),
      paths_(options.max_draft_rows, 2 * options.max_draft_rows) {
  const size_t rows = static_cast<size_t>(options.max_batch + options.max_draft_rows);
  draws_.reserve(rows);
  candidates_.resize(rows);
  frontier_.reserve(rows);
  tokens_.reserve(kMaxDraftDepth);
  page_work_.copy_from.reserve(rows);
  page_work_.copy_to.reserve(rows);
  page_work_.zero.reserve(2 * rows + static_cast<size_t>(options.chunk));
}

Status TreeDrafter::create_chain() {
  OTR_ASSIGN_OR_RETURN(chain_, model_.make_chain(static_cast<int32_t>(candidates_.size())));
  if (chain_ != nullptr) from_.reserve(static_cast<size_t>(options_.max_batch));
  return {};
}

// Makes room for one more row, if there are fewer than a propose() may have.
void TreeDrafter::join(const DraftSequence& s) {
  const size_t slot = static_cast<size_t>(s.slot);
  if (row_of_.size() <= slot) row_of_.resize(slot + 1, kAbsent);
  if (members_.size() < static_cast<size_t>(std::min(num_joined_ + 1, options_.max_batch))) {
    Member m;
    m.tree.reserve(options_.max_nodes, options_.top_k);
    m.places.reserve(most_places());
    m.place_of.reserve(m.tree.capacity());
    m.own_chain.reserve(kMaxDraftDepth);
    members_.push_back(std::move(m));
  }
  row_of_[slot] = kNoRow;
  ++num_joined_;
}

bool TreeDrafter::begin(std::span<const DraftRow> rows, const DraftLimits& limits) {
  begun_ = false;  // a propose() that should have followed may have been given up
  if (chain_ == nullptr) return false;
  start(rows, limits);
  begun_ = true;
  return chains_;
}

DraftWork TreeDrafter::propose(std::span<const DraftRow> rows, const DraftLimits& limits) {
  const PathsOfOneCall paths_end_here(&paths_, &model_.page_pool());
  if (!std::exchange(begun_, false)) start(rows, limits);
  if (chains_) collect_chains(rows);
  for (int32_t level = 1, last = chains_ ? 0 : deepest(rows); level <= last; ++level) {
    if (level > 1 && limits.gate != nullptr) pass_gate(rows, level, limits.gate);
    run_level(rows, level, limits.top_k);
  }
  for (const DraftRow& row : rows) member(row.sequence.slot).tree.export_to(row.forest, options_.number);
  return work_;
}

// Finds who drafts, runs what they lack, and asks for chains that can grow by themselves.
void TreeDrafter::start(std::span<const DraftRow> rows, const DraftLimits& limits) {
  page_work_.clear();
  work_ = {};
  for (int32_t& row : row_of_) row = std::min(row, kNoRow);
  for (size_t i = 0; i < rows.size(); ++i) {
    row_of_[static_cast<size_t>(rows[i].sequence.slot)] = static_cast<int32_t>(i);
    members_[i].drafts = true;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    Member& m = member(rows[i].sequence.slot);
    const int32_t depth = std::min(rows[i].max_depth, limits.max_nodes);
    m.places.clear();
    m.place_of.clear();
    m.own_chain.clear();
    m.tree.reset(limits.max_nodes);
    m.depth = depth;
    m.drafts = admit(rows[i], rows.first(i), depth, &page_work_);
  }
  model_.prepare(page_work_);
  catch_up(rows);
  chains_ = may_chain(rows, limits) && deepest(rows) > 0;
  if (chains_) launch_chains(rows);
}

int32_t TreeDrafter::deepest(std::span<const DraftRow> rows) const {
  int32_t most = 0;
  for (const DraftRow& row : rows)
    most = drafts(row.sequence.slot) ? std::max(most, member_of(row.sequence.slot)->depth) : most;
  return most;
}

// Drops what is not worth a row from the frontiers.
void TreeDrafter::pass_gate(std::span<const DraftRow> rows, int32_t level, DraftGate* gate) {
  frontier_.clear();
  for (const DraftRow& row : rows) {
    const Member& m = member(row.sequence.slot);
    if (!m.drafts) continue;
    for (const int32_t node : m.tree.frontier()) frontier_.push_back(m.tree[node].acceptance);
  }
  if (frontier_.empty()) return;
  const float least = gate->least_acceptance(options_.number, level, frontier_);
  for (const DraftRow& row : rows) {
    Member& m = member(row.sequence.slot);
    if (!m.drafts) continue;
    m.tree.keep_frontier([&m, least](int32_t node) { return m.tree[node].acceptance >= least; });
    m.drafts = !m.tree.frontier().empty();
  }
}

void TreeDrafter::run_rows() {
  program_.run(rows_.batch());
  options_.paced.hold(rows_.batch());
  note_work();
}

void TreeDrafter::note_work() {
  const RowBatch rows = rows_.batch();
  ++work_.passes;
  work_.rows += rows.num_rows;
  work_.silent += rows.num_rows - rows.num_logit_rows;
}

// Runs every frontier and hangs the candidates under it.
void TreeDrafter::run_level(std::span<const DraftRow> rows, int32_t level, int32_t top_k) {
  rows_.clear();
  draws_.clear();
  penalties_.clear();
  page_work_.clear();
  for (const DraftRow& row : rows) {
    if (member(row.sequence.slot).drafts) add_rows(row, level);
  }
  if (draws_.empty()) return;
  model_.prepare(page_work_);
  run_rows();
  model_.candidates(program_, draws_.data(), static_cast<int32_t>(draws_.size()), top_k, candidates_.data());
  if (options_.paced.dial.on()) spoil_candidates();
  const Candidates* found = candidates_.data();
  for (const DraftRow& row : rows) {
    Member& m = member(row.sequence.slot);
    if (!m.drafts) continue;
    const Sequence& s = sequence(row.sequence.slot);
    for (const int32_t node : m.tree.frontier()) {
      hang(&m, s, node, *found++);
    }
    m.drafts = level < row.max_depth && m.tree.next_level([&s](int32_t token) { return s.stops_at(token); });
  }
}

// What was found at a node becomes its children.
void TreeDrafter::hang(Member* m, const Sequence& s, int32_t node, const Candidates& c) {
  m->place_of.resize(static_cast<size_t>(m->tree.size()), -1);
  m->place_of[static_cast<size_t>(node)] = static_cast<int32_t>(m->places.size());
  m->places.push_back(c);
  const size_t count = static_cast<size_t>(c.count);  // none where the logits are not finite: a drafter's numbers fail nobody
  if (options_.by_q) std::copy(c.pi, c.pi + count, growth_.begin());
  else calibration(s).calibrate(place_of(c), {growth_.data(), count});
  m->tree.add_children(node, {c.tokens, count}, {growth_.data(), count});
}

// The next of the level's draws: behind `depth` drafted tokens, whose penalties are not in it.
void TreeDrafter::add_draw(const DraftSequence& s, int32_t depth) {
  const Sequence& live = sequence(s.slot);
  SampleDraw draw = live.draw(static_cast<int32_t>(draws_.size()), static_cast<int32_t>(s.tokens.size()) + depth, -1);
  if (options_.uncoupled) draw.noise.r[3] ^= kNoiseDomainUncoupled;
  draws_.push_back({draw, options_.by_q ? 1.0f : 1.0f / calibration(live).beta(), options_.by_q});
}

// ---- Chains that grow on the device ----------------------------------------------------------------------------------------

bool TreeDrafter::may_chain(std::span<const DraftRow> rows, const DraftLimits& limits) const {
  if (chain_ == nullptr || limits.top_k != 1 || limits.gate != nullptr || options_.paced.pace != nullptr) return false;
  int64_t num_draws = 0;
  for (const DraftRow& row : rows) {
    if (!drafts(row.sequence.slot)) continue;
    if (sequence(row.sequence.slot).group->sampling.penalised()) return false;
    num_draws += member_of(row.sequence.slot)->depth;
  }
  return num_draws <= static_cast<int64_t>(candidates_.size());
}

// All levels are asked for one behind the other. Sequences whose chain ends early, at a stop, run on: nobody reads that.
void TreeDrafter::launch_chains(std::span<const DraftRow> rows) {
  chain_->begin();
  for (int32_t level = 1, last = deepest(rows); level <= last; ++level) run_chain_level(rows, level);
}

// Waits for them. Who drafts is still as it was asked for: nothing has been hung since.
void TreeDrafter::collect_chains(std::span<const DraftRow> rows) {
  const int32_t last = deepest(rows);
  chain_->finish(candidates_.data());
  const Candidates* found = candidates_.data();
  for (int32_t level = 1; level <= last; ++level) {
    for (const DraftRow& row : rows) {
      Member& m = member(row.sequence.slot);
      if (m.newest_draw < 0 || level > m.depth) continue;
      const Candidates& c = *found++;
      if (!m.drafts) continue;
      const Sequence& s = sequence(row.sequence.slot);
      const int32_t node = m.tree.frontier().front();
      if (level > 1) m.own_chain.push_back(m.tree[node].token);
      hang(&m, s, node, c);
      m.drafts = m.tree.next_level([&s](int32_t token) { return s.stops_at(token); });
    }
  }
}

void TreeDrafter::run_chain_level(std::span<const DraftRow> rows, int32_t level) {
  constexpr int32_t kAnyToken = 0;
  rows_.clear();
  draws_.clear();
  penalties_.clear();
  from_.clear();
  for (const DraftRow& row : rows) {
    const DraftSequence& s = row.sequence;
    Member& m = member(s.slot);
    if (level == 1) m.newest_draw = -1;
    if (!m.drafts || level > m.depth) continue;
    if (level == 1) {
      add_rows(row, level);
    } else {
      from_.push_back(m.newest_draw);
      rows_.add({&kAnyToken, 1}, static_cast<int32_t>(s.tokens.size()) + level - 2, table(s.slot).pages(), 0);
      add_draw(s, level - 1);
    }
    m.newest_draw = chain_->num_draws() + static_cast<int32_t>(draws_.size()) - 1;
  }
  program_.run(rows_.batch(), [this](int32_t* token_ids) { chain_->set_tokens(from_, token_ids); });
  note_work();
  chain_->draw(program_.logits(), draws_);
}

// ---- Trees -----------------------------------------------------------------------------------------------------------------

// The first candidate of a spoilt place becomes a token that is none of its candidates.
void TreeDrafter::spoil_candidates() {
  const int32_t vocab = model_.config().vocab_size;
  for (size_t i = 0; i < draws_.size(); ++i) {
    Candidates& c = candidates_[i];
    const SampleDraw& draw = draws_[i].draw;
    if (c.count == 0 || !options_.paced.dial.spoils(draw.noise, draw.position)) continue;
    int32_t wrong = c.tokens[0];
    do wrong = (wrong + 1) % vocab;
    while (std::find(c.tokens, c.tokens + c.count, wrong) != c.tokens + c.count && wrong != c.tokens[0]);
    c.tokens[0] = wrong;
  }
}

// The rows and draws of one sequence's frontier. Nodes that find no pages, or no place, are not expanded.
void TreeDrafter::add_rows(const DraftRow& row, int32_t level) {
  const DraftSequence& s = row.sequence;
  Member& m = member(s.slot);
  const PageTable& pages = table(s.slot);
  const int32_t num_tokens = static_cast<int32_t>(s.tokens.size());
  const auto add_draw_at = [&](int32_t node) {
    add_draw(s, m.tree[node].depth);
    m.tree.tokens_to(node, &tokens_);
    penalties_.extend(sequence(s.slot), tokens_, &draws_.back().draw);
  };
  if (level == 1) {
    const int32_t begin = num_computed(s.slot);
    rows_.add(s.tokens.subspan(static_cast<size_t>(begin)), begin, pages.pages(), num_tokens - 1);
    run_committed(s);
    add_draw_at(DraftTree::kRoot);
    return;
  }
  int32_t last_parent = -1;
  size_t room = most_places() - m.places.size();
  m.tree.keep_frontier([&](int32_t node) {
    if (room == 0) return false;
    const bool first_child = m.tree[node].parent != last_parent;
    last_parent = m.tree[node].parent;
    if (!place(s, &m, node, first_child, row.max_depth)) return false;
    add_draw_at(node);
    --room;
    return true;
  });
}

// Gives a node its path and adds its row. A parent's first child goes on where the parent is; the others on copies.
bool TreeDrafter::place(const DraftSequence& s, Member* m, int32_t node, bool first_child, int32_t max_depth) {
  const int32_t first = static_cast<int32_t>(s.tokens.size());  // the first drafted position
  const DraftTree::Node& n = m->tree[node];
  const int32_t position = first + n.depth - 1;
  int32_t path = m->tree[n.parent].path;
  if (!first_child) {
    path = paths_.add(table(s.slot), path, first, position, first + max_depth - 1, &model_.prefix_cache(), &page_work_);
    if (path == DraftPaths::kNoPath) return false;
  }
  m->tree.set_path(node, path);
  const std::vector<PageId>& pages = table(s.slot).pages();
  if (path == DraftPaths::kNoPath) {
    m->own_chain.push_back(n.token);
    rows_.add({&n.token, 1}, position, pages, 0);
  } else {
    rows_.add_path({&n.token, 1}, position, std::span(pages).first(static_cast<size_t>(first / kPageTokens)),
                   paths_.pages(path));
  }
  return true;
}

void TreeDrafter::observe(const DraftVerdict& v) {
  if (member_of(v.sequence.slot) == nullptr) return;
  Member& m = member(v.sequence.slot);
  if (m.places.empty()) return;
  const auto new_tokens = v.sequence.tokens.last(static_cast<size_t>(v.num_new));
  // The newest token is run again in any case, for its logits: it may have been drafted and left out of the verified tree.
  const size_t most = std::min(m.own_chain.size(), new_tokens.size() - 1);
  size_t kept = 0;
  while (kept < most && m.own_chain[kept] == new_tokens[kept]) ++kept;
  keep_drafted(v.sequence.slot, static_cast<int32_t>(kept));

  // Every place on the target's way that was expanded teaches, where there is something to learn.
  Calibration& calibration = calibrations_[sequence(v.sequence.slot).group->sampling.temperature == 0.0f];
  int32_t node = DraftTree::kRoot, verified_node = Forest::kRoot;
  for (const int32_t token : new_tokens) {
    const int32_t at = static_cast<size_t>(node) < m.place_of.size() ? m.place_of[static_cast<size_t>(node)] : -1;
    if (at < 0) break;
    const Candidates& c = m.places[static_cast<size_t>(at)];
    const size_t count = static_cast<size_t>(c.count);
    const int32_t* found = std::find(c.tokens, c.tokens + count, token);
    const int32_t chosen = found == c.tokens + count ? -1 : static_cast<int32_t>(found - c.tokens);
    if (count > 0 && !options_.by_q) calibration.observe(place_of(c), chosen, verified_of(*v.forest, verified_node, c));
    if (chosen < 0) break;
    if (verified_node != Forest::kNone) verified_node = v.forest->child(verified_node, token);
    node = m.tree[node].first_child + chosen;
  }
  m.places.clear();
}

void TreeDrafter::leave(int32_t slot) {
  if (static_cast<size_t>(slot) >= row_of_.size() || row_of_[static_cast<size_t>(slot)] == kAbsent) return;  // memory ran out
  row_of_[static_cast<size_t>(slot)] = kAbsent;
  --num_joined_;
}

}  // namespace otr
