/* consumer MODEL ID…: rolls out 2 samples of the prompt of these token ids (stream 17, seed 5, at most 24 tokens) and prints a line
 * a sample: its index, then token:logprob for every token. */
#include <inttypes.h>
#include <outrider.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char* what, const otr_engine* engine) {
  fprintf(stderr, "%s: %s\n", what, otr_last_error(engine));
  return 1;
}

int main(int argc, char** argv) {
  int32_t prompt[64];
  size_t num_prompt = 0;
  otr_engine_options options;
  otr_sampling_params sampling;
  otr_group_request request;
  otr_engine* engine = NULL;
  otr_result* result = NULL;
  uint64_t group = 0;
  otr_status status;
  int i;
  if (argc < 3 || argc > 64) return 2;
  for (i = 2; i < argc; ++i) prompt[num_prompt++] = (int32_t)strtol(argv[i], NULL, 10);

  otr_engine_options_init(&options, sizeof options);
  options.model_path = argv[1];
  options.kv_bytes = (uint64_t)16 << 20;
  if (otr_engine_create(&options, &engine) != OTR_OK) return fail("otr_engine_create", NULL);
  otr_sampling_params_init(&sampling, sizeof sampling);
  sampling.seed = 5;
  sampling.max_new_tokens = 24;
  otr_group_request_init(&request, sizeof request);
  request.prompt_token_ids = prompt;
  request.num_prompt_tokens = num_prompt;
  request.n = 2;
  request.stream = 17;
  request.sampling = &sampling;
  if (otr_submit(engine, &request, &group) != OTR_OK) return fail("otr_submit", engine);
  while ((status = otr_wait(engine, -1, &result)) == OTR_OK) {
    otr_result_view view;
    size_t t;
    if (otr_result_get(result, &view, sizeof view) != OTR_OK) return fail("otr_result_get", NULL);
    printf("%" PRIu32, view.sample);
    for (t = 0; t < view.num_tokens; ++t) printf(" %" PRId32 ":%.9g", view.token_ids[t], (double)view.logprobs[t]);
    printf("\n");
    otr_result_destroy(result);
  }
  if (status != OTR_IDLE) return fail("otr_wait", engine);
  otr_engine_destroy(engine);
  return 0;
}
