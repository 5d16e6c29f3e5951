// Memory that an engine gives back between rollouts: it goes, nothing runs without it, and what comes back draws the same bits.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "tests/runtime/mixed_requests.h"
#include "tests/runtime/sanitized.h"
#include "tests/runtime/test_engine.h"
#include "tests/runtime/trainer_tensors.h"

namespace otr {
namespace {

// What this process has of the machine's memory. smaps_rollup counts it; statm, where there is no other, is since Linux 6.2
// behind by some pages a CPU.
int64_t resident_bytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string word; rollup >> word;) {
    int64_t kib = 0;
    if (word == "Rss:" && rollup >> kib) return kib * 1024;
  }
  long long size = 0, resident = 0;
  std::FILE* f = std::fopen("/proc/self/statm", "re");
  EXPECT_EQ(std::fscanf(f, "%lld %lld", &size, &resident), 2);
  std::fclose(f);
  return resident * sysconf(_SC_PAGESIZE);
}

class EngineSleep : public testing::Test {
 protected:
  // Puts the model's tensors but those whose names hold `but`.
  static void put(const TinyModel& model, const TestEngine& engine, const std::string& but = "nothing") {
    for (const TrainerTensor& tensor : trainer_tensors(model)) {
      if (tensor.name.find(but) != std::string::npos) continue;
      const std::vector<std::byte> data = tensor.as(OTR_DTYPE_BF16);
      const otr_tensor t = tensor_of(tensor, OTR_DTYPE_BF16, data.data(), data.size());
      EXPECT_EQ(otr_weights_put(engine.get(), &t), OTR_OK) << tensor.name << ": " << otr_last_error(engine.get());
    }
  }
  static bool says(const TestEngine& engine, const char* what) {
    return std::string(otr_last_error(engine.get())).find(what) != std::string::npos;
  }

  // Big enough that weights and pages stand out from what else a process takes and returns: 20 MB; 4 MB under sanitizers, whose
  // kernels are slow.
  static constexpr int32_t kVocab = kSanitized ? 1000 : 4000;
  const TinyModel model_{{.vocab_size = kVocab,
                          .hidden_size = kSanitized ? 256 : 512,
                          .intermediate_size = kSanitized ? 1024 : 2048,
                          .num_layers = 2}};
};

TEST_F(EngineSleep, MemoryGoesAndTheSameBitsComeBack) {
  for (const int32_t workers : {1, 2}) {
    const TestEngine engine(model_, {.policy = "fixed:self:3", .num_workers = workers});
    const std::vector<Request> requests = mixed_requests(model_);
    const Outputs expected = engine.run(requests);
    const nlohmann::json stats = engine.stats();  // once, and before: a sanitizer keeps what is freed for a while
    const int64_t weights = stats["weight_bytes"],
                  pages = stats["kv_pages_peak"].get<int64_t>() * stats["kv_page_bytes"].get<int64_t>();
    const int64_t awake = resident_bytes();
    ASSERT_EQ(otr_sleep(engine.get(), OTR_MEMORY_WEIGHTS), OTR_OK) << otr_last_error(engine.get());
    const int64_t without_weights = resident_bytes();
    EXPECT_LT(without_weights, awake - weights * 9 / 10);
    ASSERT_EQ(otr_sleep(engine.get(), OTR_MEMORY_ALL), OTR_OK) << otr_last_error(engine.get());
    EXPECT_LT(resident_bytes(), without_weights - pages * 9 / 10);
    ASSERT_EQ(otr_wake(engine.get(), OTR_MEMORY_WEIGHTS), OTR_OK);
    ASSERT_EQ(otr_weights_begin(engine.get(), 5), OTR_OK) << otr_last_error(engine.get());
    put(model_, engine);
    ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK) << otr_last_error(engine.get());
    ASSERT_EQ(otr_wake(engine.get(), OTR_MEMORY_KV), OTR_OK);
    EXPECT_EQ(difference(expected, engine.run(requests)), "");
    EXPECT_EQ(engine.stats()["weight_version"], 5);
  }
}

// Pages alone: the weights stay, and no cached prompt is taken for one that is there.
TEST_F(EngineSleep, WeightsStayWherePagesGo) {
  const TestEngine engine(model_, {.policy = "off"});
  std::vector<Request> requests = mixed_requests(model_);
  requests.emplace_back(random_tokens(1, 200, kVocab));
  const Outputs expected = engine.run(requests);
  const int64_t hits = engine.stats()["prefix_hit_tokens"];
  ASSERT_EQ(otr_sleep(engine.get(), OTR_MEMORY_KV), OTR_OK);
  ASSERT_EQ(otr_wake(engine.get(), OTR_MEMORY_ALL), OTR_OK);
  EXPECT_EQ(difference(expected, engine.run(requests)), "");
  EXPECT_EQ(engine.stats()["prefix_hit_tokens"], hits);
  EXPECT_EQ(difference(expected, engine.run(requests)), "");
  EXPECT_GT(engine.stats()["prefix_hit_tokens"], hits);
}

TEST_F(EngineSleep, NothingRunsWithoutItsMemory) {
  const TestEngine engine(model_, {});
  const Request request({1, 2, 3});
  uint64_t group;
  EXPECT_EQ(otr_sleep(engine.get(), static_cast<otr_memory>(0)), OTR_INVALID_ARGUMENT);
  EXPECT_EQ(otr_wake(engine.get(), static_cast<otr_memory>(0)), OTR_INVALID_ARGUMENT);
  EXPECT_EQ(otr_wake(engine.get(), OTR_MEMORY_ALL), OTR_OK);  // it is awake

  engine.submit(request, 0);
  EXPECT_EQ(otr_sleep(engine.get(), OTR_MEMORY_ALL), OTR_BUSY);
  EXPECT_TRUE(says(engine, "unfinished"));
  engine.collect();
  ASSERT_EQ(otr_weights_begin(engine.get(), 1), OTR_OK);
  EXPECT_EQ(otr_sleep(engine.get(), OTR_MEMORY_ALL), OTR_BUSY);
  ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK);

  ASSERT_EQ(otr_sleep(engine.get(), OTR_MEMORY_ALL), OTR_OK);
  ASSERT_EQ(otr_sleep(engine.get(), OTR_MEMORY_KV), OTR_OK);
  EXPECT_EQ(engine.try_submit(request, 0, &group), OTR_BUSY);
  EXPECT_EQ(otr_weights_begin(engine.get(), 2), OTR_BUSY);
  EXPECT_TRUE(says(engine, "asleep"));
  size_t size = 0, covered = 0;
  EXPECT_EQ(otr_kv_export(engine.get(), request.prompt.data(), 3, nullptr, 0, &size, &covered), OTR_BUSY);
  EXPECT_EQ(otr_pause(engine.get()), OTR_OK);
  EXPECT_EQ(otr_resume(engine.get()), OTR_OK);
  ASSERT_EQ(otr_wake(engine.get(), OTR_MEMORY_ALL), OTR_OK);
  EXPECT_EQ(engine.try_submit(request, 0, &group), OTR_BUSY);
  EXPECT_TRUE(says(engine, "put and commit"));

  ASSERT_EQ(otr_weights_begin(engine.get(), 2), OTR_OK);
  put(model_, engine, "layers.1.mlp.down");
  EXPECT_EQ(otr_weights_commit(engine.get()), OTR_INVALID_ARGUMENT);
  EXPECT_TRUE(says(engine, "1 tensors are missing, 'model.layers.1.mlp.down_proj.weight'")) << otr_last_error(engine.get());
  put(model_, engine);
  ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK) << otr_last_error(engine.get());
  EXPECT_EQ(engine.run({request}).size(), 1u);
}

TEST_F(EngineSleep, ASleepingEngineCanBeDestroyed) {
  const TestEngine engine(model_, {.policy = "fixed:self:2", .num_workers = 2});
  engine.run({Request({1, 2, 3})});
  EXPECT_EQ(otr_sleep(engine.get(), OTR_MEMORY_ALL), OTR_OK);
}

}  // namespace
}  // namespace otr
