#include "runtime/worker_stats.h"

#include <charconv>

namespace otr {

std::string decimal(double seconds) {
  char text[64];
  return std::string(text, std::to_chars(text, text + sizeof text, seconds, std::chars_format::fixed, 6).ptr);
}

std::string json_text(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += c < ' ' || c > '~' ? '?' : c;
  }
  return json + "\"";
}

void WorkerStats::add(const WorkerStats& o) {
  ticks += o.ticks;
  generated_tokens += o.generated_tokens;
  prefill_tokens += o.prefill_tokens;
  scored_tokens += o.scored_tokens;
  finished_samples += o.finished_samples;
  preemptions += o.preemptions;
  migrations += o.migrations;
  prefix_hit_tokens += o.prefix_hit_tokens;
  weight_bytes_written += o.weight_bytes_written;
  kv_copied_tokens += o.kv_copied_tokens;
  kv_overlaps += o.kv_overlaps;
  kv_overlaps_lost += o.kv_overlaps_lost;
  kv_pages_in_use += o.kv_pages_in_use;
  kv_pages_leased += o.kv_pages_leased;
  kv_pages_peak += o.kv_pages_peak;
  batch_peak += o.batch_peak;
  busy_seconds += o.busy_seconds;
  kernel_seconds += o.kernel_seconds;
  draft_seconds += o.draft_seconds;
  decide_seconds += o.decide_seconds;
  replicas += o.replicas;
  lost_replicas += o.lost_replicas;
  lost_tokens += o.lost_tokens;
  adopted_tokens += o.adopted_tokens;
  drafts_elsewhere += o.drafts_elsewhere;
  impatient += o.impatient;
  full_links += o.full_links;
  full_sockets += o.full_sockets;
  if (trace_error == 0) trace_error = o.trace_error;
  spec.add(o.spec);
  drafting.add(o.drafting);
  pace.add(o.pace);
}

std::string WorkerStats::json() const {
  std::string text = "{";
  const auto put = [&text](const char* name, const std::string& value) {
    text += std::string(text.size() > 1 ? "," : "") + "\"" + name + "\":" + value;
  };
  put("ticks", std::to_string(ticks));
  put("generated_tokens", std::to_string(generated_tokens));
  put("prefill_tokens", std::to_string(prefill_tokens));
  put("finished_samples", std::to_string(finished_samples));
  put("preemptions", std::to_string(preemptions));
  put("migrations", std::to_string(migrations));
  put("weight_bytes_written", std::to_string(weight_bytes_written));
  put("kv_copied_tokens", std::to_string(kv_copied_tokens));
  put("kv_overlaps", std::to_string(kv_overlaps));
  put("kv_overlaps_lost", std::to_string(kv_overlaps_lost));
  put("batch_peak", std::to_string(batch_peak));
  put("kv_pages_in_use", std::to_string(kv_pages_in_use));
  put("kv_pages_peak", std::to_string(kv_pages_peak));
  put("busy_seconds", decimal(busy_seconds));
  put("kernel_seconds", decimal(kernel_seconds));
  put("replicas", std::to_string(replicas));
  put("lost_replicas", std::to_string(lost_replicas));
  put("lost_tokens", std::to_string(lost_tokens));
  put("adopted_tokens", std::to_string(adopted_tokens));
  if (drafts_elsewhere > 0) {
    put("drafts_elsewhere", std::to_string(drafts_elsewhere));
    put("impatient", std::to_string(impatient));
    put("full_links", std::to_string(full_links));
  }
  if (drafting.requests > 0) put("drafting", drafting.json());
  if (pace.passes > 0) put("pace", pace.json());
  return text + "}";
}

}  // namespace otr
