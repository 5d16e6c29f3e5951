// Messages with something in every field: for the tests of the wire and the seeds of its fuzz target.
#pragma once

#include <memory>
#include <string>

#include "runtime/report_wire.h"

namespace otr {

inline constexpr StartLimits kSampleLimits{.vocab_size = 100, .context_limit = 64, .num_pages = 8};

inline SharedModel sample_model(int first_file, int quantized) {
  SharedModel m;
  m.config = {.architecture = Architecture::kQwen3,
              .hidden_size = 32,
              .intermediate_size = 48,
              .num_layers = 2,
              .num_heads = 4,
              .num_kv_heads = 2,
              .head_dim = 32,
              .vocab_size = 97,
              .max_position_embeddings = 64,
              .rms_norm_eps = 1e-6,
              .rope_theta = 1e4,
              .yarn = YarnScaling{.factor = 2, .original_max_positions = 64},
              .tie_word_embeddings = true,
              .qkv_bias = false,
              .qk_norm = true,
              .eos_ids = {3, 5},
              .experts = ExpertsConfig{
                  .num_experts = 6, .experts_per_token = 2, .intermediate_size = 24, .normalised = true, .dense_layers = {1}}};
  m.files = {.packed = first_file, .embedding = -1, .vectors = first_file + 1};
  m.quantized = quantized;
  m.converted_tensors = 3;
  return m;
}

inline WorkerSetup sample_setup() {
  WorkerSetup s;
  s.build = "1.2.3";
  s.index = 1;
  s.num_workers = 3;
  s.max_batch = 7;
  s.max_draft_rows = 9;
  s.policy = "fixed:small:3";
  s.drafters = {"small"};
  s.isa = "cpu-scalar";
  s.gpu = 3;
  s.kv_bytes = 1 << 20;
  s.profile = "/profiles/gpu";
  s.nccl_library = "libnccl.so.2";
  s.num_pages = 11;
  s.timeout_ms = 500;
  s.proofs.faults = {{.worker = 1, .life = 2, .step = ProtocolStep::kGive, .occurrence = 3, .kind = FaultKind::kLie}};
  s.costs.resize(1);
  s.costs[0].roles[1].row_ms = 0.25;
  s.costs[0].roles[1].shares = {0.5, 0.75, 0.25};
  const PacedDrafter paced{.name = "small", .cost = s.costs[0], .dial = {.keep = 0.5, .deviation = 0.1, .salt = 3}};
  s.pace = PaceOptions{.scale = 2, .target = s.costs[0], .drafters = {paced}, .kv_transfer_ms = 0.25, .reconfigure_every = 9};
  s.pace_start_ns = 77;
  s.target = sample_model(10, 12);
  s.models = {{.name = "small", .path = "/models/small", .shared = sample_model(13, -1)}};
  s.num_draft_workers = 1;
  s.decoupled = "small.decoupled";
  s.draft_model = "small";
  s.traces = true;
  s.proofs.rebuild.link_bytes_per_second = 1e6;
  s.proofs.migrate_at_tick = 1LL << 40;
  s.proofs.link_capacity = 4, s.proofs.socket_bytes = 5000;
  return s;
}

// A sample with three tokens, or one that waits for its prompt with two others. The caller disbands its group.
inline std::unique_ptr<Sequence> sample_sequence(bool is_blocked) {
  auto s = std::make_unique<Sequence>();
  s->group = std::make_shared<Group>();
  Group& g = *s->group;
  g.id = 7;
  g.sampling.repetition_penalty = 1.5f;
  g.sampling.max_new_tokens = 20;
  g.stop_ids = {3, 9};
  g.num_prompt = 4;
  g.cancelled = true;
  s->sample = 2;
  s->age = 40;
  s->max_tokens = 24;
  s->noise = {{1, 2, 3, 4}};
  s->tokens = {5, 6, 7, 5};
  for (int32_t i = 0; i < 2 && is_blocked; ++i) {
    auto other = std::make_unique<Sequence>();
    other->group = s->group;
    other->sample = static_cast<uint32_t>(10 + i);
    other->age = 41;
    other->max_tokens = 24;
    other->tokens = s->tokens;
    g.blocked.push_back(std::move(other));
  }
  if (!is_blocked) {
    s->tokens.insert(s->tokens.end(), {8, 8, 1});
    s->logprobs = s->raw_logprobs = {-1, -2, -3};
    s->spec = {.draft_tokens = 12, .accepted_tokens = 5, .verify_steps = 4, .judged_tokens = 7};
  }
  for (size_t i = 0; i < s->tokens.size(); ++i) s->note_penalty(s->tokens[i], i >= 4);
  return s;
}

inline ProcessReport sample_report() {
  ProcessReport r;
  r.load = {.arrived = 9, .samples = 4, .running = 3, .queued = 1, .free_places = 2, .free_pages = 5, .next_pages = 1};
  r.stats.emplace();
  r.stats->ticks = 77;
  r.stats->busy_seconds = 0.5;
  r.stats->drafting.kept_tokens = 5;
  r.stats->spec.drafters[2].kept_at_pi[3] = 9;
  r.progress.segments = {{.group = 7, .sample = 2, .first = 3, .count = 2, .spec = {.draft_tokens = 5, .judged_tokens = 3}}};
  r.progress.tokens = {8, 9};
  r.progress.logprobs = {-1, -2};
  r.progress.raw_logprobs = {-1, -3};
  r.finished = {{.group = 7, .sample = 2, .reason = OTR_FINISH_ERROR, .error = "why"}};
  r.given = {{.group = 7, .sample = 3, .to = 3, .num_blocked = 1, .num_positions = 70}};
  r.answered = Move{.from = 0, .to = 3, .count = 1, .running = false};
  r.lent = Lend{.to = 2, .rung = 1, .most = 2, .leaps = true};
  r.replicas = {{.group = 7, .sample = 4}, {.group = 7, .sample = 5}};
  r.dropped = {{.group = 8, .sample = 4}};
  return r;
}

}  // namespace otr
