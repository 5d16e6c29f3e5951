// What the host does on cuda-sm90a while the device works: the order of launches, look-ups and waits, seen by kernels that note
// when they are launched and a drafter that notes when it is asked.
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_kernels.h"
#include "runtime/engine.h"
#include "tests/runtime/engine_runs.h"

namespace otr {
namespace {

struct Watch {
  const Accelerator* device = nullptr;  // of the newest launch of candidates; null: none since the last look-up
  uint64_t waits = 0;                   // that the host had made then
  int64_t during = 0, after = 0;        // look-ups behind such a launch: before the host's wait for it, and after
  const Accelerator* pass = nullptr;    // of the newest pass, until its draws are launched
  uint64_t waits_at_pass = 0;
  int64_t ahead = 0,
          other = 0;   // look-ups for the next tick: between a pass's launch and its draws', without a wait, and others
  bool fails = false;  // every third look-up
  int64_t look_ups = 0, failed = 0;
} watch;

void watched_candidates(const CandidateParams& p, const LaunchContext& on) {
  watch.device = on.accelerator;
  watch.waits = on.accelerator->num_waits();
  cuda_kernels().candidates(p, on);
}

// A pass's last norm is launched behind its graph.
void watched_rmsnorm(const RmsNormParams& p, const LaunchContext& on) {
  watch.pass = on.accelerator;
  watch.waits_at_pass = on.accelerator->num_waits();
  cuda_kernels().rmsnorm(p, on);
}

void watched_sample(const SampleParams& p, const LaunchContext& on) {
  watch.pass = nullptr;
  cuda_kernels().sample(p, on);
}

// In the place of `ngram` and `history`: it notes when it is asked.
class LookUp final : public Drafter {
 public:
  void join(const DraftSequence&) override {}
  DraftWork propose(std::span<const DraftRow>, const DraftLimits&) override {
    if (watch.device != nullptr) ++(watch.device->num_waits() == watch.waits ? watch.during : watch.after);
    watch.device = nullptr;
    if (++watch.look_ups % 3 == 0 && watch.fails) {
      ++watch.failed;
      throw std::bad_alloc();
    }
    return {};
  }
  void look_ahead(std::span<const DraftRow>) override {
    ++(watch.pass != nullptr && watch.pass->num_waits() == watch.waits_at_pass ? watch.ahead : watch.other);
  }
  void observe(const DraftVerdict&) override {}
  void leave(int32_t) override {}
};

class OverlapSm90 : public testing::Test {
 protected:
  void SetUp() override {
    if (const Result<std::shared_ptr<CudaDevice>> device = CudaDevice::open(0); !device.ok())
      GTEST_SKIP() << device.status().message();
    for (Request& r : requests_)
      r.stream = static_cast<uint64_t>(&r - requests_.data()), r.sampling.max_new_tokens = 9, r.sampling.ignore_eos = 1;
    watched_.candidates = watched_candidates;
    watched_.rmsnorm = watched_rmsnorm;
    watched_.sample = watched_sample;
  }
  Outputs run(const char* policy, bool on_device = true, bool fails = false) {
    watch = {};
    watch.fails = fails;
    EngineOptions o;
    o.device = {.num_threads = 1, .target = {.path = model_.path(), .kv_bytes = model_.kv_bytes(24), .bucket = {}}};
    if (on_device) o.device.isa = kCudaPath, o.device.kernels = &watched_, o.gpus = {0};
    o.policy = policy;
    o.custom_drafters = {{"lookup", [](int) { return std::make_unique<LookUp>(); }}};
    o.max_batch = 8;
    o.prefill_chunk = 64;
    const Result<std::unique_ptr<Engine>> engine = Engine::create(o);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    if (!engine.ok()) return {};
    for (size_t i = 0; i < requests_.size(); ++i) submit(engine.value().get(), requests_[i], i);
    return collect(engine.value().get());
  }

  const TinyModel model_{
      {.hidden_size = 64, .intermediate_size = 72, .num_heads = 4, .num_kv_heads = 2, .max_position_embeddings = 512}};
  std::vector<Request> requests_ = std::vector<Request>(2, Request({5, 6, 7}));
  KernelTable watched_ = cuda_kernels();
};

// A chain is launched, the host looks up, then it waits for the chain, in whichever order the policy names them.
TEST_F(OverlapSm90, TheHostLooksUpWhileAChainGrows) {
  const Outputs expected = run("off");
  for (const char* policy : {"fixed:self+lookup:3", "fixed:lookup+self:3"}) {
    EXPECT_EQ(difference(expected, run(policy)), "") << policy;
    EXPECT_GT(watch.during, 1) << policy;
    EXPECT_EQ(watch.after, 0) << policy;
  }
}

// A look-up that fails leaves a chain that was launched and is not waited for: the tick goes without drafts, and the next one's
// chain begins anew.
TEST_F(OverlapSm90, ALookUpMayFailWhileAChainGrows) {
  for (Request& r : requests_) r.sampling.max_new_tokens = 40;
  const Outputs expected = run("off");
  EXPECT_EQ(difference(expected, run("fixed:self+lookup:3", /*on_device=*/true, /*fails=*/true)), "");
  EXPECT_GT(watch.failed, 1);
  EXPECT_GT(watch.during, 2 * watch.failed);  // of three look-ups one fails, and each has a chain before it
  EXPECT_EQ(watch.after, 0);
}

// A tree's levels want the host, which looks up behind the last: what the test above would see if nothing overlapped.
TEST_F(OverlapSm90, ATreeIsWaitedForLevelByLevel) {
  const Outputs expected = run("off");
  EXPECT_EQ(difference(expected, run("fixed:self+lookup:3:2:8")), "");
  EXPECT_EQ(watch.during, 0);
  EXPECT_GT(watch.after, 0);
}

// The target's pass is launched, the host looks up for the next tick, then it launches the draws and waits.
TEST_F(OverlapSm90, TheHostLooksUpForTheNextTickWhileAPassRuns) {
  for (const char* policy : {"fixed:lookup:3", "fixed:self+lookup:3"}) {
    run(policy);
    EXPECT_GT(watch.ahead, 1) << policy;
    EXPECT_EQ(watch.other, 0) << policy;
  }
}

// A pass of a CPU is over when the launch is: there is no time to look ahead in.
TEST_F(OverlapSm90, ACpuLooksAtNothingAhead) {
  run("fixed:lookup:3", /*on_device=*/false);
  EXPECT_EQ(watch.ahead + watch.other, 0);
}

}  // namespace
}  // namespace otr
