/* A C99 program that uses the library as any C program would: rolls out, scores, and provokes errors.
 *
 *     c99_rollout MODEL ID…
 *
 * rolls out the prompt of these token ids (4 samples, stream 17, seed 5, at most 48 tokens) and prints one line a sample: its
 * token ids. Exits with 1 at the first thing that is not as outrider.h says. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/outrider.h"

#define CHECK(condition)                                                                                     \
  do {                                                                                                       \
    if (!(condition)) {                                                                                      \
      fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, otr_last_error(NULL)); \
      exit(1);                                                                                               \
    }                                                                                                        \
  } while (0)

enum { kSamples = 4, kMaxTokens = 48, kMaxPrompt = 256 };

typedef struct Sample {
  size_t num_tokens;
  int32_t token_ids[kMaxTokens];
  float raw_logprobs[kMaxTokens];
} Sample;

static int32_t prompt[kMaxPrompt];
static size_t prompt_size;
static Sample samples[kSamples];

static void check_without_engine(void) {
  otr_engine_options options;
  otr_engine* engine = (otr_engine*)&options;
  otr_result* result = NULL;
  CHECK(strcmp(otr_version(), "0.2.0") == 0);
  CHECK(strcmp(otr_status_text(OTR_IDLE), "nothing is outstanding") == 0);
  CHECK(otr_status_text((otr_status)9999) != NULL);
  CHECK(strcmp(otr_finish_reason_text(OTR_FINISH_LENGTH), "length") == 0);
  CHECK(otr_engine_options_init(NULL, sizeof options) == OTR_INVALID_ARGUMENT);
  CHECK(otr_engine_options_init(&options, 0) == OTR_INVALID_ARGUMENT);
  CHECK(otr_engine_options_init(&options, sizeof options) == OTR_OK);
  CHECK(options.struct_size == sizeof options && options.max_batch == 256 && options.model_path == NULL);
  CHECK(otr_engine_create(NULL, &engine) == OTR_INVALID_ARGUMENT);
  CHECK(otr_engine_create(&options, NULL) == OTR_INVALID_ARGUMENT);
  CHECK(otr_engine_create(&options, &engine) == OTR_INVALID_ARGUMENT && engine == NULL);
  CHECK(strstr(otr_last_error(NULL), "model_path") != NULL);
  options.model_path = "/nonexistent/model";
  CHECK(otr_engine_create(&options, &engine) != OTR_OK && engine == NULL);
  CHECK(strstr(otr_last_error(NULL), "/nonexistent/model") != NULL);
  CHECK(otr_engine_destroy(NULL) == OTR_OK);
  CHECK(otr_result_destroy(NULL) == OTR_OK);
  CHECK(otr_wait(NULL, 0, &result) == OTR_INVALID_HANDLE && result == NULL);
  CHECK(otr_cancel((otr_engine*)&options, 1) == OTR_INVALID_HANDLE);
}

static otr_engine* create(const char* model) {
  otr_engine_options options;
  otr_engine* engine = NULL;
  CHECK(otr_engine_options_init(&options, sizeof options) == OTR_OK);
  options.model_path = model;
  options.kv_bytes = (uint64_t)16 << 20;
  options.isa = "cpu-none";
  CHECK(otr_engine_create(&options, &engine) == OTR_INVALID_ARGUMENT && engine == NULL);
  options.isa = "auto";
  options.device = "cuda:0";
  CHECK(otr_engine_create(&options, &engine) == OTR_UNSUPPORTED && engine == NULL);
  options.device = "auto";
  CHECK(otr_engine_create(&options, &engine) == OTR_OK && engine != NULL);
  return engine;
}

static otr_group_request group_request(const otr_sampling_params* sampling) {
  otr_group_request request;
  CHECK(otr_group_request_init(&request, sizeof request) == OTR_OK);
  request.prompt_token_ids = prompt;
  request.num_prompt_tokens = prompt_size;
  request.n = kSamples;
  request.stream = 17;
  request.tag = 4711;
  request.sampling = sampling;
  return request;
}

static otr_sampling_params sampling_params(void) {
  otr_sampling_params sampling;
  CHECK(otr_sampling_params_init(&sampling, sizeof sampling) == OTR_OK);
  sampling.seed = 5;
  sampling.max_new_tokens = kMaxTokens;
  return sampling;
}

static void keep(const otr_result_view* view, uint64_t group) {
  Sample* sample;
  size_t i;
  CHECK(view->group_id == group && view->tag == 4711 && view->sample < kSamples);
  CHECK(view->finish_reason == OTR_FINISH_STOP || view->finish_reason == OTR_FINISH_LENGTH);
  CHECK(view->num_tokens >= 1 && view->num_tokens <= kMaxTokens && strcmp(view->error, "") == 0);
  CHECK(view->finish_reason == OTR_FINISH_STOP || view->num_tokens == kMaxTokens);
  sample = &samples[view->sample];
  CHECK(sample->num_tokens == 0);
  sample->num_tokens = view->num_tokens;
  for (i = 0; i < view->num_tokens; ++i) {
    CHECK(view->token_ids[i] >= 0 && view->logprobs[i] <= 0 && view->raw_logprobs[i] <= 0);
    sample->token_ids[i] = view->token_ids[i];
    sample->raw_logprobs[i] = view->raw_logprobs[i];
  }
}

static void roll_out(otr_engine* engine) {
  const otr_sampling_params sampling = sampling_params();
  const otr_group_request request = group_request(&sampling);
  otr_result* result = NULL;
  otr_result_view view;
  uint64_t group = 0;
  int received;
  CHECK(otr_wait(engine, -1, &result) == OTR_IDLE);
  CHECK(otr_submit(engine, &request, &group) == OTR_OK && group != 0);
  for (received = 0; received < kSamples; ++received) {
    CHECK(otr_wait(engine, 60000, &result) == OTR_OK);
    CHECK(otr_result_get(result, &view, sizeof view) == OTR_OK);
    keep(&view, group);
    CHECK(otr_result_destroy(result) == OTR_OK);
    CHECK(otr_result_destroy(result) == OTR_INVALID_HANDLE);
    CHECK(otr_result_get(result, &view, sizeof view) == OTR_INVALID_HANDLE);
  }
  CHECK(otr_wait(engine, 0, &result) == OTR_IDLE && result == NULL);
  CHECK(otr_cancel(engine, group) == OTR_INVALID_ARGUMENT);
}

static void score(otr_engine* engine) {
  otr_score_request request;
  otr_result* result = NULL;
  otr_result_view view;
  uint64_t group = 0;
  CHECK(otr_score_request_init(&request, sizeof request) == OTR_OK);
  request.token_ids = samples[0].token_ids;
  request.num_tokens = samples[0].num_tokens;
  CHECK(otr_score(engine, &request, &group) == OTR_OK);
  CHECK(otr_wait(engine, 60000, &result) == OTR_OK && otr_result_get(result, &view, sizeof view) == OTR_OK);
  CHECK(view.finish_reason == OTR_FINISH_SCORE && view.num_tokens == request.num_tokens && view.logprobs == NULL);
  CHECK(isnan(view.raw_logprobs[0]));
  CHECK(otr_result_destroy(result) == OTR_OK);
  request.prompt_token_ids = prompt;
  request.num_prompt_tokens = prompt_size;
  CHECK(otr_score(engine, &request, &group) == OTR_OK);
  CHECK(otr_wait(engine, 60000, &result) == OTR_OK && otr_result_get(result, &view, sizeof view) == OTR_OK);
  CHECK(memcmp(view.raw_logprobs, samples[0].raw_logprobs, view.num_tokens * sizeof(float)) == 0);
  CHECK(otr_result_destroy(result) == OTR_OK);
  request.num_tokens = 0;
  CHECK(otr_score(engine, &request, &group) == OTR_INVALID_ARGUMENT);
}

/* A sample goes on, and its next turn is what a prompt of all its tokens gives. */
static void go_on(otr_engine* engine) {
  const int32_t answer[2] = {7, 8};
  otr_sampling_params sampling = sampling_params();
  otr_group_request request = group_request(&sampling);
  otr_append_request append;
  otr_result *first = NULL, *turn = NULL, *whole = NULL;
  otr_result_view view, turn_view;
  int32_t tokens[kMaxPrompt + 3];
  uint64_t group = 0;
  request.n = 1;
  sampling.max_new_tokens = 1;
  CHECK(otr_submit(engine, &request, &group) == OTR_OK && otr_wait(engine, 60000, &first) == OTR_OK);
  CHECK(otr_append_request_init(&append, sizeof append) == OTR_OK);
  sampling.max_new_tokens = kMaxTokens;
  append.token_ids = answer;
  append.num_tokens = 2;
  append.sampling = &sampling;
  CHECK(otr_append(engine, first, &append, &group) == OTR_OK && otr_wait(engine, 60000, &turn) == OTR_OK);
  CHECK(otr_result_get(turn, &turn_view, sizeof turn_view) == OTR_OK && turn_view.group_id == group);

  CHECK(otr_result_get(first, &view, sizeof view) == OTR_OK && view.num_tokens == 1);
  memcpy(tokens, prompt, prompt_size * sizeof *tokens);
  tokens[prompt_size] = view.token_ids[0];
  memcpy(tokens + prompt_size + 1, answer, sizeof answer);
  request.prompt_token_ids = tokens;
  request.num_prompt_tokens = prompt_size + 3;
  CHECK(otr_submit(engine, &request, &group) == OTR_OK && otr_wait(engine, 60000, &whole) == OTR_OK);
  CHECK(otr_result_get(whole, &view, sizeof view) == OTR_OK && view.num_tokens == turn_view.num_tokens);
  CHECK(memcmp(view.token_ids, turn_view.token_ids, view.num_tokens * sizeof(int32_t)) == 0);
  CHECK(memcmp(view.raw_logprobs, turn_view.raw_logprobs, view.num_tokens * sizeof(float)) == 0);
  CHECK(otr_result_destroy(whole) == OTR_OK && otr_result_destroy(turn) == OTR_OK && otr_result_destroy(first) == OTR_OK);
  CHECK(otr_append(engine, first, &append, &group) == OTR_INVALID_HANDLE);
}

static void expect_refused(otr_engine* engine, const otr_group_request* request, otr_status status) {
  uint64_t group = 0;
  CHECK(otr_submit(engine, request, &group) == status);
  CHECK(otr_last_error(engine)[0] != '\0');
}

static void provoke_errors(otr_engine* engine) {
  const int32_t bad_ids[3] = {1, -1, 2};
  otr_sampling_params sampling = sampling_params();
  otr_group_request request = group_request(&sampling);
  uint64_t group = 0;
  char small[8];
  size_t size = 0;
  CHECK(otr_submit(engine, NULL, &group) == OTR_INVALID_ARGUMENT);
  CHECK(otr_submit(engine, &request, NULL) == OTR_INVALID_ARGUMENT);
  request.num_prompt_tokens = 0;
  expect_refused(engine, &request, OTR_INVALID_ARGUMENT);
  request.prompt_token_ids = bad_ids;
  request.num_prompt_tokens = 3;
  expect_refused(engine, &request, OTR_INVALID_ARGUMENT);
  request = group_request(&sampling);
  request.n = 0;
  expect_refused(engine, &request, OTR_INVALID_ARGUMENT);
  request = group_request(&sampling);
  request.struct_size = 3;
  expect_refused(engine, &request, OTR_INVALID_ARGUMENT);
  request = group_request(&sampling);
  sampling.temperature = (float)NAN;
  expect_refused(engine, &request, OTR_INVALID_ARGUMENT);
  sampling.temperature = 0.001f;
  expect_refused(engine, &request, OTR_INVALID_ARGUMENT);
  CHECK(otr_stats(engine, small, sizeof small, &size) == OTR_INVALID_ARGUMENT && size > sizeof small);
}

static void check_stats(otr_engine* engine) {
  char text[4096];
  size_t size = 0;
  CHECK(otr_stats(engine, text, sizeof text, &size) == OTR_OK);
  CHECK(size == strlen(text) + 1 && text[0] == '{' && text[size - 2] == '}');
  CHECK(strstr(text, "\"generated_tokens\":") != NULL && strstr(text, "\"isa\":\"cpu-") != NULL);
}

static void cancel_and_abandon(otr_engine* engine) {
  otr_sampling_params sampling = sampling_params();
  otr_group_request request = group_request(&sampling);
  otr_result* result = NULL;
  otr_result* left = NULL;
  otr_result_view view;
  uint64_t group = 0;
  sampling.ignore_eos = 1;
  sampling.max_new_tokens = 1024;
  request.n = 2;
  CHECK(otr_submit(engine, &request, &group) == OTR_OK);
  CHECK(otr_cancel(engine, group) == OTR_OK);
  CHECK(otr_wait(engine, 60000, &result) == OTR_OK && otr_result_get(result, &view, sizeof view) == OTR_OK);
  CHECK(view.finish_reason == OTR_FINISH_ABORT && view.num_tokens < 1024);
  CHECK(otr_wait(engine, 60000, &left) == OTR_OK);
  CHECK(otr_submit(engine, &request, &group) == OTR_OK);
  CHECK(otr_engine_destroy(engine) == OTR_OK);
  CHECK(otr_engine_destroy(engine) == OTR_INVALID_HANDLE);
  CHECK(otr_submit(engine, &request, &group) == OTR_INVALID_HANDLE);
  /* Results outlive their engine. */
  CHECK(otr_result_get(result, &view, sizeof view) == OTR_OK && otr_result_destroy(result) == OTR_OK);
  CHECK(otr_result_get(left, &view, sizeof view) == OTR_OK && otr_result_destroy(left) == OTR_OK);
}

int main(int argc, char** argv) {
  otr_engine* engine;
  int i;
  size_t t;
  if (argc < 3 || argc - 2 > kMaxPrompt) {
    fprintf(stderr, "usage: c99_rollout MODEL ID...\n");
    return 2;
  }
  for (i = 2; i < argc; ++i) prompt[prompt_size++] = (int32_t)strtol(argv[i], NULL, 10);
  check_without_engine();
  engine = create(argv[1]);
  roll_out(engine);
  score(engine);
  go_on(engine);
  provoke_errors(engine);
  check_stats(engine);
  cancel_and_abandon(engine);
  for (i = 0; i < kSamples; ++i) {
    for (t = 0; t < samples[i].num_tokens; ++t) printf("%s%d", t > 0 ? " " : "", (int)samples[i].token_ids[t]);
    printf("\n");
  }
  return 0;
}
