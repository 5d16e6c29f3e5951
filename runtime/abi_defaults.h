// What the structs that callers fill have before that: their _init functions give it, and an older caller's shorter struct has
// it in the fields that it lacks.
#pragma once

#include "runtime/outrider.h"

namespace otr {

inline constexpr otr_engine_options kEngineDefaults = {.struct_size = sizeof(otr_engine_options),
                                                       .model_path = nullptr,
                                                       .device = "auto",
                                                       .isa = "auto",
                                                       .policy = "auto",
                                                       .max_batch = 256,
                                                       .prefill_chunk = 512,
                                                       .num_threads = 0,
                                                       .kv_bytes = 0,
                                                       .drafters = nullptr,
                                                       .num_drafters = 0,
                                                       .history = 0,
                                                       .pin_threads = 0,
                                                       .profile_path = nullptr,
                                                       .trace_path = nullptr,
                                                       .num_workers = 1,
                                                       .worker_processes = 0,
                                                       .worker_executable = nullptr,
                                                       .worker_timeout_ms = 300'000,
                                                       .max_worker_restarts = 3,
                                                       .num_draft_workers = 0,
                                                       .keep_checkpoints = 0,
                                                       .nccl_library = nullptr,
                                                       .nccl_unique_id = nullptr,
                                                       .nccl_unique_id_bytes = 0,
                                                       .nccl_num_ranks = 0,
                                                       .nccl_first_rank = 0,
                                                       .nccl_timeout_ms = 0,
                                                       .reserved = 0};

inline constexpr otr_sampling_params kSamplingDefaults = {.struct_size = sizeof(otr_sampling_params),
                                                          .temperature = 1.0f,
                                                          .top_k = 0,
                                                          .top_p = 1.0f,
                                                          .min_p = 0.0f,
                                                          .repetition_penalty = 1.0f,
                                                          .presence_penalty = 0.0f,
                                                          .frequency_penalty = 0.0f,
                                                          .seed = 0,
                                                          .max_new_tokens = 1024,
                                                          .ignore_eos = 0,
                                                          .stop_token_ids = nullptr,
                                                          .num_stop_token_ids = 0};

inline constexpr otr_group_request kGroupDefaults = {.struct_size = sizeof(otr_group_request),
                                                     .prompt_token_ids = nullptr,
                                                     .num_prompt_tokens = 0,
                                                     .n = 1,
                                                     .first_sample = 0,
                                                     .stream = 0,
                                                     .tag = 0,
                                                     .sampling = nullptr};

inline constexpr otr_score_request kScoreDefaults = {.struct_size = sizeof(otr_score_request),
                                                     .prompt_token_ids = nullptr,
                                                     .num_prompt_tokens = 0,
                                                     .token_ids = nullptr,
                                                     .num_tokens = 0,
                                                     .tag = 0,
                                                     .sampling = nullptr};

inline constexpr otr_append_request kAppendDefaults = {
    .struct_size = sizeof(otr_append_request), .token_ids = nullptr, .num_tokens = 0, .tag = 0, .sampling = nullptr};

inline constexpr otr_tensor kTensorDefaults = {.struct_size = sizeof(otr_tensor),
                                               .name = nullptr,
                                               .dtype = OTR_DTYPE_BF16,
                                               .shape = nullptr,
                                               .num_dims = 0,
                                               .data = nullptr,
                                               .data_bytes = 0};

}  // namespace otr
