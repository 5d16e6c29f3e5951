// What a worker process is set up with.
#include <algorithm>

#include "runtime/outrider.h"
#include "runtime/profile_file.h"
#include "runtime/wire_fields.h"
#include "runtime/wire_orders.h"
#include "runtime/worker_wire.h"

namespace otr {
namespace {

constexpr int32_t kMaxModels = 64;

void put_config(const ModelConfig& c, WireWriter* w) {
  w->put(static_cast<int32_t>(c.architecture));
  for (const int32_t n : {c.hidden_size, c.intermediate_size, c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim,
                          c.vocab_size, c.max_position_embeddings}) {
    w->put(n);
  }
  w->put(c.rms_norm_eps);
  w->put(c.rope_theta);
  w->put(static_cast<uint8_t>(c.yarn.has_value()));
  if (c.yarn) {
    w->put(c.yarn->factor);
    w->put(c.yarn->original_max_positions);
    w->put(c.yarn->beta_fast);
    w->put(c.yarn->beta_slow);
    w->put(c.yarn->attention_factor);
    w->put(static_cast<uint8_t>(c.yarn->truncate));
  }
  for (const bool flag : {c.tie_word_embeddings, c.qkv_bias, c.qk_norm}) w->put(static_cast<uint8_t>(flag));
  w->put_array(std::span(c.eos_ids));
  w->put(static_cast<uint8_t>(c.experts.has_value()));
  if (!c.experts) return;
  w->put(c.experts->num_experts);
  w->put(c.experts->experts_per_token);
  w->put(c.experts->intermediate_size);
  w->put(static_cast<uint8_t>(c.experts->normalised));
  w->put_array(std::span(c.experts->dense_layers));
}

double read_real(WireReader* r, const char* field, RealRange range) { return r->number(field, range.least, range.most); }

ExpertsConfig read_experts(WireReader* r, int32_t num_layers) {
  ExpertsConfig e;
  e.num_experts = r->integer("num_experts", 1, kMaxExperts);
  e.experts_per_token = r->integer("experts_per_token", 1, kMaxExperts);
  e.intermediate_size = r->integer("experts' intermediate_size", 1, kMaxIntermediateSize);
  e.normalised = r->flag("normalised");
  r->array("dense_layers", &e.dense_layers);
  if (static_cast<int64_t>(e.dense_layers.size()) >= num_layers || e.experts_per_token > e.num_experts ||
      int64_t{e.num_experts} * num_layers > kMaxExpertsOfLayers)
    r->fail("config", "has impossible experts");
  for (size_t i = 0; i < e.dense_layers.size(); ++i) {
    if (e.dense_layers[i] < 0 || e.dense_layers[i] >= num_layers || (i > 0 && e.dense_layers[i] <= e.dense_layers[i - 1]))
      r->fail("dense_layers", "are not ascending layers");
  }
  return e;
}

ModelConfig read_config(WireReader* r) {
  ModelConfig c;
  c.architecture = static_cast<Architecture>(r->integer("architecture", 0, static_cast<int32_t>(Architecture::kQwen3Moe)));
  c.hidden_size = r->integer("hidden_size", 1, kMaxHiddenSize);
  c.intermediate_size = r->integer("intermediate_size", 1, kMaxIntermediateSize);
  c.num_layers = r->integer("num_layers", 1, kMaxLayers);
  c.num_heads = r->integer("num_heads", 1, kMaxHeads);
  c.num_kv_heads = r->integer("num_kv_heads", 1, kMaxHeads);
  c.head_dim = r->integer("head_dim", 2, kMaxHeadDim);
  c.vocab_size = r->integer("vocab_size", 1, kMaxVocabSize);
  c.max_position_embeddings = r->integer("max_position_embeddings", 1, kMaxPositions);
  c.rms_norm_eps = r->number("rms_norm_eps", 0.0, 1.0);
  c.rope_theta = read_real(r, "rope_theta", kRopeThetaRange);
  if (r->flag("has_yarn")) {
    c.yarn.emplace();
    c.yarn->factor = read_real(r, "factor", kYarnFactorRange);
    c.yarn->original_max_positions = r->integer<int64_t>("original_max_positions", 1, kMaxPositions);
    c.yarn->beta_fast = read_real(r, "beta_fast", kYarnBetaRange);
    c.yarn->beta_slow = read_real(r, "beta_slow", kYarnBetaRange);
    c.yarn->attention_factor = r->number("attention_factor", -1e9, 1e9);
    c.yarn->truncate = r->flag("truncate");
    if (r->ok() && c.rope_theta <= 1) r->fail("rope_theta", "is not above 1 with yarn");
  }
  for (bool* flag : {&c.tie_word_embeddings, &c.qkv_bias, &c.qk_norm}) *flag = r->flag("config");
  r->array("eos_ids", &c.eos_ids);
  if (c.num_kv_heads == 0 || c.num_heads % c.num_kv_heads != 0 || c.head_dim % 2 != 0)
    r->fail("config", "has impossible heads");
  for (const int32_t id : c.eos_ids) {
    if (id < 0 || id >= c.vocab_size) r->fail("eos_ids", "are outside the vocabulary");
  }
  if (r->flag("has_experts")) c.experts = read_experts(r, c.num_layers);
  return c;
}

void put_file(int fd, WireWriter* w, std::vector<int>* files) {
  w->put(static_cast<uint8_t>(fd >= 0));
  if (fd >= 0) files->push_back(fd);
}

int read_file(WireReader* r, std::span<const int>* files) {
  if (!r->flag("file")) return -1;
  if (files->empty()) {
    r->fail("file", "has not come");
    return -1;
  }
  const int fd = files->front();
  *files = files->subspan(1);
  return fd;
}

void put_model(const SharedModel& m, WireWriter* w, std::vector<int>* files) {
  put_config(m.config, w);
  for (const int fd : {m.files.packed, m.files.embedding, m.files.vectors, m.quantized}) put_file(fd, w, files);
  w->put(m.converted_tensors);
}

SharedModel read_model(WireReader* r, std::span<const int>* files) {
  SharedModel m;
  m.config = read_config(r);
  for (int* fd : {&m.files.packed, &m.files.embedding, &m.files.vectors, &m.quantized}) *fd = read_file(r, files);
  m.converted_tensors = r->integer<int64_t>("converted_tensors", 0, kMaxInt);
  return m;
}

void put_pace(const PaceOptions& p, int64_t start_ns, WireWriter* w) {
  w->put(start_ns);
  w->put(p.scale);
  w->put(p.kv_transfer_ms);
  w->put(p.reconfigure_every);
  put_cost(p.target, w);
  w->put(static_cast<uint32_t>(p.drafters.size()));
  for (const PacedDrafter& d : p.drafters) {
    w->put(d.name);
    put_cost(d.cost, w);
    w->put(d.dial.keep);
    w->put(d.dial.deviation);
    w->put(d.dial.salt);
  }
}

PaceOptions read_pace(WireReader* r, int64_t* start_ns) {
  PaceOptions p;
  *start_ns = r->integer<int64_t>("pace_start", 0, std::numeric_limits<int64_t>::max());
  p.scale = r->number("pace", std::numeric_limits<double>::min(), kMaxMs);
  p.kv_transfer_ms = r->number("kv_transfer_ms", 0.0, kMaxMs);
  p.reconfigure_every = r->integer<int64_t>("reconfigure_every", 0, std::numeric_limits<int64_t>::max());
  read_cost("pace", &p.target, r);
  p.drafters.resize(std::min<uint32_t>(r->count("paced drafters", sizeof(uint32_t)), kMaxModels));
  for (PacedDrafter& d : p.drafters) {
    d.name = r->text("paced drafter");
    read_cost("pace", &d.cost, r);
    d.dial.keep = r->number("keep", 0.0, 1.0);
    d.dial.deviation = r->number("deviation", 0.0, 1.0);
    d.dial.salt = r->integer<uint32_t>("salt", 0, UINT32_MAX);
  }
  return p;
}

void put_proofs(const WorkerProofs& p, WireWriter* w) {
  w->put(p.preempt_at_tick);
  w->put(p.migrate_every);
  w->put(p.migration_seed);
  w->put(p.migrate_at_tick);
  w->put(p.breaks_of_group);
  w->put(p.breaks_of_sample);
  w->put(p.breaks_at);
  w->put(p.delay_seed);
  w->put(p.link_capacity);
  w->put(p.socket_bytes);
  w->put(static_cast<uint8_t>(p.rebuild.mode));
  w->put(p.rebuild.link_bytes_per_second);
  w->put(static_cast<uint8_t>(p.rebuild.whole_pages));
  w->put(p.rebuild.revoke_every);
  w->put(p.rebuild.revoke_at_layer);
  w->put(static_cast<uint32_t>(p.faults.size()));
  for (const WorkerFault& f : p.faults) {
    w->put(f.worker);
    w->put(f.life);
    w->put(static_cast<uint8_t>(f.step));
    w->put(f.occurrence);
    w->put(static_cast<uint8_t>(f.kind));
  }
}

WorkerProofs read_proofs(WireReader* r) {
  WorkerProofs p;
  p.preempt_at_tick = r->integer<int64_t>("preempt_at_tick", -1, std::numeric_limits<int64_t>::max());
  p.migrate_every = r->integer("migrate_every", 0, kMaxInt);
  p.migration_seed = r->integer<uint32_t>("migration_seed", 0, UINT32_MAX);
  p.migrate_at_tick = r->integer<int64_t>("migrate_at_tick", -1, std::numeric_limits<int64_t>::max());
  p.breaks_of_group = r->integer<uint64_t>("breaks_of_group", 0, UINT64_MAX);
  p.breaks_of_sample = r->integer<int64_t>("breaks_of_sample", -1, UINT32_MAX);
  p.breaks_at = r->integer("breaks_at", 0, kMaxInt);
  p.delay_seed = r->integer<uint32_t>("delay_seed", 0, UINT32_MAX);
  p.link_capacity = r->integer("link_capacity", 0, 1 << 20);
  p.socket_bytes = r->integer("socket_bytes", 0, 1 << 20);
  p.rebuild.mode = static_cast<RebuildMode>(r->integer<uint8_t>("rebuild", 0, static_cast<uint8_t>(RebuildMode::kTransfer)));
  p.rebuild.link_bytes_per_second = r->number("link_bytes_per_second", 0.0, 1e15);
  p.rebuild.whole_pages = r->integer<uint8_t>("whole_pages", 0, 1) != 0;
  p.rebuild.revoke_every = r->integer("revoke_every", 0, kMaxInt);
  p.rebuild.revoke_at_layer = r->integer("revoke_at_layer", -1, kMaxInt);
  constexpr size_t kFaultBytes = 14;
  p.faults.resize(r->count("faults", kFaultBytes));
  for (WorkerFault& f : p.faults) {
    f.worker = r->integer("worker", 0, kMaxWorkers - 1);
    f.life = r->integer("life", 0, kMaxInt);
    f.step = static_cast<ProtocolStep>(r->integer<uint8_t>("step", 0, kNumProtocolSteps - 1));
    f.occurrence = r->integer("occurrence", 0, kMaxInt);
    f.kind = static_cast<FaultKind>(r->integer<uint8_t>("kind", 0, kNumFaultKinds - 1));
  }
  return p;
}

}  // namespace

void encode_setup(const WorkerSetup& s, WireBytes* out, std::vector<int>* files) {
  WireWriter w(out);
  w.put(s.build);
  for (const int32_t n : {s.num_workers, s.index, s.max_batch, s.engine_batch, s.prefill_chunk, s.max_draft_rows, s.num_threads,
                          s.first_cpu, s.num_pages, s.life, s.timeout_ms}) {
    w.put(n);
  }
  w.put(static_cast<uint8_t>(s.pin_threads));
  w.put(s.policy);
  w.put(static_cast<uint32_t>(s.drafters.size()));
  for (const std::string& name : s.drafters) w.put(name);
  w.put(s.isa);
  w.put(s.gpu);
  w.put(s.kv_bytes);
  w.put(s.profile);
  w.put(s.nccl_library);
  w.put(s.nccl_patience_ms);
  put_proofs(s.proofs, &w);
  put_costs(s.costs, &w);
  w.put(static_cast<uint8_t>(s.pace.has_value()));
  if (s.pace) put_pace(*s.pace, s.pace_start_ns, &w);
  put_model(s.target, &w, files);
  w.put(static_cast<uint32_t>(s.models.size()));
  for (const DrafterModel& m : s.models) {
    w.put(m.name);
    w.put(m.path);
    w.put(static_cast<uint8_t>(m.in_4_bits));
    put_model(*m.shared, &w, files);
  }
  w.put(s.num_draft_workers);
  w.put(s.decoupled);
  w.put(s.draft_model);
  w.put(static_cast<int32_t>(s.history));
  w.put(static_cast<uint8_t>(s.traces));
}

std::string own_build() { return std::string(otr_version()) + " (commit " + build_commit() + ")"; }

Result<std::string> decode_setup_build(WireView in) {
  WireReader r(in);
  std::string build = r.text("build");
  return r.ok() ? Result<std::string>(std::move(build)) : Result<std::string>(bad_input("setup: its build is cut off"));
}

Result<WorkerSetup> decode_setup(WireView in, std::span<const int> files) {
  WireReader r(in);
  WorkerSetup s;
  s.build = r.text("build");
  s.num_workers = r.integer("num_workers", 1, kMaxWorkers);
  s.index = r.integer("index", 0, std::max(0, s.num_workers - 1));
  s.max_batch = r.integer("max_batch", 1, 1 << 16);
  s.engine_batch = r.integer("engine_batch", 1, 1 << 16);
  s.prefill_chunk = r.integer("prefill_chunk", 1, 1 << 20);
  s.max_draft_rows = r.integer("max_draft_rows", 0, 1 << 16);
  s.num_threads = r.integer("num_threads", 1, 1 << 12);
  s.first_cpu = r.integer("first_cpu", -1, kMaxInt);
  s.num_pages = r.integer("num_pages", 0, kMaxInt / 2);
  s.life = r.integer("life", 0, kMaxInt);
  s.timeout_ms = r.integer("timeout_ms", 1, kMaxInt);
  s.pin_threads = r.flag("pin_threads");
  s.policy = r.text("policy");
  s.drafters.resize(r.count("drafters", sizeof(uint32_t)));
  for (std::string& name : s.drafters) name = r.text("drafter");
  s.isa = r.text("isa");
  s.gpu = r.integer("gpu", -1, kMaxInt);
  s.kv_bytes = r.integer<uint64_t>("kv_bytes", 0, UINT64_MAX);
  s.profile = r.text("profile");
  s.nccl_library = r.text("nccl_library");
  s.nccl_patience_ms = r.integer("nccl_patience_ms", 1, kMaxInt / 8);
  s.proofs = read_proofs(&r);
  s.costs = read_costs(&r);
  if (r.flag("has_pace")) s.pace = read_pace(&r, &s.pace_start_ns);
  s.target = read_model(&r, &files);
  s.models.resize(std::min<uint32_t>(r.count("models", sizeof(uint32_t)), kMaxModels));
  for (DrafterModel& m : s.models) {
    m.name = r.text("name");
    m.path = r.text("path");
    m.in_4_bits = r.flag("in_4_bits");
    m.shared = read_model(&r, &files);
  }
  if (s.num_pages == 0 && s.gpu < 0) r.fail("num_pages", "is 0 on the CPU");
  s.num_draft_workers = r.integer("num_draft_workers", 0, s.num_workers / 2);
  s.decoupled = r.text("decoupled");
  s.draft_model = r.text("draft_model");
  s.history = static_cast<HistoryContent>(r.integer("history", 0, static_cast<int32_t>(HistoryContent::kLogprobs)));
  s.traces = r.flag("traces");
  const auto is_draft_model = [&s](const DrafterModel& m) { return m.name == s.draft_model; };
  if (s.num_draft_workers > 0 && std::none_of(s.models.begin(), s.models.end(), is_draft_model))
    r.fail("draft_model", "is not among the models");
  if (!files.empty()) r.fail("files", "are too many");
  OTR_RETURN_IF_ERROR(r.finish("setup"));
  return s;
}

}  // namespace otr
