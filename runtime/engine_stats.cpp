// The engine's counters and facts as JSON: otr_stats.
#include <cstdio>
#include <system_error>

#include "runtime/engine.h"
#include "runtime/file_fields.h"

namespace otr {

// What captured programs cost, and how often the host has waited, of all workers: ,"gpu":{…}; "" on the CPU.
std::string Engine::gpu_json() const {
  if (options_.gpus.empty()) return {};
  CaptureFacts c;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    c = captures_;
    for (const WorkerFacts& facts : facts_) c.add(facts.captures);
  }
  uint64_t waits = 0;  // of processes it is not known
  for (const auto& worker : workers_) waits += on_gpu_processes() ? 0 : worker->device().accelerator()->num_waits();
  return ",\"gpu\":{\"captures\":" + std::to_string(c.captures) +
         ",\"target_capture_bytes\":" + std::to_string(c.target_bytes) +
         ",\"draft_capture_bytes\":" + std::to_string(c.draft_bytes) + ",\"capture_seconds\":" + decimal(c.seconds) +
         (on_gpu_processes() ? "" : ",\"host_waits\":" + std::to_string(waits)) + "}";
}

// What requests are checked against: ,"vocab_size":…,…
std::string Engine::model_json() const {
  std::string eos;
  for (const int32_t id : limits_.eos_ids) eos += (eos.empty() ? "" : ",") + std::to_string(id);
  return ",\"vocab_size\":" + std::to_string(limits_.vocab_size) +
         ",\"context_limit\":" + std::to_string(limits_.context_limit) + ",\"eos_token_ids\":[" + eos + "]";
}

std::string Engine::stats_json() const {
  WorkerStats s;
  std::string workers;
  int64_t outstanding;
  uint64_t weight_version;
  double quantize_seconds;
  int32_t num_threads = 0, num_pages = 0;
  int64_t activation_bytes = 0, restarts, requeued;
  std::string last_loss, net, digest;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    digest = weights_digest_ ? "\"" + hex(*weights_digest_) + "\"" : "null";
    for (const WorkerStats& worker : stats_) {
      s.add(worker);
      workers += (workers.empty() ? "" : ",") + worker.json();
    }
    outstanding = outstanding_;
    weight_version = weight_version_;
    quantize_seconds = quantize_seconds_;
    restarts = worker_restarts_;
    last_loss = last_loss_;
    if (net_) net = ",\"nccl\":" + net_->json();
    requeued = requeued_samples_;
    for (const auto& process : processes_) s.full_sockets += process->full_sockets();
    for (const WorkerFacts& facts : facts_) {
      num_threads += facts.num_threads;
      num_pages += facts.num_pages;
      activation_bytes += facts.activation_bytes;
    }
  }
  const Worker& first = first_worker();
  const ModelRunner& model = first.target();
  int64_t written =
      options_.worker_processes ? s.weight_bytes_written : 0;  // and by the engine's own workers, who may not have reported yet
  for (const auto& w : workers_) written += w->weight_bytes_written();
  char text[2048];
  std::snprintf(
      text, sizeof text,
      "{\"version\":\"%s\",\"isa\":\"%s\",\"isa_unavailable\":%s,\"num_workers\":%d,\"num_threads\":%d,\"max_batch\":%d,"
      "\"prefill_chunk\":%d,\"ticks\":%lld,\"generated_tokens\":%lld,\"prefill_tokens\":%lld,\"scored_tokens\":%lld,"
      "\"finished_samples\":%lld,\"outstanding_samples\":%lld,\"preemptions\":%lld,\"migrations\":%lld,\"prefix_hit_tokens\":%"
      "lld,"
      "\"batch_peak\":%d,\"kv_pages_total\":%d,\"kv_pages_in_use\":%d,\"kv_pages_peak\":%d,\"kv_page_bytes\":%lld,"
      "\"weight_version\":%llu,\"weight_bytes\":%lld,\"drafter_weight_bytes\":%lld,\"converted_tensors\":%lld,\"activation_"
      "bytes\":%lld,"
      "\"busy_seconds\":%s,\"kernel_seconds\":%s,\"draft_seconds\":%s,\"decide_seconds\":%s,\"quantize_seconds\":%s",
      otr_version(), isa(), unavailable_paths_.c_str(), options_.num_workers, num_threads, options_.max_batch,
      options_.prefill_chunk, static_cast<long long>(s.ticks), static_cast<long long>(s.generated_tokens),
      static_cast<long long>(s.prefill_tokens), static_cast<long long>(s.scored_tokens),
      static_cast<long long>(s.finished_samples), static_cast<long long>(outstanding), static_cast<long long>(s.preemptions),
      static_cast<long long>(s.migrations), static_cast<long long>(s.prefix_hit_tokens), s.batch_peak, num_pages,
      s.kv_pages_in_use, s.kv_pages_peak, static_cast<long long>(model.page_bytes()),
      static_cast<unsigned long long>(weight_version), static_cast<long long>(model.weight_bytes()),
      static_cast<long long>(first.speculator().drafter_weight_bytes() +
                             (first.server() != nullptr ? first.server()->own_weight_bytes() : 0)),
      static_cast<long long>(model.converted_tensors()), static_cast<long long>(activation_bytes),
      decimal(s.busy_seconds).c_str(), decimal(s.kernel_seconds).c_str(), decimal(s.draft_seconds).c_str(),
      decimal(s.decide_seconds).c_str(), decimal(quantize_seconds).c_str());
  const std::string about = model_json() + ",\"weights_digest\":" + digest, gpu = gpu_json();
  const std::string history = history_ == nullptr ? "" : ",\"history\":" + history_->stats_json();
  const std::string trace =
      s.trace_error == 0 ? "" : ",\"trace_error\":\"" + std::generic_category().message(s.trace_error) + "\"";
  const std::string moved =
      ",\"weight_bytes_written\":" + std::to_string(written) + ",\"kv_copied_tokens\":" + std::to_string(s.kv_copied_tokens) +
      ",\"kv_overlaps\":" + std::to_string(s.kv_overlaps) + ",\"kv_overlaps_lost\":" + std::to_string(s.kv_overlaps_lost) +
      ",\"kv_pages_leased\":" + std::to_string(s.kv_pages_leased);
  const std::string processes =
      !options_.worker_processes
          ? ""
          : ",\"worker_restarts\":" + std::to_string(restarts) + ",\"requeued_samples\":" + std::to_string(requeued) +
                ",\"full_sockets\":" + std::to_string(s.full_sockets) + ",\"last_worker_loss\":" + json_text(last_loss) + net;
  return std::string(text) + about + gpu + moved + trace + processes + plan_json() + ",\"workers\":[" + workers +
         "],\"policy\":\"" + options_.policy + "\",\"speculation\":" + first.speculator().counts_json(s.spec) + history + "}";
}

}  // namespace otr
