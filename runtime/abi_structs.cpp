#include "runtime/abi_structs.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "runtime/page_net.h"

namespace otr {

Result<HostTensor> host_tensor(const otr_tensor& t) {
  if (t.name == nullptr) return invalid_argument("tensor.name is NULL");
  if (t.num_dims == 0 || t.shape == nullptr) return invalid_argument("tensor.shape is missing");
  constexpr size_t kMostDims = 8;
  if (t.num_dims > kMostDims) return invalid_argument("tensor.num_dims is " + std::to_string(t.num_dims) + ", more than 8");
  if (t.data == nullptr) return invalid_argument("tensor.data is NULL");
  constexpr Dtype kDtypes[] = {Dtype::kBf16, Dtype::kF16, Dtype::kF32};
  const int dtype = static_cast<int>(t.dtype);
  if (dtype < OTR_DTYPE_BF16 || dtype > OTR_DTYPE_F32)
    return invalid_argument("tensor.dtype is unknown: " + std::to_string(dtype));
  const std::span<const int64_t> shape(t.shape, t.num_dims);
  size_t bytes = static_cast<size_t>(dtype_size(kDtypes[dtype]));
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes))
      return invalid_argument("tensor.shape is impossible: " + shape_text(shape));
  }
  if (bytes != t.data_bytes) {
    return invalid_argument("tensor.data_bytes is " + std::to_string(t.data_bytes) + "; shape and dtype come to " +
                            std::to_string(bytes));
  }
  return HostTensor{.name = t.name, .dtype = kDtypes[dtype], .shape = shape, .data = static_cast<const std::byte*>(t.data)};
}

Result<EngineOptions> engine_options(const otr_engine_options& c) {
  if (c.model_path == nullptr || *c.model_path == '\0') return invalid_argument("options.model_path is missing");
  if (c.reserved != 0)
    return unsupported("options.reserved is " + std::to_string(c.reserved) +
                       ": what a newer library makes of that, this one does not know");
  const auto text = [](const char* s, const char* fallback) { return std::string(s != nullptr && *s != '\0' ? s : fallback); };
  EngineOptions o;
  o.device.target.path = c.model_path;
  o.device.isa = text(c.isa, "auto");
  const std::string device = text(c.device, "auto");
  OTR_ASSIGN_OR_RETURN(o.gpus, parse_gpus(device));
  if (o.gpus.empty() && device == "auto" && o.device.isa == kCudaPath) o.gpus = {0};
  if (!o.gpus.empty() && o.device.isa == "auto") o.device.isa = kCudaPath;
  if (o.gpus.empty() == (o.device.isa == kCudaPath))
    return invalid_argument("device '" + device + "' has no path '" + o.device.isa + "'");
  o.device.num_threads = c.num_threads;
  if (c.pin_threads != 0 && c.pin_threads != 1) return invalid_argument("options.pin_threads must be 0 or 1");
  o.device.pin_threads = c.pin_threads == 1;
  o.device.target.kv_bytes = c.kv_bytes;
  o.policy = text(c.policy, "auto");
  constexpr size_t kMostDrafters = 1024;
  if (c.num_drafters > kMostDrafters)
    return invalid_argument("options.num_drafters is " + std::to_string(c.num_drafters) + ", more than 1024");
  if (c.num_drafters > 0 && c.drafters == nullptr) return invalid_argument("options.drafters is NULL");
  for (size_t i = 0; i < c.num_drafters; ++i) {
    if (c.drafters[i] == nullptr) return invalid_argument("options.drafters[" + std::to_string(i) + "] is NULL");
    o.drafters.emplace_back(c.drafters[i]);
  }
  if (c.history < 0 || c.history > static_cast<int32_t>(HistoryContent::kLogprobs))
    return invalid_argument("options.history must be 0, 1 or 2");
  o.history = static_cast<HistoryContent>(c.history);
  o.profile = text(c.profile_path, "");
  o.trace_path = text(c.trace_path, "");
  o.max_batch = c.max_batch;
  o.prefill_chunk = c.prefill_chunk;
  o.num_workers = std::max(c.num_workers, c.num_workers >= 1 ? static_cast<int32_t>(o.gpus.size()) : c.num_workers);
  if (c.worker_processes != 0 && c.worker_processes != 1) return invalid_argument("options.worker_processes must be 0 or 1");
  o.worker_processes = c.worker_processes == 1;
  o.worker_executable = text(c.worker_executable, "");
  o.worker_timeout_ms = c.worker_timeout_ms;
  o.max_worker_restarts = c.max_worker_restarts;
  o.num_draft_workers = c.num_draft_workers;
  if (c.keep_checkpoints != 0 && c.keep_checkpoints != 1) return invalid_argument("options.keep_checkpoints must be 0 or 1");
  o.keeps_checkpoints = c.keep_checkpoints == 1;
  o.nccl.library = text(c.nccl_library, "");
  if (c.nccl_unique_id != nullptr) {
    if (c.nccl_unique_id_bytes != sizeof(NetId)) {
      return invalid_argument("options.nccl_unique_id_bytes is " + std::to_string(c.nccl_unique_id_bytes) +
                              ": an ncclUniqueId has " + std::to_string(sizeof(NetId)));
    }
    std::memcpy(o.nccl.id.emplace().data(), c.nccl_unique_id, sizeof(NetId));
  }
  o.nccl.num_ranks = c.nccl_num_ranks == 0 ? o.num_workers : c.nccl_num_ranks;
  o.nccl.first_rank = c.nccl_first_rank;
  if (c.nccl_timeout_ms != 0) o.nccl.patience_ms = c.nccl_timeout_ms;
  else o.nccl.patience_ms = std::clamp(c.worker_timeout_ms / PageNet::kTimeoutShare, 1, o.nccl.patience_ms);
  return o;
}

otr_result_view result_view(const Sequence& s) {
  const size_t prompt = static_cast<size_t>(s.num_prompt());
  const bool logprobs = s.group->wants_logprobs;
  // A score that failed has fewer log-probs than tokens: report only what exists.
  const size_t count = s.group->is_score ? s.raw_logprobs.size() : s.tokens.size() - prompt;
  return {.struct_size = sizeof(otr_result_view),
          .group_id = s.group->id,
          .tag = s.group->tag,
          .sample = s.sample,
          .finish_reason = s.finish_reason,
          .num_tokens = count,
          .token_ids = s.tokens.data() + prompt,
          .logprobs = logprobs ? s.logprobs.data() : nullptr,
          .raw_logprobs = s.raw_logprobs.data(),
          .error = s.error.c_str(),
          .spec_num_draft_tokens = s.spec.draft_tokens,
          .spec_num_accepted_tokens = s.spec.accepted_tokens,
          .spec_num_verify_steps = s.spec.verify_steps,
          .weight_version = s.weight_spans.back().weight_version,
          .weight_spans = s.weight_spans.data(),
          .num_weight_spans = s.weight_spans.size(),
          .error_status = s.finish_reason != OTR_FINISH_ERROR ? OTR_OK
                          : s.engine_failed                   ? OTR_LOST
                                                              : OTR_FAULT};
}

otr_sampling_params sampling_params(const SamplingParams& s) {
  return {.struct_size = sizeof(otr_sampling_params),
          .temperature = s.temperature,
          .top_k = s.top_k,
          .top_p = s.top_p,
          .min_p = s.min_p,
          .repetition_penalty = s.repetition_penalty,
          .presence_penalty = s.presence_penalty,
          .frequency_penalty = s.frequency_penalty,
          .seed = s.seed,
          .max_new_tokens = s.max_new_tokens,
          .ignore_eos = s.ignore_eos ? 1 : 0,
          .stop_token_ids = s.stop_token_ids.data(),
          .num_stop_token_ids = s.stop_token_ids.size()};
}

}  // namespace otr
