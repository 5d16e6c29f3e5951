/* outrider.h — the C interface of Outrider, a rollout engine for RL post-training. This header is the manual.
 *
 * An engine loads a checkpoint and turns prompts (token ids) into samples: tokens, the log-probabilities of the distribution
 * they were drawn from, and the raw log-probabilities. The engine knows token ids, not text.
 *
 * THE CONTRACT. A sample is a function of (weights, prompt tokens, sampling parameters, seed, stream, sample index) and of the
 * instruction-set path. Of nothing else: not of what it was batched with, the chunking, a prefix-cache hit, preemption, drafts,
 * or the number of threads. Tokens and log-probabilities are equal to the last bit. Not promised: equality across paths
 * ("cpu-amx", "cpu-avx512", "cpu-avx2", "cpu-scalar", "cuda-sm90a") or library versions.
 *
 * A SESSION
 *     otr_engine_options options;
 *     otr_engine_options_init(&options, sizeof options);
 *     options.model_path = "tests/data/tinymath/target";
 *     otr_engine* engine = NULL;
 *     if (otr_engine_create(&options, &engine) != OTR_OK) { puts(otr_last_error(NULL)); return 1; }
 *
 *     otr_group_request request;
 *     otr_group_request_init(&request, sizeof request);
 *     request.prompt_token_ids = ids;  request.num_prompt_tokens = num_ids;
 *     request.n = 8;  request.stream = 17;             unique per (step, prompt)
 *     uint64_t group;
 *     otr_submit(engine, &request, &group);
 *
 *     otr_result* result;
 *     while (otr_wait(engine, -1, &result) == OTR_OK) {
 *       otr_result_view view;
 *       otr_result_get(result, &view, sizeof view);   arrays live until otr_result_destroy
 *       otr_result_destroy(result);
 *     }                                               OTR_IDLE: nothing is outstanding
 *     otr_engine_destroy(engine);
 *
 * CONVENTIONS
 *   Structs    start with struct_size and are filled by their _init function, which takes sizeof the caller's struct. A program
 *              built against an older header keeps working: what its shorter struct lacks has the default. Built against a
 *              newer one, it works as long as the fields this library does not know are zero; else OTR_UNSUPPORTED.
 *   Types      enums are 32-bit ints. Strings end in NUL; texts are UTF-8, paths are bytes as the system takes them. Arrays are
 *              contiguous, and their comment gives the number of elements: [n]. Log-probabilities are natural logarithms.
 *   Memory     what you pass in (structs, arrays, strings) is copied before the call returns and stays yours. What you get back
 *              belongs to the library: results until otr_result_destroy, error texts until your thread's next call, constant
 *              strings for ever. Nothing is to be freed by other means.
 *   Errors     every function returns an otr_status, or a string that is never NULL. After an error the call has had no effect
 *              and the engine is usable; out parameters keep their values, except that *engine and *result become NULL, and
 *              *size of otr_stats is set. Every status but OTR_OK leaves a text: otr_last_error. Nothing is thrown, printed or
 *              aborted; no function ends the process. OTR_OUT_OF_MEMORY may come from every function, also where the system
 *              refuses a thread.
 *   Handles    are checked, never followed: a NULL, destroyed, foreign or invented handle gives OTR_INVALID_HANDLE. Destroying
 *              NULL does nothing and is OTR_OK. Engines and results are independent: a result outlives its engine.
 *   Threads    every function may be called from any thread at any time, also two destroys of one handle (one of them wins).
 *              Calls on one engine are short and serialised, except otr_wait; the work is done by threads of the engine's own,
 *              which inherit the CPU affinity of the thread that creates it. One thing is yours to see to: no thread may read a
 *              result's arrays while another destroys it.
 *   Waits      take a time limit in milliseconds; none is unbounded unless asked for with a negative one.
 *   Process    no signal handler or environment variable is touched (cpu-amx asks the system to let the process use tiles).
 *              Files are opened behind the numbers of the standard streams, whether these are open or not; one that would grow
 *              beyond the process' limit (RLIMIT_FSIZE) is an error, and no signal.
 *              Every call pins the floating-point environment (rounding, denormals) for itself and gives the caller's back. On
 *              GPUs the calling thread's CUDA context is after a call what it was before, none if there was none.
 *              After fork() a child must not use its parent's engines, nor destroy them.
 */
#ifndef OUTRIDER_H_
#define OUTRIDER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(OUTRIDER_BUILDING) || (defined(__GNUC__) && __GNUC__ >= 4)
#define OTR_API __attribute__((visibility("default")))
#else
#define OTR_API
#endif

#define OTR_VERSION_MAJOR 0
#define OTR_VERSION_MINOR 2
#define OTR_VERSION_PATCH 0

/* ---- Status ------------------------------------------------------------------------------------------------------------ */

/* X(name, value, text). The values are pinned for ever; new ones are added at the end. No function returns OTR_FAULT: see
 * error_status of otr_result_view. */
#define OTR_STATUS_LIST(X)                                                         \
  X(OTR_OK, 0, "ok")                                                               \
  X(OTR_INVALID_ARGUMENT, 1, "an argument is wrong")                               \
  X(OTR_INVALID_HANDLE, 2, "the handle was never created or is already destroyed") \
  X(OTR_BAD_INPUT, 3, "a file or its contents are wrong")                          \
  X(OTR_UNSUPPORTED, 4, "valid, but not supported by this build or machine")       \
  X(OTR_NEVER_FITS, 5, "larger than the engine's memory will ever allow")          \
  X(OTR_OUT_OF_MEMORY, 6, "memory or a thread was refused")                        \
  X(OTR_TIMEOUT, 7, "nothing happened within the given time")                      \
  X(OTR_IO_ERROR, 8, "the operating system refused a read or write")               \
  X(OTR_FAULT, 9, "the sample itself is at fault")                                 \
  X(OTR_INTERNAL, 10, "an internal error: please report it")                       \
  X(OTR_IDLE, 11, "nothing is outstanding")                                        \
  X(OTR_BUSY, 12, "not while what is under way goes on")                           \
  X(OTR_LOST, 13, "the processes that would have done it are lost")

typedef enum otr_status {
#define OTR_STATUS_ENUM(name, value, text) name = value,
  OTR_STATUS_LIST(OTR_STATUS_ENUM)
#undef OTR_STATUS_ENUM
} otr_status;

/* The text of a status; a constant string, never NULL. */
OTR_API const char* otr_status_text(otr_status status);

/* "0.2.0"; a constant string. */
OTR_API const char* otr_version(void);

/* ---- Engine ------------------------------------------------------------------------------------------------------------ */

typedef struct otr_engine otr_engine;

/* Strings that are NULL or "" have the default. */
typedef struct otr_engine_options {
  size_t struct_size;
  const char* model_path; /* a Hugging Face folder (config.json, safetensors) or an .otr file; required */
  const char* device;     /* "cpu"; "cuda" (GPU 0), "cuda:2", "cuda:0,1,3" (workers go round them, at least one each; every GPU
                             has the weights once); "auto" (default): what isa names, "cpu" if that is "auto" too */
  const char* isa;        /* "auto" (default): the best of the device; "cpu-amx", "cpu-avx512", "cpu-avx2", "cpu-scalar",
                             "cuda-sm90a"; a forced path that is missing is OTR_UNSUPPORTED, never replaced */
  const char* policy;     /* what is speculated: drafters propose tokens after each sample's last one, and the model keeps
                             those that it would have drawn itself. Samples are the same under every policy; only their speed
                             differs. "auto" (default): every tick what should pay most, of all drafters that are there;
                             without a profile (see below) what passes cost is measured at create, by some 40 of them. "off":
                             nothing; no memory for drafters. "specactor", "rhymerl", "tlt", "efficientrollout": as the papers
                             of these names choose. "fixed:<drafter>[+<drafter>…]:<depth>[:<top_k>[:<verify_tokens>[:q]]]":
                             always the same; with "q", drafters do without the noise that samples are drawn with: for
                             comparison. "fixed:…:<window>:decoupled": see num_draft_workers */
  int32_t max_batch;      /* samples decoding at the same time, 1 … 65536; default 256. Any number may be queued */
  int32_t prefill_chunk;  /* prompt tokens a tick, 1 … 1048576; default 512 */
  int32_t num_threads;    /* at most 4096; 0 (default): one per CPU of the calling thread's affinity, or as many as a
                             container's CPU quota (cgroup v1 or v2), rounded up, where those are fewer */
  uint64_t kv_bytes;      /* memory of the KV pages in bytes, at least one page (otr_stats: kv_page_bytes) and at most what is
                             free. Drafters with a model of their own have as many pages each, of its size, besides. 0
                             (default): with theirs, a quarter of the free memory, which is what the system has available, or
                             what a container's limit (cgroup v1 or v2) leaves, if that is less; of a GPU's, nine tenths of
                             what the weights leave, and drafters' and a copy in 4 bits would. In time all of it is used: what
                             has ended stays cached, and the pages that were used longest ago make room */
  const char* const* drafters; /* [num_drafters], "NAME=model:PATH": a smaller checkpoint with the same vocabulary that the
                              policy may name; "NAME=w4:PATH": in 4 bits, which drafts faster while samples are few, and is
                              right a little less often. Always there: "self", the model itself in 4 bits; "ngram", which
                              repeats what followed the last few tokens before in the group; and "history", which repeats what
                              the prompt's samples said in the last epoch (see History) */
  size_t num_drafters;
  int32_t history;          /* what is kept of finished samples for the drafter "history": 0 (default): nothing, unless the
                               policy drafts from it (one that names it, "specactor", "rhymerl"); 1: tokens; 2: tokens and
                               log-probs, which draft better (12 bytes a token instead of 8) */
  int32_t pin_threads;      /* 1: each of the engine's threads keeps to one CPU of the calling thread's affinity, which is
                               steadier where nothing else runs; default 0 */
  const char* profile_path; /* what passes cost on this machine, a file that 'outrider profile' wrote; NULL: none. One of
                              another machine, path, number of threads (a worker's), model shape or drafter is OTR_BAD_INPUT */
  const char* trace_path;   /* a file that is written while the engine lives: a Chrome trace (JSON; Perfetto and `outrider
                               report` open it), one event a line: what each tick chose, expected and did, and each sample's end.
                               Up to date whenever no sample is unfinished. NULL or "" (default): none. What the file had is
                               replaced once the model is loaded. A write that fails later ends the trace alone, and otr_stats
                               says why (trace_error) */
  int32_t num_workers; /* 1 … 256, at most max_batch; default 1. Each worker decodes on a thread of its own, with its share
                          of num_threads (at least one), of max_batch and of kv_bytes; they share the weights. A group's
                          samples start at one worker, whose share of the pages must hold each of them; samples move to
                          workers that have run dry. Samples are the same for any number of workers. prefill_chunk is a
                          worker's */
  int32_t worker_processes; /* 1: each worker is a process: see Worker processes; on GPUs each has one of its own; default 0 */
  const char* worker_executable; /* the program that serves a worker process; required with worker_processes */
  int32_t worker_timeout_ms;   /* a process that gives no sign for so long, or has work and comes no further, is taken for hung:
                              longer than the longest tick; default 300000 */
  int32_t max_worker_restarts; /* processes that may take a worker's place one after the other without one of them finishing a
                              sample, or breaking on a sample that was on trial (Worker processes); then the worker is given
                              up; default 3. After two in a row that bring no token the next one waits 20 ms, then twice as long
                              each time, 2 s at most. Those that the system does not let begin, being short of memory or files,
                              are none of these: they are tried again for two minutes, or for worker_timeout_ms if that is
                              longer */
  int32_t num_draft_workers; /* 0 (default) … half of num_workers: workers that may draft for the others ("decoupled"), with the
                              first of the policy's drafters that has a model of its own. Policies "specactor" and "auto" decide
                              whenever nothing runs whether that pays, by what passes cost and how many drafts were kept
                              (otr_stats: decoupled, plan); if not, these workers decode like the others.
                              "fixed:<drafter>[+<drafter>…]:<window>:decoupled" always does. Other policies must have 0 */
  int32_t keep_checkpoints; /* 1: the engine keeps what otr_checkpoint_save needs, up to 12 bytes a token of every sample's
                               limit; default 0 */
  /* Of worker processes on GPUs: see there. */
  const char* nccl_library;    /* by which pages of samples that move go from GPU to GPU: "libnccl.so.2", or a path; NULL or ""
                              (default): they go through the host's memory */
  const void* nccl_unique_id;  /* an ncclUniqueId of yours, used once; NULL (default): the engine makes its own */
  size_t nccl_unique_id_bytes; /* sizeof(ncclUniqueId), which is 128 */
  int32_t nccl_num_ranks;      /* of the communicator with that id; 0 (default): num_workers */
  int32_t nccl_first_rank;     /* worker i is rank nccl_first_rank + i; default 0 */
  int32_t nccl_timeout_ms;     /* of a transfer; to join, three times as long; at most worker_timeout_ms / 8; 0 (default): that,
                                  or 10000 if less */
  int32_t reserved;            /* 0; else OTR_UNSUPPORTED */
} otr_engine_options;

OTR_API otr_status otr_engine_options_init(otr_engine_options* options, size_t struct_size);

/* Loads the checkpoint, allocates everything the engine will ever use, and starts its threads: seconds, for a large model. On
 * GPUs let no other thread wait for a whole device (cudaDeviceSynchronize) while an engine is created or woken: CUDA refuses
 * that while the engine captures its passes, which it then begins again, twice at most. On failure *engine is NULL and
 * otr_last_error(NULL) says why. OTR_INVALID_ARGUMENT: an option is out of range, or the model_path missing. OTR_BAD_INPUT: the
 * checkpoint is wrong; the text names file, tensor and reason. OTR_IO_ERROR: it cannot be read, the trace not be written, or
 * worker_executable not be run. OTR_LOST: a worker process ended, or was not ready in time. OTR_UNSUPPORTED: the model, device
 * or path is not one that this build and machine can run. OTR_OUT_OF_MEMORY: weights, KV pages or threads do not fit, or the
 * system refuses another file to share. */
OTR_API otr_status otr_engine_create(const otr_engine_options* options, otr_engine** engine);

/* Abandons whatever is outstanding and frees the engine, once the tick in progress is over. A thread that is inside otr_wait
 * on it returns OTR_INVALID_HANDLE. Results already received stay valid. */
OTR_API otr_status otr_engine_destroy(otr_engine* engine);

/* The text of the calling thread's last failed call on this engine (NULL: of its last failed otr_engine_create, of a call on
 * a result, or of one without an engine); "" if there is none. A success does not clear it. Valid until the calling thread's
 * next call into the library; a thread remembers the failures of 16 engines. */
OTR_API const char* otr_last_error(const otr_engine* engine);

/* ---- Worker processes --------------------------------------------------------------------------------------------------- */

/* With options.worker_processes each of the num_workers workers is a process, and the engine outlives any of them. The weights,
 * of drafters too, lie in shared memory once. A process that dies, hangs, sends what is wrong, or is refused memory is ended
 * with SIGKILL and another one takes its place; its samples go on from what it had last reported, at whichever worker has room,
 * and are the same to the last bit. otr_stats counts worker_restarts and requeued_samples. A sample on which three of them break
 * by themselves, the last one with nothing beside it, ends with finish_reason error and error_status OTR_FAULT, and the others
 * go on. A worker that fails again and again (max_worker_restarts) is given up; when all are, unfinished samples arrive with
 * finish_reason error and error_status OTR_LOST (a checkpoint that is saved before you take them has them unfinished), and
 * otr_submit, otr_score and otr_append return OTR_LOST. No call waits for a process without a limit. OTR_UNSUPPORTED with
 * them: otr_sleep, otr_kv_export and otr_kv_import.
 *
 * On GPUs (device "cuda:0,1,…") each process has a GPU of its own; more workers than GPUs are OTR_UNSUPPORTED. The engine's own
 * process runs nothing there: it keeps the weights in the host's memory, for otr_weights_put and for processes that come anew,
 * and each process has a copy on its GPU and makes the one in 4 bits itself. A tensor of otr_weights_put may still lie on a
 * GPU.
 *
 * With options.nccl_library the processes join in a communicator, and keys and values of a sample that moves go from GPU to
 * GPU. A death, an error or a transfer that takes longer than nccl_timeout_ms ends the communicator: it is aborted, what was
 * under way is computed anew, and the processes that are there join in a new one, with an id that the engine makes. After three
 * failures without a death, and meanwhile, pages go through the host's memory. An abort that does not come back within
 * worker_timeout_ms ends its process. otr_stats says how it stands (nccl). OTR_UNSUPPORTED: the library cannot be loaded, is
 * older than 2.14, or the build had no nccl.h. OTR_INVALID_ARGUMENT: an id of another size; ranks that do not fit;
 * worker_timeout_ms below 8; nccl_timeout_ms above an eighth of worker_timeout_ms, because a process that comes no further may
 * be waiting for five transfers, one after the other, and for the abort of the last one, and its next sign may come an eighth
 * of worker_timeout_ms late. With an id of yours and nccl_num_ranks above num_workers the other ranks are yours to join: none
 * of theirs is sent anything.
 *
 * The library runs `<worker_executable> worker 3`, with the engine's end of things at file descriptor 3, standard streams and
 * environment as its own, in a process group of its own. The program calls otr_serve_worker(3) and returns; `outrider` is such
 * a program. It must have the same build of the library, of this version and commit (OTR_UNSUPPORTED from otr_engine_create
 * otherwise). Processes end with their engine, however that ends: within about a second of its process. The drafter "history"
 * proposes there what the history was when the last group was submitted. */

/* Serves as a worker at file descriptor `fd`, which it takes, until the engine at its other end is destroyed or gone: call it
 * from main and return from there. OTR_OK: the engine said stop. OTR_IO_ERROR: it is gone. OTR_INVALID_ARGUMENT: no such file.
 * Anything else is what kept the worker from its work; the engine has been told. Unlike other calls it may end the process:
 * where the worker cannot go on, or does not come to an end within the engine's worker_timeout_ms. */
OTR_API otr_status otr_serve_worker(int fd);

/* ---- Requests ---------------------------------------------------------------------------------------------------------- */

typedef struct otr_sampling_params {
  size_t struct_size;
  float temperature;             /* 0: argmax; else 0.01 … 100; default 1 */
  int32_t top_k;                 /* the most probable tokens to draw from; 0 (default): off */
  float top_p;                   /* (0, 1]; 1 (default): off */
  float min_p;                   /* [0, 1]; 0 (default): off */
  float repetition_penalty;      /* 0.001 … 1000, over prompt and output; 1 (default): off */
  float presence_penalty;        /* -100 … 100, over the output; 0 (default): off */
  float frequency_penalty;       /* -100 … 100, over the output; 0 (default): off */
  uint64_t seed;                 /* default 0 */
  int32_t max_new_tokens;        /* at least 1; default 1024; clamped to the model's context limit */
  int32_t ignore_eos;            /* 1: the model's own stop ids do not stop; default 0 */
  const int32_t* stop_token_ids; /* [num_stop_token_ids], further ids that stop; may be NULL */
  size_t num_stop_token_ids;
} otr_sampling_params;

OTR_API otr_status otr_sampling_params_init(otr_sampling_params* params, size_t struct_size);

/* A group: n samples of one prompt. Sample i has index first_sample + i; (seed, stream, index) is its noise key, so `stream`
 * must be unique per (step, prompt), or different prompts would share their noise. To add samples to a prompt's, submit it
 * again with the same seed and stream, and first_sample behind those that there are: a group of its own, with the same noise
 * key. */
typedef struct otr_group_request {
  size_t struct_size;
  const int32_t* prompt_token_ids; /* [num_prompt_tokens], at least one, each in [0, the model's vocab_size) */
  size_t num_prompt_tokens;
  int32_t n;                           /* 1 … 1048576; default 1 */
  uint32_t first_sample;               /* default 0; first_sample + n at most 2^32 - 1 */
  uint64_t stream;                     /* default 0: set it */
  uint64_t tag;                        /* yours; comes back with every result */
  const otr_sampling_params* sampling; /* NULL: the defaults */
} otr_group_request;

OTR_API otr_status otr_group_request_init(otr_group_request* request, size_t struct_size);

/* Queues a group and returns at once; *group_id names it (never 0, never used twice by an engine). Another thread's otr_wait may
 * give a first sample of it before that: threads that hand requests over tell them by `tag`. OTR_INVALID_ARGUMENT: an id
 * outside the vocabulary, an empty prompt or one at or over the context limit, n < 1, a parameter out of range. OTR_NEVER_FITS:
 * prompt + max_new_tokens exceed all KV pages of a worker. OTR_BUSY: the weights are being replaced, or it sleeps. OTR_LOST:
 * every worker process was given up. */
OTR_API otr_status otr_submit(otr_engine* engine, const otr_group_request* request, uint64_t* group_id);

/* Teacher forcing: the log-probs the engine would have reported had it drawn token_ids after the prompt, through the same
 * kernels and so equal to a rollout's to the last bit. */
typedef struct otr_score_request {
  size_t struct_size;
  const int32_t* prompt_token_ids; /* [num_prompt_tokens]; NULL and 0: then token 0 has no log-prob (NaN) */
  size_t num_prompt_tokens;
  const int32_t* token_ids; /* [num_tokens], at least one */
  size_t num_tokens;
  uint64_t tag;
  const otr_sampling_params* sampling; /* NULL: raw_logprobs only; else logprobs too (-INFINITY for a filtered token) */
} otr_score_request;

OTR_API otr_status otr_score_request_init(otr_score_request* request, size_t struct_size);

/* Queues a score and returns at once; one result arrives with this id as its group. Prompt and tokens together may be as
 * long as the model's context. Scores run all their tokens: they neither use nor leave cached pages. Every token that is scored
 * wants a row of logits, of which a worker's tick has as many as samples in its batch, and at least 64. Errors as otr_submit. */
OTR_API otr_status otr_score(otr_engine* engine, const otr_score_request* request, uint64_t* group_id);

/* Ends a group, or a score: its unfinished samples arrive soon, with finish_reason abort and the tokens they have; 0 ends all
 * groups. A group that is finished or unknown is OTR_INVALID_ARGUMENT. A sample goes on from there, in this engine or in
 * another with the same weights, as a group of its own: prompt and tokens are its prompt, its index is first_sample, seed and
 * stream stay. Unless it has penalties, which count a response, it draws what it would have drawn. */
OTR_API otr_status otr_cancel(otr_engine* engine, uint64_t group_id);

/* Between otr_pause and otr_resume no tick of the engine begins: what is unfinished keeps its tokens and its pages, and goes on
 * later as if nothing had been, unless the weights change or its memory sleeps meanwhile. Processors and GPUs are free
 * meanwhile. otr_pause returns when the running tick has ended; it does not wait for a worker process that is to take another
 * one's place (otr_weights_begin does). Submits are queued, cancels take effect at the resume, waits wait: whoever waits
 * without a limit needs another thread that resumes. Pausing a paused engine, or resuming one that runs, is no error. */
OTR_API otr_status otr_pause(otr_engine* engine);
OTR_API otr_status otr_resume(otr_engine* engine);

/* ---- Results ----------------------------------------------------------------------------------------------------------- */

typedef struct otr_result otr_result;

typedef enum otr_finish_reason {
  OTR_FINISH_STOP = 0,   /* a stop token was drawn; it is the last of token_ids */
  OTR_FINISH_LENGTH = 1, /* max_new_tokens or the context limit was reached */
  OTR_FINISH_ABORT = 2,  /* cancelled */
  OTR_FINISH_ERROR = 3,  /* the sample is at fault, or the engine failed: see error_status and error */
  OTR_FINISH_SCORE = 4   /* the result of otr_score */
} otr_finish_reason;

/* "stop", "length", "abort", "error", "score"; a constant string. */
OTR_API const char* otr_finish_reason_text(otr_finish_reason reason);

/* Tokens of a result from number first_token on, up to the next span, are drawn by weights of this version. */
typedef struct otr_weight_span {
  size_t first_token;
  uint64_t weight_version;
} otr_weight_span;

typedef struct otr_result_view {
  size_t struct_size;
  uint64_t group_id;
  uint64_t tag;
  uint32_t sample; /* index: first_sample … first_sample + n - 1 */
  otr_finish_reason finish_reason;
  size_t num_tokens;
  const int32_t* token_ids;         /* [num_tokens] */
  const float* logprobs;            /* [num_tokens], of the distribution sampled from; NULL for a score without sampling */
  const float* raw_logprobs;        /* [num_tokens], log-softmax of the raw logits */
  const char* error;                /* "" unless finish_reason is error */
  int64_t spec_num_draft_tokens;    /* drafted tokens that the model verified */
  int64_t spec_num_accepted_tokens; /* of these, how many it kept */
  int64_t spec_num_verify_steps;    /* runs of the model that verified at least one */
  uint64_t weight_version;          /* of the weights that drew its last token, and all unless num_weight_spans says otherwise:
                                       see Weights, and otr_checkpoint_load; 0: those of model_path */
  const otr_weight_span* weight_spans; /* [num_weight_spans], ascending, the first from token 0 on */
  size_t num_weight_spans;             /* at least 1 */
  otr_status error_status;             /* of finish_reason error: OTR_FAULT: its own numbers are NaN or Inf, wherever it runs,
                                          or worker processes break on it; OTR_LOST: the engine failed, and elsewhere it may end
                                          well. Else OTR_OK */
} otr_result_view;

/* Takes the next finished sample or score, waiting up to timeout_ms (0: not at all; negative: as long as something is
 * outstanding). They come in the order in which they finish, each once, to one of the threads that wait. OTR_TIMEOUT: none
 * yet. OTR_IDLE: nothing is outstanding, so none will come until something is submitted. *result is NULL unless OTR_OK; it
 * is yours to destroy. */
OTR_API otr_status otr_wait(otr_engine* engine, int64_t timeout_ms, otr_result** result);

/* Fills the struct_size bytes of *view (pass sizeof; no _init is needed), as often as you like. Its pointers live until
 * otr_result_destroy, even if the engine is destroyed before. */
OTR_API otr_status otr_result_get(const otr_result* result, otr_result_view* view, size_t struct_size);

/* Fills the struct_size bytes of *params with what the sample was drawn with, so that its next turn may change some of it: seed
 * and max_new_tokens as requested, stop_token_ids alive until otr_result_destroy. OTR_INVALID_ARGUMENT: a score's. */
OTR_API otr_status otr_result_sampling(const otr_result* result, otr_sampling_params* params, size_t struct_size);

/* Frees the result and what views of it point to. */
OTR_API otr_status otr_result_destroy(otr_result* result);

/* ---- Turns ------------------------------------------------------------------------------------------------------------- */

/* A sample that has ended goes on behind tokens of yours: what a tool answered, or what a user said next.
 *
 *     otr_append_request turn;
 *     otr_append_request_init(&turn, sizeof turn);
 *     turn.token_ids = answer;  turn.num_tokens = num_answer;
 *     uint64_t group;
 *     otr_append(engine, result, &turn, &group);        its result arrives like any other
 *
 * It is a new group of one sample, with the index and the noise key of the one before. Its prompt is all that came before: the
 * prompt, the tokens of `result`, and these; what it draws is what otr_submit with that prompt, n = 1, the same first_sample,
 * stream and seed would draw, bit for bit. Its result has the new tokens only, weight_version is theirs, and penalties count
 * them alone as output: a past that older weights have drawn is a prompt like any other. The engine keeps the pages of a sample
 * that has ended as long as there is room (see Pages), and sends the next turn to the worker that has them, unless that one has
 * much more to do than others: then little more than token_ids is run.
 *
 * A result may be appended to again: that is a branch, with the same noise key, so that the same tokens give the same sample.
 * For further samples of one past submit it as a prompt, with n and a stream of its own: its pages are found all the same. */
typedef struct otr_append_request {
  size_t struct_size;
  const int32_t* token_ids; /* [num_tokens]; NULL and 0: the sample just goes on, say where max_new_tokens ended it */
  size_t num_tokens;
  uint64_t tag;                        /* yours, of this turn */
  const otr_sampling_params* sampling; /* NULL: what it had, max_new_tokens counted anew; its seed is not read: the key stays */
} otr_append_request;

OTR_API otr_status otr_append_request_init(otr_append_request* request, size_t struct_size);

/* Queues the next turn and returns at once. `result` stays yours, and may be destroyed then. Any sample's will do, whatever its
 * finish_reason: it goes on from the tokens that it has; of another engine's its ids are to be in this one's vocabulary.
 * OTR_INVALID_HANDLE: it is no live result. OTR_INVALID_ARGUMENT: it is a score's; with token_ids it is at or over the context
 * limit. Other errors as otr_submit. */
OTR_API otr_status otr_append(otr_engine* engine, const otr_result* result, const otr_append_request* request,
                              uint64_t* group_id);

/* ---- Weights ----------------------------------------------------------------------------------------------------------- */

/* New weights, in place: no second copy is held.
 *
 *     otr_weights_begin(engine, step);
 *     for each tensor: otr_weights_put(engine, &tensor);     as named and shaped in the checkpoint
 *     otr_weights_commit(engine);
 *
 * From begin to commit nothing can be submitted. Tensors that are not put keep their values: whoever means to put all of them
 * calls otr_weights_expect_all, and a commit then refuses to leave one out. After a put that failed the others can go on, and
 * the failed one can be repeated; an update that its caller gave up can be begun again. (Threads that update at once would
 * mix their tensors.) A drafter that was made of the old weights ("self") is made again by the
 * commit, and cached pages are forgotten: what is drawn then is what an engine created with these weights would draw, bit for
 * bit.
 *
 * Samples that are unfinished go on with the new weights, if otr_pause comes before the begin, and otr_resume whenever the
 * commit is done. Their tokens stay; all that was computed of them is computed again. So from the commit on a sample draws what
 * an engine created with the new weights draws behind its prompt and tokens with its noise, and otr_score there gives its
 * log-probs, bit for bit. Its result says which weights drew which tokens (weight_spans). Where the pause finds a sample, and
 * so where one span ends, is a matter of time; all else is not. Penalties count the whole response. A score that is unfinished
 * begins again, and is of the new weights whole. */

typedef enum otr_dtype { OTR_DTYPE_BF16 = 0, OTR_DTYPE_F16 = 1, OTR_DTYPE_F32 = 2 } otr_dtype;

typedef struct otr_tensor {
  size_t struct_size;
  const char* name;     /* "model.layers.0.mlp.up_proj.weight"; one that checkpoints have and the engine never reads is accepted
                           (rotary_emb.inv_freq; a tied model's lm_head.weight: its embedding is read in its place), and so are
                           experts stacked as in transformers 5: "….mlp.experts.gate_up_proj" [experts, 2 inner, hidden] and
                           "….mlp.experts.down_proj" [experts, hidden, inner] */
  otr_dtype dtype;      /* f16 and f32 become bf16 as at load: rounded to nearest even (norms and biases: float32, so that a
                           trainer's float32 weights need not draw to the bit what a checkpoint of them in bf16 draws) */
  const int64_t* shape; /* [num_dims]; matrices are [out_features, in_features] */
  size_t num_dims;
  const void* data;  /* row-major, dense; in host memory, any alignment, or, for an engine on GPUs, in a GPU's (of its
                        primary context, or of the one current on the calling thread): written by then, as seen from the
                        host */
  size_t data_bytes; /* what the shape and dtype come to */
} otr_tensor;

OTR_API otr_status otr_tensor_init(otr_tensor* tensor, size_t struct_size);

/* Begins an update to weights of `version` (any number; results carry it. It names weights: of unfinished samples, which go on
 * with the new ones, spans of one number are one), or begins again the one that is under way: it now has this version, what has
 * been put stays put, and what otr_weights_expect_all still misses stays missing. There is no way back: to give an update up,
 * put the old tensors again, and commit. OTR_BUSY: samples are unfinished (results that nobody has taken yet do not matter; what
 * otr_cancel ends is unfinished until it arrives) and the engine neither paused nor asleep nor without weights, or the weights
 * are asleep. OTR_OUT_OF_MEMORY: none has begun. */
OTR_API otr_status otr_weights_begin(otr_engine* engine, uint64_t version);

/* From here on every tensor counts as missing until it is put, so that otr_weights_commit says which one was forgotten.
 * OTR_INVALID_ARGUMENT: no update has begun. */
OTR_API otr_status otr_weights_expect_all(otr_engine* engine);

/* Replaces one tensor; returns when `data` is no longer needed. OTR_INVALID_ARGUMENT: no update has begun; the model has no
 * tensor of this name; its shape or size is another; the dtype is unknown. */
OTR_API otr_status otr_weights_put(otr_engine* engine, const otr_tensor* tensor);

/* Ends the update. OTR_INVALID_ARGUMENT: none has begun; or tensors are missing, since otr_weights_expect_all or since they were
 * lost in otr_sleep (the update goes on). */
OTR_API otr_status otr_weights_commit(otr_engine* engine);

/* ---- Sleep ------------------------------------------------------------------------------------------------------------- */

/* Between two rollouts, or in a pause, a trainer may want the engine's memory for itself, on a GPU above all:
 *
 *     otr_sleep(engine, OTR_MEMORY_ALL);                        all samples are finished, or paused; the trainer trains
 *     otr_wake(engine, OTR_MEMORY_WEIGHTS);
 *     otr_weights_begin … a put for every tensor … otr_weights_commit
 *     otr_wake(engine, OTR_MEMORY_KV);                          now that the trainer's copy is gone
 *
 * Samples are those of an engine created with these weights, bit for bit. A sleeping engine keeps its options, its history and
 * what it has learnt of drafters; and, where otr_pause comes before, unfinished samples, whose keys and values are computed
 * again when all is awake, the weights that were lost are committed, and the engine is resumed, in any order: see Weights. */

typedef enum otr_memory {
  OTR_MEMORY_WEIGHTS = 1, /* the model's weights and what is made of them ("self"). They are lost: after otr_wake all are to be
                             put. Norms and biases, and drafters' own weights, which no trainer has, keep their memory */
  OTR_MEMORY_KV = 2,      /* KV pages, with the cached ones, buffers of passes, and on a GPU captured programs; drafters' too
                           */
  OTR_MEMORY_ALL = 3
} otr_memory;

/* Gives memory back to the system or the GPUs. What sleeps already goes on sleeping. From here on nothing can be submitted,
 * exported, imported or checkpointed (OTR_BUSY) until all is awake and the weights are committed. OTR_BUSY: samples are
 * unfinished (results that nobody has taken yet do not matter) and the engine neither paused nor asleep nor without weights, or
 * the weights are being replaced. OTR_UNSUPPORTED: worker processes do not sleep; nor does a GPU whose driver cannot keep
 * addresses. */
OTR_API otr_status otr_sleep(otr_engine* engine, otr_memory what);

/* Takes it again; what is awake stays awake. OTR_OUT_OF_MEMORY: it is not there, and all that was asked goes on sleeping: try
 * again. */
OTR_API otr_status otr_wake(otr_engine* engine, otr_memory what);

/* ---- Pages ------------------------------------------------------------------------------------------------------------- */

/* An engine keeps the keys and values of what it has run, prompts and samples, in pages of 64 tokens, as long as there is room:
 * a prompt that begins with the same tokens does not run them again. They can be taken from one engine to another of the same
 * weights, instruction-set path and library version, on this machine or elsewhere. Samples are the same with and without. */

/* Writes the pages of the longest beginning of token_ids that the engine has (whole pages; of a group's prompt once its first
 * token is drawn, of a sample once it has ended) to `buffer`, and to *num_covered how many tokens that is, perhaps 0. *size is
 * what `buffer` needs; too small a one is OTR_INVALID_ARGUMENT with *size set. The form is independent of the path's own: bf16,
 * row-major, with a checksum. OTR_BUSY as otr_submit. OTR_UNSUPPORTED: worker processes. The engine stands still meanwhile, as
 * paused. */
OTR_API otr_status otr_kv_export(otr_engine* engine, const int32_t* token_ids, size_t num_tokens, void* buffer, size_t capacity,
                                 size_t* size, size_t* num_covered);

/* Takes what otr_kv_export wrote, into every worker's cache; of the first pages as many as have room: *num_covered says how
 * many tokens that is. OTR_UNSUPPORTED: it is of another model shape, path, library version or of other weights; or worker
 * processes. OTR_BAD_INPUT: it is damaged or something else. The text says what. A checksum tells damage, not malice: import
 * only what you trust. */
OTR_API otr_status otr_kv_import(otr_engine* engine, const void* data, size_t size, size_t* num_covered);

/* ---- Checkpoints ------------------------------------------------------------------------------------------------------- */

/* A new process can go on where another was killed: samples end with the same bits, and what was drawn before is not drawn
 * again. */

/* Writes to a file what the engine owes: every group and score that is unfinished or of which results have not been taken by
 * otr_wait, with the tokens accepted so far. `user_data` goes with it: what the caller needs to know of the results it has
 * taken: so let no other thread take one between that and this. The file appears when it is complete and durable, in place of
 * the one before. The engine goes on while it is written; what it owes is copied first, and the first save, load, export or
 * import after an update reads all weights, for their digest. OTR_INVALID_ARGUMENT: options.keep_checkpoints is 0.
 * OTR_IO_ERROR: the old file is as it was; also where the new one would be above 64 GiB. OTR_OUT_OF_MEMORY: now, or, as the
 * text says then, earlier, when what samples had accepted was to be kept: then no later save of this engine succeeds, and its
 * samples go on. OTR_BUSY as otr_submit. */
OTR_API otr_status otr_checkpoint_save(otr_engine* engine, const char* path, const void* user_data, size_t user_size);

/* Into an engine that owes nothing (else OTR_BUSY): all goes on as if it had been submitted here, under new group ids and with
 * the tags it had; finished samples arrive at once. The new ids follow one another in the order of the old ones, from the id on
 * that the next otr_submit would have given (in a new engine: 1, 2, …); groups whose results had all been taken are not among
 * them. Options that change no sample may differ: workers, batch, policy, pages. Whether the weights are the same their digest
 * decides; the file's version of them becomes the engine's, so that a new process with these weights as its model_path goes on
 * under the number they had. So after an update first put the weights that the checkpoint was saved under, load it, and then
 * update in a pause. OTR_IO_ERROR, OTR_INVALID_ARGUMENT (it is no checkpoint, or options.keep_checkpoints is 0), OTR_BAD_INPUT
 * (torn or damaged), OTR_UNSUPPORTED (of other weights, another instruction-set path or library version), OTR_NEVER_FITS:
 * nothing was taken; the text says what. */
OTR_API otr_status otr_checkpoint_load(otr_engine* engine, const char* path);

/* Writes the user data of a checkpoint to `buffer`, and its size to *size; too small a buffer is OTR_INVALID_ARGUMENT with
 * *size set. Errors as otr_checkpoint_load: otr_last_error(NULL). */
OTR_API otr_status otr_checkpoint_user_data(const char* path, void* buffer, size_t capacity, size_t* size);

/* ---- History ----------------------------------------------------------------------------------------------------------- */

/* Training visits a prompt once an epoch, and what its samples say changes slowly. An engine that keeps a history
 * (options.history, or a policy that drafts from it) drafts a prompt's samples from those of its last visit. It changes speed
 * alone, never a sample.
 *
 *     otr_history_load(engine, "history");          at the start of a run
 *     each step: submit and wait as ever; otr_reward for each sample; otr_history_commit
 *     otr_history_save(engine, "history");          at the end of a step */

/* The reward of a sample that ended (OTR_FINISH_STOP or _LENGTH), at any time from its otr_wait to the next otr_history_commit;
 * a second one replaces the first. Of different branches in a prompt's history those with the greater sum of rewards are
 * drafted first; only the order and the distances of one prompt's rewards matter. Without a reward a sample counts as middling.
 * A later turn's reward is taken too and changes nothing: of a conversation, first turns are kept. An engine without a history
 * takes it and does nothing. OTR_INVALID_ARGUMENT: no such sample since the last commit (of what was taken before a checkpoint
 * the engine that loads it knows nothing; nor of a sample for which there was no memory), or a reward that is not finite. */
OTR_API otr_status otr_reward(otr_engine* engine, uint64_t group_id, uint32_t sample, float reward);

/* The step is over: what the samples said that otr_wait gave since the last commit becomes their prompts' history, in place of
 * what the prompts had. Returns at once (after the build before it, should that still run); a thread of the library's own
 * builds the index, or this call where the system refuses a thread, and samples that begin after that use it. Call it once a
 * step: until then these samples are kept in memory. */
OTR_API otr_status otr_history_commit(otr_engine* engine);

/* Commits, waits for the index and writes the history to a file, which appears only when it is complete. OTR_IO_ERROR: the old
 * file is as it was, and the commit stands. OTR_INVALID_ARGUMENT: the engine keeps no history. */
OTR_API otr_status otr_history_save(otr_engine* engine, const char* path);

/* Adds a file's history; its prompts' own are replaced. OTR_IO_ERROR: the file, or a part of it, cannot be read.
 * OTR_INVALID_ARGUMENT: it is no history, or its header is damaged or cut off, so that it may be none; or the engine keeps
 * none. OTR_UNSUPPORTED: it is of another version of the format. None of these has an effect. OTR_BAD_INPUT: it is damaged or
 * torn behind the header, or empty; here an error has one: what is whole is used, and otr_last_error says what is not. */
OTR_API otr_status otr_history_load(otr_engine* engine, const char* path);

/* ---- Numbers ----------------------------------------------------------------------------------------------------------- */

/* Writes the engine's counters as a JSON object with a terminating NUL, at most `capacity` bytes, and the size that it needs to
 * *size. Too small a buffer is OTR_INVALID_ARGUMENT with *size set. Keys: isa, version, ticks, generated_tokens,
 * prefill_tokens, finished_samples, preemptions, prefix_hit_tokens, kv_pages_total, kv_pages_in_use, kv_pages_peak,
 * kv_page_bytes, vocab_size, context_limit (tokens of prompt and response together), eos_token_ids (the model's own, that stop
 * a sample), weight_version, weights_digest (null until a checkpoint or an export of pages has needed it), weight_bytes_written
 * (loaded, put and quantised so far), busy_seconds, kernel_seconds, quantize_seconds, num_workers, num_threads, migrations
 * (samples that went to another worker), worker_restarts, requeued_samples and last_worker_loss (of worker processes: the last
 * one's cause, "" while none was lost), workers (a list: what each one counted), … Of several workers all are sums, peaks too.
 * runtime/README.md has a table of all. */
OTR_API otr_status otr_stats(otr_engine* engine, char* buffer, size_t capacity, size_t* size);

#ifdef __cplusplus
}
#endif

#endif /* OUTRIDER_H_ */
