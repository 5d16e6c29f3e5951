#include "runtime/model_drafter.h"

#include <algorithm>
#include <limits>

namespace otr {

Result<std::unique_ptr<ModelDrafter>> ModelDrafter::create(const ModelDrafterOptions& options, Worker& worker,
                                                           const std::vector<std::unique_ptr<Sequence>>& live) {
  const ModelOptions model_options{.path = options.path, .kv_bytes = 0, .num_pages = options.num_pages,
                                   .bucket = {.max_rows = options.max_batch + options.chunk, .max_logit_rows = options.max_batch}};
  OTR_ASSIGN_OR_RETURN(std::unique_ptr<ModelRunner> model, ModelRunner::create(model_options, worker.kernels(), worker.pool()));
  const int32_t vocab = model->config().vocab_size, wanted = worker.target().config().vocab_size;
  if (vocab != wanted) {
    return invalid_argument("drafter '" + options.name + "' (" + options.path + ") has a vocabulary of " + std::to_string(vocab) +
                            " tokens, the target one of " + std::to_string(wanted));
  }
  return std::unique_ptr<ModelDrafter>(new ModelDrafter(options, std::move(model), live));
}

ModelDrafter::ModelDrafter(const ModelDrafterOptions& options, std::unique_ptr<ModelRunner> model,
                           const std::vector<std::unique_ptr<Sequence>>& live)
    : options_(options),
      model_(std::move(model)),
      live_(live),
      rows_({.max_rows = options.max_batch + options.chunk, .max_segments = options.max_batch, .max_logit_rows = options.max_batch,
             .max_pages_per_sequence = static_cast<int32_t>(std::min<int64_t>(
                 (context_limit(model_->config()) + kPageTokens - 1) / kPageTokens, options.num_pages))},
            attention_tile_rows(model_->config().num_heads, model_->config().num_kv_heads)) {
  draws_.reserve(static_cast<size_t>(options.max_batch));
  results_.resize(static_cast<size_t>(options.max_batch));
}

ModelDrafter::~ModelDrafter() {
  for (Member& m : members_) m.pages.release_all(&model_->page_pool());
}

void ModelDrafter::join(const DraftSequence& s) {
  if (members_.size() <= static_cast<size_t>(s.slot)) members_.resize(static_cast<size_t>(s.slot) + 1);
  member(s.slot).draft.reserve(kMaxDraftDepth);
}

void ModelDrafter::propose(std::span<const DraftRow> rows, int32_t /*top_k*/, int32_t max_nodes) {
  for (Member& m : members_) m.drafts = false;
  for (const DraftRow& row : rows) member(row.sequence.slot).drafts = row.max_depth > 0;
  page_work_.clear();
  int32_t deepest = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const DraftRow& row = rows[i];
    Member& m = member(row.sequence.slot);
    const int32_t depth = std::min(row.max_depth, max_nodes);
    m.drafts = m.drafts && may_start(rows.first(i), row) && take_pages(row, depth);
    m.tip = Forest::kRoot;
    if (m.drafts) deepest = std::max(deepest, depth);
  }
  model_->prepare(page_work_);
  catch_up(rows);
  for (int32_t level = 1; level <= deepest; ++level) run_level(rows, level, max_nodes);
}

// The first sample of a group computes the prompt for all; the others start drafting in the next tick, on its pages.
bool ModelDrafter::may_start(std::span<const DraftRow> before, const DraftRow& row) {
  Member& m = member(row.sequence.slot);
  const DraftSequence& s = row.sequence;
  if (m.num_computed > 0) return true;
  m.num_computed = m.pages.attach_prefix(&model_->prefix_cache(), s.tokens.first(static_cast<size_t>(s.num_prompt)));
  if (m.num_computed > 0 || s.num_prompt <= kPageTokens) return true;
  return std::none_of(before.begin(), before.end(), [&](const DraftRow& other) {
    return other.sequence.group == s.group && member(other.sequence.slot).drafts;
  });
}

// Makes room for the tokens the row is behind and all drafted ones but the last. False if there is none.
bool ModelDrafter::take_pages(const DraftRow& row, int32_t depth) {
  Member& m = member(row.sequence.slot);
  const int32_t end = static_cast<int32_t>(row.sequence.tokens.size()) + depth - 1;
  if (end > context_limit(model_->config())) return false;
  PrefixCache& cache = model_->prefix_cache();
  const auto short_of = [&] { return m.pages.pages_to_write(model_->page_pool(), m.num_computed, end) > cache.num_available(); };
  for (Member& other : members_) {
    if (!short_of()) break;
    if (other.drafts || &other == &m) continue;
    other.pages.release_all(&model_->page_pool());
    other.num_computed = 0;
  }
  if (short_of()) return false;
  m.pages.prepare_write(&cache, &model_->page_pool(), m.num_computed, end, &page_work_);
  return true;
}

// Runs committed tokens in passes of their own until what is left fits the first level's pass.
void ModelDrafter::catch_up(std::span<const DraftRow> rows) {
  constexpr int32_t kNoLogits = std::numeric_limits<int32_t>::max();
  const int32_t max_rows = options_.max_batch + options_.chunk;
  for (;;) {
    int64_t behind = 0;
    for (const DraftRow& row : rows) {
      const Member& m = member(row.sequence.slot);
      if (m.drafts) behind += static_cast<int64_t>(row.sequence.tokens.size()) - m.num_computed;
    }
    if (behind <= max_rows) return;
    rows_.clear();
    int32_t room = max_rows;
    for (const DraftRow& row : rows) {
      Member& m = member(row.sequence.slot);
      const int32_t last = static_cast<int32_t>(row.sequence.tokens.size()) - 1;
      const int32_t take = m.drafts ? std::min(last - m.num_computed, room) : 0;
      if (take <= 0) continue;
      rows_.add(row.sequence.tokens.subspan(static_cast<size_t>(m.num_computed), static_cast<size_t>(take)), m.num_computed,
                m.pages.pages(), kNoLogits);
      advance(row.sequence, m.num_computed + take);
      room -= take;
    }
    model_->run(rows_.batch());
  }
}

// The committed positions up to `end` are computed, or will be by the next run. A complete prompt is offered to the other samples.
void ModelDrafter::advance(const DraftSequence& s, int32_t end) {
  Member& m = member(s.slot);
  if (m.num_computed < s.num_prompt && end >= s.num_prompt) {
    model_->prefix_cache().insert(s.tokens, m.pages.pages(), s.num_prompt / kPageTokens);
  }
  m.num_computed = end;
}

// Draws every drafting row's token at this depth.
void ModelDrafter::run_level(std::span<const DraftRow> rows, int32_t level, int32_t max_nodes) {
  rows_.clear();
  draws_.clear();
  penalties_.clear();
  for (const DraftRow& row : rows) {
    const DraftSequence& s = row.sequence;
    Member& m = member(s.slot);
    if (!m.drafts) continue;
    const int32_t num_tokens = static_cast<int32_t>(s.tokens.size());
    int32_t logits_row;
    if (level == 1) {
      logits_row = rows_.add(s.tokens.subspan(static_cast<size_t>(m.num_computed)), m.num_computed, m.pages.pages(), num_tokens - 1);
      advance(s, num_tokens);
    } else {
      logits_row = rows_.add({&m.draft.back(), 1}, num_tokens + level - 2, m.pages.pages(), 0);
      m.draft_computed = level - 1;
    }
    SampleDraw draw = sequence(s.slot).draw(logits_row, num_tokens + level - 1, -1);
    penalties_.extend(sequence(s.slot), m.draft, &draw);
    draws_.push_back(draw);
  }
  if (draws_.empty()) return;
  model_->run(rows_.batch());
  model_->draw(draws_.data(), static_cast<int32_t>(draws_.size()), results_.data());
  const SampleResult* drawn = results_.data();
  for (const DraftRow& row : rows) {
    Member& m = member(row.sequence.slot);
    if (!m.drafts) continue;
    const SampleResult& result = *drawn++;
    if (result.fault != 0) {  // a drafter's numbers fail nobody
      m.drafts = false;
      continue;
    }
    const float before = m.tip == Forest::kRoot ? 1.0f : (*row.forest)[m.tip].acceptance;
    m.tip = row.forest->add(m.tip, result.token, before * rate_.value(), options_.number, 0);
    m.draft.push_back(result.token);
    m.drafts = level < std::min(row.max_depth, max_nodes) && !sequence(row.sequence.slot).stops_at(result.token);
  }
}

void ModelDrafter::observe(const DraftVerdict& v) {
  Member& m = member(v.sequence.slot);
  if (m.draft.empty()) return;
  const auto new_tokens = v.sequence.tokens.last(static_cast<size_t>(v.num_new));
  int32_t kept = 0;
  const int32_t drafted = static_cast<int32_t>(m.draft.size());
  while (kept < std::min(drafted, v.num_new) && m.draft[static_cast<size_t>(kept)] == new_tokens[static_cast<size_t>(kept)]) ++kept;
  rate_.add_chain(drafted, kept);
  m.num_computed += std::min(kept, m.draft_computed);
  m.pages.truncate(&model_->page_pool(), m.num_computed);
  m.draft.clear();
  m.draft_computed = 0;
}

void ModelDrafter::leave(int32_t slot) {
  Member& m = member(slot);
  m.pages.release_all(&model_->page_pool());
  m.num_computed = m.draft_computed = 0;
  m.draft.clear();
}

}  // namespace otr
