// Times llama.cpp for compare_llama_cpp.py, which builds it: the workloads of outrider_bench's engine cases on a GGUF file.
//
//   llama_cpp_driver MODEL.gguf THREADS < commands
//
// A command is a line "BATCH PROMPT_TOKENS NEW_TOKENS": the prompts of BATCH sequences go in together, in chunks of 512; then
// every sequence gets NEW_TOKENS tokens, all sequences in one batch, each drawn at temperature 1 from the whole vocabulary. The
// answer is a line "SECONDS STEP_SECONDS SAMPLING_SECONDS": of all of it, of one step of decoding (0 where there is none), and
// of all draws, which one thread makes; of the second of two runs.
#include <llama.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace {

constexpr int kMaxBatch = 64, kChunk = 512;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Driver {
  llama_model* model;
  llama_context* context;
  int32_t vocab_size;
  std::vector<llama_sampler*> samplers;  // one a sequence
  llama_batch batch = llama_batch_init(kChunk, 0, 1);
  uint32_t random = 1;
  double sampling = 0;  // seconds of this run

  void add(llama_token token, int position, int sequence, bool logits) {
    const int i = batch.n_tokens++;
    batch.token[i] = token;
    batch.pos[i] = position;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = sequence;
    batch.logits[i] = logits;
  }
  void decode() {
    if (llama_decode(context, batch) != 0) std::exit(1);
    llama_synchronize(context);  // what is left to do is no part of sampling
  }
  llama_token sample(int sequence, int place) {
    const double start = now();
    const llama_token token = llama_sampler_sample(samplers[static_cast<size_t>(sequence)], context, place);
    sampling += now() - start;
    return token;
  }

  // A context of its own for every command: one cache a sequence is quickest where sequences share no prefix, and it has to be
  // sized.
  bool open(int sequences, int tokens, int threads) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<uint32_t>(sequences * ((tokens + 255) / 256 * 256));
    params.n_batch = params.n_ubatch = kChunk;
    params.n_seq_max = static_cast<uint32_t>(sequences);
    params.n_threads = params.n_threads_batch = threads;
    if (context != nullptr) llama_free(context);
    context = llama_init_from_model(model, params);
    return context != nullptr;
  }

  void run(int sequences, int prompt_tokens, int new_tokens, bool report) {
    llama_memory_clear(llama_get_memory(context), true);
    std::vector<llama_token> last(static_cast<size_t>(sequences));
    const double start = now();
    sampling = 0;
    batch.n_tokens = 0;
    std::vector<int> place(last.size(), -1);  // of a sequence's last prompt token in the batch
    const auto flush = [&] {
      decode();
      for (int s = 0; s < sequences; ++s) {
        if (place[s] >= 0) last[s] = sample(s, place[s]);
        place[s] = -1;
      }
      batch.n_tokens = 0;
    };
    for (int s = 0; s < sequences; ++s) {
      for (int t = 0; t < prompt_tokens; ++t) {
        random = random * 1664525u + 1013904223u;
        if (t == prompt_tokens - 1) place[s] = batch.n_tokens;
        add(static_cast<llama_token>((random >> 8) % static_cast<uint32_t>(vocab_size)), t, s, t == prompt_tokens - 1);
        if (batch.n_tokens == kChunk) flush();
      }
    }
    if (batch.n_tokens > 0) flush();
    const double prefilled = now();
    for (int step = 1; step < new_tokens; ++step) {
      batch.n_tokens = 0;
      for (int s = 0; s < sequences; ++s) add(last[s], prompt_tokens + step - 1, s, true);
      decode();
      for (int s = 0; s < sequences; ++s) last[s] = sample(s, s);
    }
    const double end = now();
    if (!report) return;
    std::printf("%.9f %.9f %.9f\n", end - start, new_tokens > 1 ? (end - prefilled) / (new_tokens - 1) : 0.0, sampling);
    std::fflush(stdout);
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) return 1;
  Driver driver{model, nullptr, llama_vocab_n_tokens(llama_model_get_vocab(model)), {}};
  for (uint32_t i = 0; i < kMaxBatch; ++i) {
    llama_sampler* chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    llama_sampler_chain_add(chain, llama_sampler_init_dist(i));
    driver.samplers.push_back(chain);
  }
  std::printf("ready %s\n", llama_print_system_info());
  std::fflush(stdout);
  int sequences, prompt_tokens, new_tokens;
  while (std::scanf("%d %d %d", &sequences, &prompt_tokens, &new_tokens) == 3) {
    if (sequences < 1 || sequences > kMaxBatch || prompt_tokens < 1 || new_tokens < 1) return 2;
    if (!driver.open(sequences, prompt_tokens + new_tokens, std::atoi(argv[2]))) return 1;
    driver.run(sequences, 1, 2, false);  // touches the buffers
    driver.run(sequences, prompt_tokens, new_tokens, true);
  }
  return 0;
}
