#include "runtime/model_drafter.h"

#include <algorithm>
#include <limits>

namespace otr {

Result<std::unique_ptr<ModelDrafter>> ModelDrafter::create(const TreeDrafterOptions& options, const DrafterModel& drafter,
                                                           Device& device, const LiveSequences& live,
                                                           const ModelRunner* share) {
  const ModelOptions model_options{.path = drafter.path,
                                   .in_4_bits = drafter.in_4_bits,
                                   .kv_bytes = 0,
                                   .num_pages = device.target().page_pool().num_pages(),
                                   .bucket = bucket(options),
                                   .share_logits = &device.target(),
                                   .shared_memory = device.target().in_shared_memory(),
                                   .attach = drafter.shared ? &*drafter.shared : nullptr,
                                   .share_weights = share};
  OTR_ASSIGN_OR_RETURN(std::unique_ptr<ModelRunner> runner, ModelRunner::create(model_options, device.kernels(), device.pool(),
                                                                                device.accelerator(), device.programs()));
  const int32_t vocab = runner->config().vocab_size, wanted = device.target().config().vocab_size;
  if (vocab != wanted) {
    return invalid_argument("drafter '" + drafter.name + "' (" + drafter.path + ") has a vocabulary of " +
                            std::to_string(vocab) + " tokens, the target one of " + std::to_string(wanted));
  }
  std::unique_ptr<ModelDrafter> made(new ModelDrafter(options, std::move(runner), live));
  OTR_RETURN_IF_ERROR(made->create_chain());
  return made;
}

ModelDrafter::ModelDrafter(const TreeDrafterOptions& options, std::unique_ptr<ModelRunner> runner, const LiveSequences& live)
    : TreeDrafter(options, *runner, runner->program(), live), runner_(std::move(runner)) {}

ModelDrafter::~ModelDrafter() {
  for (Cache& c : caches_) c.pages.release_all(&model_.page_pool());
}

void ModelDrafter::join(const DraftSequence& s) {
  TreeDrafter::join(s);
  if (caches_.size() <= static_cast<size_t>(s.slot)) caches_.resize(static_cast<size_t>(s.slot) + 1);
}

// The first sample of a group computes the prompt for all; the others start drafting in the next tick, on its pages.
bool ModelDrafter::may_start(const DraftRow& row, std::span<const DraftRow> before) {
  const DraftSequence& s = row.sequence;
  Cache& c = cache(s.slot);
  if (c.num_computed > 0) return true;
  c.num_computed = c.pages.attach_prefix(&model_.prefix_cache(), s.tokens.first(static_cast<size_t>(s.num_prompt)));
  if (c.num_computed > 0 || s.num_prompt <= kPageTokens) return true;
  return std::none_of(before.begin(), before.end(),
                      [&](const DraftRow& other) { return other.sequence.group == s.group && drafts(other.sequence.slot); });
}

// What admit() would find on the prefix cache's pages counts as known.
int32_t ModelDrafter::behind(const DraftSequence& s) const {
  int32_t known = num_computed(s.slot);
  if (known == 0) {
    const int32_t pages = (s.num_prompt - 1) / kPageTokens;
    known = model_.prefix_cache().match_length(s.tokens.first(static_cast<size_t>(s.num_prompt)), pages) * kPageTokens;
  }
  return std::max(0, static_cast<int32_t>(s.tokens.size()) - 1 - known);
}

bool ModelDrafter::admit(const DraftRow& row, std::span<const DraftRow> before, int32_t depth, PageWork* work) {
  const int32_t end = static_cast<int32_t>(row.sequence.tokens.size()) + depth - 1;
  if (end > context_limit(model_.config()) || !may_start(row, before)) return false;
  Cache& c = cache(row.sequence.slot);
  PrefixCache& prefixes = model_.prefix_cache();
  const auto short_of = [&] {
    return c.pages.pages_to_write(model_.page_pool(), c.num_computed, end) > prefixes.num_available();
  };
  for (size_t slot = 0; slot < caches_.size() && short_of(); ++slot) {
    if (drafts(static_cast<int32_t>(slot))) continue;
    caches_[slot].pages.release_all(&model_.page_pool());
    caches_[slot].num_computed = 0;
  }
  if (short_of()) return false;
  c.pages.prepare_write(&prefixes, &model_.page_pool(), c.num_computed, end, work);
  return true;
}

void ModelDrafter::catch_up(std::span<const DraftRow> all) {
  constexpr int32_t kNoLogits = std::numeric_limits<int32_t>::max();
  for (;;) {
    int64_t behind = 0;
    for (const DraftRow& row : all) {
      if (drafts(row.sequence.slot))
        behind += static_cast<int64_t>(row.sequence.tokens.size()) - num_computed(row.sequence.slot);
    }
    if (behind <= max_rows()) return;
    rows().clear();
    int32_t room = max_rows();
    for (const DraftRow& row : all) {
      const DraftSequence& s = row.sequence;
      if (!drafts(s.slot)) continue;
      const int32_t begin = num_computed(s.slot);
      const int32_t take = std::min(static_cast<int32_t>(s.tokens.size()) - 1 - begin, room);
      if (take <= 0) continue;
      rows().add(s.tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(take)), begin, table(s.slot).pages(),
                 kNoLogits);
      advance(s, begin + take);
      room -= take;
    }
    run_rows();
  }
}

// The committed positions up to `end` are computed, or will be by the next pass. A complete prompt is offered to the other
// samples.
void ModelDrafter::advance(const DraftSequence& s, int32_t end) {
  Cache& c = cache(s.slot);
  if (c.num_computed < s.num_prompt && end >= s.num_prompt) {
    model_.prefix_cache().insert(s.tokens, c.pages.pages(), s.num_prompt / kPageTokens);
  }
  c.num_computed = end;
}

void ModelDrafter::keep_drafted(int32_t slot, int32_t count) {
  Cache& c = cache(slot);
  c.num_computed += count;
  c.pages.truncate(&model_.page_pool(), c.num_computed);
}

void ModelDrafter::rewind(int32_t slot, int32_t num_tokens) {
  Cache& c = cache(slot);
  c.num_computed = std::min(c.num_computed, num_tokens);
  c.pages.truncate(&model_.page_pool(), c.num_computed);
}

void ModelDrafter::forget() {
  for (Cache& c : caches_) {
    c.pages.release_all(&model_.page_pool());
    c.num_computed = 0;
  }
}

void ModelDrafter::leave(int32_t slot) {
  TreeDrafter::leave(slot);
  if (static_cast<size_t>(slot) >= caches_.size()) return;
  Cache& c = cache(slot);
  if (c.num_computed > 0) {  // what was drafted and not kept is not among them
    c.pages.publish(&model_.prefix_cache(), sequence(slot).tokens, c.num_computed / kPageTokens);
  }
  c.pages.release_all(&model_.page_pool());
  c.num_computed = 0;
}

}  // namespace otr
