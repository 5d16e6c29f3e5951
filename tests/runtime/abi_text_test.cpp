// The texts of the C ABI: last errors, whose they are and how long they live; names; statistics.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/abi_fixture.h"

namespace otr {
namespace {

class AbiText : public AbiFixture {};

TEST_F(AbiText, LastErrorBelongsToEngineAndThread) {
  std::thread([this] {  // a thread of its own has no past
    EXPECT_STREQ(otr_last_error(engine()), "");
    EXPECT_STREQ(otr_last_error(nullptr), "");
    otr_engine* other = nullptr;
    ASSERT_EQ(otr_engine_create(&options_, &other), OTR_OK);
    EXPECT_STREQ(otr_last_error(nullptr), "");

    EXPECT_EQ(otr_cancel(engine(), 1111), OTR_INVALID_ARGUMENT);
    EXPECT_EQ(otr_cancel(other, 2222), OTR_INVALID_ARGUMENT);
    otr_engine* none = nullptr;
    EXPECT_EQ(otr_engine_create(nullptr, &none), OTR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(otr_last_error(engine())).find("1111"), std::string::npos);
    EXPECT_NE(std::string(otr_last_error(other)).find("2222"), std::string::npos);
    EXPECT_NE(std::string(otr_last_error(nullptr)).find("options"), std::string::npos);

    EXPECT_EQ(otr_cancel(engine(), 3333), OTR_INVALID_ARGUMENT);  // the newest counts …
    EXPECT_NE(std::string(otr_last_error(engine())).find("3333"), std::string::npos);
    size_t size = 0;
    char stats[4096];
    EXPECT_EQ(otr_stats(engine(), stats, sizeof stats, &size), OTR_OK);  // … and success does not clear it
    EXPECT_NE(std::string(otr_last_error(engine())).find("3333"), std::string::npos);

    const std::string mine = otr_last_error(engine());
    std::thread([this] {
      EXPECT_STREQ(otr_last_error(engine()), "");
      EXPECT_EQ(otr_cancel(engine(), 4444), OTR_INVALID_ARGUMENT);
      EXPECT_NE(std::string(otr_last_error(engine())).find("4444"), std::string::npos);
    }).join();
    EXPECT_EQ(otr_last_error(engine()), mine);
    otr_engine_destroy(other);
  })
      .join();
}

TEST_F(AbiText, LastErrorsOfManyEnginesAreBounded) {
  std::thread([this] {
    EXPECT_EQ(otr_cancel(engine(), 1111), OTR_INVALID_ARGUMENT);
    for (uintptr_t i = 1; i <= 1000; ++i) EXPECT_EQ(otr_cancel(reinterpret_cast<otr_engine*>(i << 40), 1), OTR_INVALID_HANDLE);
    EXPECT_STREQ(otr_last_error(engine()), "");
    EXPECT_NE(std::string(otr_last_error(reinterpret_cast<otr_engine*>(uintptr_t{1000} << 40))), "");
  }).join();
}

TEST(AbiNames, StatusesReasonsAndVersion) {
  EXPECT_STREQ(otr_status_text(OTR_OK), "ok");
  std::vector<std::string> texts;
  for (int status = OTR_OK; status <= OTR_LOST; ++status) {
    texts.emplace_back(otr_status_text(static_cast<otr_status>(status)));
    EXPECT_NE(texts.back(), "");
    EXPECT_EQ(std::count(texts.begin(), texts.end(), texts.back()), 1) << status;
  }
  EXPECT_STREQ(otr_status_text(static_cast<otr_status>(15)), "unknown status");
  EXPECT_STREQ(otr_finish_reason_text(OTR_FINISH_STOP), "stop");
  EXPECT_STREQ(otr_finish_reason_text(OTR_FINISH_LENGTH), "length");
  EXPECT_STREQ(otr_finish_reason_text(OTR_FINISH_ABORT), "abort");
  EXPECT_STREQ(otr_finish_reason_text(OTR_FINISH_ERROR), "error");
  EXPECT_STREQ(otr_finish_reason_text(OTR_FINISH_SCORE), "score");
  EXPECT_STREQ(otr_finish_reason_text(static_cast<otr_finish_reason>(7)), "unknown");
  EXPECT_EQ(std::string(otr_version()), std::to_string(OTR_VERSION_MAJOR) + "." + std::to_string(OTR_VERSION_MINOR) + "." +
                                            std::to_string(OTR_VERSION_PATCH));
}

TEST_F(AbiText, StatsFitTheBufferOrSayWhatTheyNeed) {
  size_t size = 0;
  EXPECT_EQ(otr_stats(engine(), nullptr, 0, nullptr), OTR_INVALID_ARGUMENT);
  EXPECT_EQ(otr_stats(engine(), nullptr, 10, &size), OTR_INVALID_ARGUMENT);
  EXPECT_EQ(otr_stats(engine(), nullptr, 0, &size), OTR_INVALID_ARGUMENT);
  ASSERT_GT(size, 100u);
  std::vector<char> buffer(size + 1, 'x');
  EXPECT_EQ(otr_stats(engine(), buffer.data(), size - 1, &size), OTR_INVALID_ARGUMENT);
  EXPECT_EQ(buffer[0], 'x');
  EXPECT_EQ(otr_stats(engine(), buffer.data(), size, &size), OTR_OK);
  EXPECT_EQ(std::strlen(buffer.data()) + 1, size);
  EXPECT_EQ(buffer.back(), 'x');
  const nlohmann::json stats = nlohmann::json::parse(buffer.data());
  for (const char* key : {"isa", "version", "ticks", "generated_tokens", "prefill_tokens", "finished_samples", "preemptions",
                          "prefix_hit_tokens", "kv_pages_total", "kv_pages_in_use", "kv_pages_peak", "kv_page_bytes",
                          "busy_seconds", "kernel_seconds", "num_threads"}) {
    EXPECT_TRUE(stats.contains(key)) << key;
  }
  EXPECT_EQ(stats["version"], otr_version());
}

// What a trainer needs to know of the model before it submits.
TEST(AbiStats, SayWhatRequestsAreCheckedAgainst) {
  const TinyModel model({.max_position_embeddings = 200, .eos_ids = {3, 5}}),
      other({.max_position_embeddings = 200, .eos_ids = {3, 5}, .seed = 2});
  const TestEngine engine(model), another(other);
  const nlohmann::json stats = engine.stats();
  EXPECT_EQ(stats["vocab_size"], 97);
  EXPECT_EQ(stats["context_limit"], 200);
  EXPECT_EQ(stats["eos_token_ids"], nlohmann::json({3, 5}));
  Request longest(random_tokens(1, 199, 97));
  uint64_t group = 0;
  EXPECT_EQ(engine.try_submit(longest, 0, &group), OTR_OK);
  longest.prompt.push_back(1);
  EXPECT_EQ(engine.try_submit(longest, 1, &group), OTR_INVALID_ARGUMENT);
  engine.collect();

  EXPECT_EQ(stats["weights_digest"], nullptr);
  const auto digest = [](const TestEngine& e) {
    std::vector<char> pages(1024);
    size_t size = 0, covered = 0;
    EXPECT_EQ(otr_kv_export(e.get(), nullptr, 0, pages.data(), pages.size(), &size, &covered), OTR_OK)
        << otr_last_error(e.get());
    return e.stats()["weights_digest"].get<std::string>();
  };
  EXPECT_EQ(digest(engine).size(), 16u);
  EXPECT_EQ(digest(engine), digest(TestEngine(model)));
  EXPECT_NE(digest(engine), digest(another));
  ASSERT_EQ(otr_weights_begin(engine.get(), 1), OTR_OK);
  EXPECT_EQ(engine.stats()["weights_digest"], nullptr);
}

}  // namespace
}  // namespace otr
