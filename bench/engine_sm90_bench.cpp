// What an engine on a GPU does outside its ticks, and what exactness costs in them. Sees the internals, as tests do.
//
//   engine_sm90_bench price MODEL [BATCH,BATCH,…] [TOKENS]     plain decoding with linear's splits chosen by the number of rows, as engines
//                                                             do that promise nothing, against the default; outputs compared
//   engine_sm90_bench prefetch MODEL [BATCH,…] [TOKENS]        plain decoding whose products begin before the launch ahead has ended and fetch
//                                                             weights into L2, against the default; outputs compared
//   engine_sm90_bench memory MODEL                             "self" made again; sleep and wake, in seconds and bytes
//
// Prints Markdown. Both engines of a price are in memory at once and take turns, three rounds; medians. Exit code 1: it could
// not run.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/linear/linear_sm90.h"
#include "runtime/engine.h"

namespace otr {
namespace {

constexpr int kRounds = 3, kPromptTokens = 64;

// As many splits as fill the device with two clusters' worth of blocks a multiprocessor for up to 64 rows, with one for up to
// 256, and none beyond.
void linear_by_rows(const LinearParams& p, const LaunchContext& on) {
  if (p.gated != nullptr) return cuda_kernels().linear(p, on);
  CudaDevice& device = static_cast<CudaDevice&>(*on.accelerator);
  const cudaStream_t stream = device.stream();
  static const DeviceLimits limits = device_limits_sm90().value();
  const LinearSm90Problem problem{p.num_rows, p.weight.out_features, p.weight.in_features, false};
  const int blocks_wanted = p.num_rows > 256 ? 1 : (p.num_rows > 64 ? 1 : 2) * limits.num_sms;
  LinearSm90Config best = choose_linear_sm90(problem, limits, 1);
  for (int splits = 2; splits <= 8 && splits * 64 <= p.weight.in_features; splits *= 2) {
    if (best.tiles() * best.splits >= blocks_wanted) break;
    best = choose_linear_sm90(problem, limits, splits);
  }
  device.keep(linear_sm90(p, best, stream));
}

// The default's bits, and its tiles.
void linear_prefetching(const LinearParams& p, const LaunchContext& on) {
  if (p.num_rows == 0) return;
  CudaDevice& device = static_cast<CudaDevice&>(*on.accelerator);
  const cudaStream_t stream = device.stream();
  static const DeviceLimits limits = device_limits_sm90().value();
  LinearSm90Config config =
      choose_linear_sm90({p.num_rows, p.weight.out_features, p.weight.in_features, p.gated != nullptr}, limits);
  config.prefetch = true;
  device.keep(p.gated == nullptr
                  ? linear_sm90(p, config, stream)
                  : linear_silu_mul_sm90({p.num_rows, p.weight, p.x, p.x_stride, p.gated, p.gated_stride}, config, stream));
}

std::unique_ptr<Engine> make_engine(const std::string& model, const KernelTable* kernels, const std::string& policy,
                                    int32_t batch, int32_t num_pages) {
  EngineOptions o;
  o.device = {
      .isa = kCudaPath, .kernels = kernels, .num_threads = 1, .target = {.path = model, .num_pages = num_pages, .bucket = {}}};
  o.gpus = {0};
  o.policy = policy;
  o.max_batch = batch;
  Result<std::unique_ptr<Engine>> engine = Engine::create(o);
  if (!engine.ok()) throw std::runtime_error(engine.status().message());
  return std::move(engine.value());
}

using Bits = std::map<uint64_t, std::pair<std::vector<int32_t>, std::vector<float>>>;  // by sample: tokens, raw log-probs

// Decodes `batch` samples of `tokens` tokens. Returns tokens a second of ticks' time.
double roll_out(Engine* engine, int32_t vocab, int32_t batch, int32_t tokens, Bits* bits) {
  std::mt19937 random(7);
  const auto busy = [&] {
    const std::string stats = engine->stats_json();
    return std::atof(stats.c_str() + stats.find("\"busy_seconds\":") + 15);
  };
  const double before = busy();
  for (int32_t i = 0; i < batch; ++i) {
    std::vector<int32_t> prompt(kPromptTokens);
    for (int32_t& token : prompt) token = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
    otr_sampling_params sampling;
    otr_sampling_params_init(&sampling, sizeof sampling);
    sampling.max_new_tokens = tokens;
    sampling.ignore_eos = 1;
    otr_group_request r;
    otr_group_request_init(&r, sizeof r);
    r.prompt_token_ids = prompt.data(), r.num_prompt_tokens = prompt.size();
    r.stream = r.tag = static_cast<uint64_t>(i);
    r.sampling = &sampling;
    if (const Result<uint64_t> group = engine->submit(r); !group.ok()) throw std::runtime_error(group.status().message());
  }
  for (int32_t i = 0; i < batch; ++i) {
    Result<std::unique_ptr<Sequence>> done = engine->wait(600'000);
    if (!done.ok()) throw std::runtime_error(done.status().message());
    const Sequence& s = *done.value();
    if (!s.error.empty()) throw std::runtime_error(s.error);
    (*bits)[s.group->tag] = {s.tokens, s.raw_logprobs};
  }
  return batch * tokens / (busy() - before);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(const std::string& model, const std::vector<int32_t>& batches, int32_t tokens,
             decltype(KernelTable::linear) linear, const char* name) {
  KernelTable changed = cuda_kernels();
  changed.linear = linear;
  const int32_t most = *std::max_element(batches.begin(), batches.end());
  const int32_t num_pages = most * ((kPromptTokens + tokens) / kPageTokens + 1);
  const std::unique_ptr<Engine> exact = make_engine(model, nullptr, "off", most, num_pages),
                                other = make_engine(model, &changed, "off", most, num_pages);
  const int32_t vocab = exact->limits().vocab_size;
  std::printf("| batch | default tok/s | %s tok/s | faster by | same bits |\n|---|---|---|---|---|\n", name);
  for (const int32_t batch : batches) {
    Bits a, b;
    std::vector<double> exact_rates, other_rates;
    roll_out(exact.get(), vocab, batch, tokens, &a);  // warm
    roll_out(other.get(), vocab, batch, tokens, &b);
    for (int round = 0; round < kRounds; ++round) {
      exact_rates.push_back(roll_out(exact.get(), vocab, batch, tokens, &a));
      other_rates.push_back(roll_out(other.get(), vocab, batch, tokens, &b));
    }
    const double x = median(exact_rates), y = median(other_rates);
    std::printf("| %d | %.1f | %.1f | %.1f %% | %s |\n", batch, x, y, 100 * (y / x - 1), a == b ? "yes" : "no");
    std::fflush(stdout);
  }
}

void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

void memory(const std::string& model) {
  const std::unique_ptr<Engine> engine = make_engine(model, nullptr, "fixed:self:5:8:48", 32, 0);
  Bits bits;
  roll_out(engine.get(), engine->limits().vocab_size, 4, 8, &bits);
  for (int round = 0; round < kRounds; ++round) {  // the first one's kernels are loaded by now
    const Stopwatch time;
    check(engine->begin_weights(static_cast<uint64_t>(round)));
    check(engine->commit_weights());
    const std::string stats = engine->stats_json();
    std::printf("- a commit of nothing, `self` made again: %.1f ms, of it quantising %.1f ms\n", 1e3 * time.seconds(),
                1e3 * std::atof(stats.c_str() + stats.find("\"quantize_seconds\":") + 19));
  }
  const auto step = [&](const char* what, const Status& status, double seconds, size_t free) {
    check(status);
    std::printf("- %s: %.3f s, %.2f GB free\n", what, seconds, static_cast<double>(free) / 1e9);
  };
  const auto timed = [&](const char* what, const auto& call) {
    const Stopwatch time;
    const Status status = call();
    const double seconds = time.seconds();
    size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);
    step(what, status, seconds, free);
  };
  timed("awake", [] { return Status(); });
  timed("sleep, KV", [&] { return engine->sleep(OTR_MEMORY_KV); });
  timed("sleep, weights", [&] { return engine->sleep(OTR_MEMORY_WEIGHTS); });
  timed("wake, weights", [&] { return engine->wake(OTR_MEMORY_WEIGHTS); });
  timed("wake, KV, captures made again", [&] { return engine->wake(OTR_MEMORY_KV); });
}

int run(int argc, char** argv) {
  const std::string part = argc > 2 ? argv[1] : "";
  if (part != "price" && part != "prefetch" && part != "memory") {
    std::fprintf(stderr, "engine_sm90_bench: expected price, prefetch or memory, and a model\n");
    return 2;
  }
  std::vector<int32_t> batches;
  const std::string list = argc > 3 ? argv[3] : "1,16,64,256";
  for (const char* at = list.c_str(); *at != 0;) {
    char* end = nullptr;
    const long batch = std::strtol(at, &end, 10);
    if (end == at || batch < 1 || batch > 4096) {
      std::fprintf(stderr, "engine_sm90_bench: '%s' is no list of batches\n", list.c_str());
      return 2;
    }
    batches.push_back(static_cast<int32_t>(batch));
    at = *end == ',' ? end + 1 : end;
  }
  try {
    const int32_t tokens = argc > 4 ? std::max(1, std::atoi(argv[4])) : 128;
    if (part == "price") compare(argv[2], batches, tokens, linear_by_rows, "splits by rows");
    else if (part == "prefetch") compare(argv[2], batches, tokens, linear_prefetching, "weights prefetched");
    else memory(argv[2]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "engine_sm90_bench: %s\n", e.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace otr

int main(int argc, char** argv) { return otr::run(argc, argv); }
