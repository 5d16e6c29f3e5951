// What it costs to go on with a long request at another worker, by the rate of the link between the two: computing its keys and
// values anew, copying them, or both from both ends until they meet, the last pages within the pass that needs them or whole;
// and how long an idle worker takes from an order to its first tick's result.
//
//     kv_rebuild_bench MODEL [TOKENS]
//
// A request of so many prompt tokens runs at worker 0 and moves to worker 1, one thread each, after its first tokens; the cost
// is the time to its end less that of a run without the move, the best of 3 of either. Samples are compared bit for bit: a
// difference ends the program with 1.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bench/engine_run.h"
#include "loader/model_config.h"

namespace otr {
namespace {

constexpr int32_t kChunk = 512, kNewTokens = 8, kRepeats = 3;

class Bench {
 public:
  Bench(std::string model, int32_t num_tokens) : model_(std::move(model)), num_tokens_(num_tokens) {}

  std::unique_ptr<Engine> engine(const WorkerProofs& proofs) const {
    EngineOptions o;
    o.device.target.path = model_;
    o.device.target.kv_bytes = uint64_t{512} << 20;
    o.device.num_threads = 2;
    o.num_workers = 2;
    o.max_batch = 8;
    o.prefill_chunk = kChunk;
    o.policy = "off";
    o.proofs = proofs;
    return value_of(Engine::create(o));
  }

  static EngineRun roll(Engine* e, int32_t prompt_tokens, int32_t new_tokens) {
    constexpr uint32_t kVocab = 256;  // every model has so many
    std::vector<int32_t> prompt(static_cast<size_t>(prompt_tokens));
    std::mt19937 random(static_cast<uint32_t>(prompt_tokens));
    for (int32_t& t : prompt) t = static_cast<int32_t>(random() % kVocab);
    return run_request(e, prompt, new_tokens);
  }

  EngineRun run(int64_t at_tick, const RebuildOptions& rebuild) {  // < 0: it does not move
    return roll(engine({.migrate_at_tick = at_tick, .rebuild = rebuild}).get(), num_tokens_, kNewTokens);
  }

  // The quickest of some runs with the move less the quickest of as many without it, in turns: the machine may be busy with
  // something else.
  double cost_ms(const RebuildOptions& rebuild) {
    double moves_ms = std::numeric_limits<double>::max(), stays_ms = moves_ms;
    for (int32_t i = 0; i < kRepeats; ++i) {
      const EngineRun stays = run(-1, {}), moves = run((num_tokens_ + kChunk - 1) / kChunk + 2, rebuild);
      same_ = same_ && moves.sample->tokens == stays.sample->tokens && moves.sample->raw_logprobs == stays.sample->raw_logprobs;
      moves_ms = std::min(moves_ms, moves.ms);
      stays_ms = std::min(stays_ms, stays.ms);
    }
    return moves_ms - stays_ms;
  }

  int main() {
    const ModelConfig config = value_of(load_model_config(model_));
    const KvLayout layout{.num_layers = config.num_layers, .num_kv_heads = config.num_kv_heads, .head_dim = config.head_dim};
    const double page_bytes = static_cast<double>(layout.page_bytes());
    const double recompute = cost_ms({.mode = RebuildMode::kRecompute});
    const double computed = num_tokens_ / recompute * 1e3;  // tokens per second
    std::printf("%s, a request of %d tokens: computed anew in %.1f ms (%.0f tokens a second)\n\n", model_.c_str(), num_tokens_,
                recompute, computed);
    std::printf(
        "| link, MB/s | of the compute rate | recompute, ms | transfer, ms | both ends, whole pages, ms | both ends, ms | both "
        "against the better one |\n|---|---|---|---|---|---|---|\n");
    for (const double share : {0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0}) {
      const double rate = share * computed * page_bytes / kPageTokens;
      const double transfer = cost_ms({.mode = RebuildMode::kTransfer, .link_bytes_per_second = rate});
      const double whole = cost_ms({.link_bytes_per_second = rate, .whole_pages = true}),
                   both = cost_ms({.link_bytes_per_second = rate});
      std::printf("| %.2f | %.2f | %.1f | %.1f | %.1f | %.1f | %.2f |\n", rate / 1e6, share, recompute, transfer, whole, both,
                  both / std::min(transfer, recompute));
    }
    std::printf("| memory | | %.1f | %.1f | | %.1f | |\n", recompute, cost_ms({.mode = RebuildMode::kTransfer}), cost_ms({}));
    std::printf("\nsamples bit-equal: %s\n", same_ ? "yes" : "NO");
    first_tick();
    return same_ ? 0 : 1;
  }

 private:
  // Orders to a worker that is asleep and has all it needs: the prompt of one token, and its result.
  void first_tick() {
    const std::unique_ptr<Engine> e = engine({});
    std::vector<double> ms;
    for (int32_t i = 0; i < 101; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      ms.push_back(roll(e.get(), 1, 1).ms);
    }
    std::sort(ms.begin(), ms.end());
    std::printf("an order to an idle worker, its first tick and the result of that: median %.3f ms, slowest of %zu %.3f ms\n",
                ms[ms.size() / 2], ms.size(), ms.back());
  }

  const std::string model_;
  const int32_t num_tokens_;
  bool same_ = true;
};

}  // namespace
}  // namespace otr

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "Usage: kv_rebuild_bench MODEL [TOKENS]\n");
    return 2;
  }
  return otr::run_bench("kv_rebuild_bench", [&] { return otr::Bench(argv[1], argc == 3 ? std::atoi(argv[2]) : 4000).main(); });
}
