// The C ABI under misuse: every wrong argument gives its status and a text, has no effect, and leaves a usable engine.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "tests/runtime/rollouts.h"

namespace otr {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
constexpr int32_t kIntMin = std::numeric_limits<int32_t>::min(), kIntMax = std::numeric_limits<int32_t>::max();

class Abi : public testing::Test {
 protected:
  Abi() {
    otr_group_request_init(&group_, sizeof group_);
    otr_score_request_init(&score_, sizeof score_);
    otr_sampling_params_init(&sampling_, sizeof sampling_);
    otr_engine_options_init(&options_, sizeof options_);
    group_.prompt_token_ids = score_.token_ids = tokens_.data();
    group_.num_prompt_tokens = score_.num_tokens = tokens_.size();
    sampling_.max_new_tokens = 5;
    group_.sampling = &sampling_;
    score_.tag = 1;
    options_.model_path = model_.path().c_str();
    options_.num_threads = 1;
    options_.max_batch = 8;
    options_.prefill_chunk = 32;
    options_.kv_bytes = model_.kv_bytes(32);
  }

  otr_engine* engine() const { return engine_.get(); }
  uint64_t submitted() const { return engine_.stats()["outstanding_samples"]; }

  // The call was refused with a text and nothing was queued.
  void expect_refused(otr_status status, otr_status wanted, const std::string& what) const {
    EXPECT_EQ(status, wanted) << what << ": " << otr_last_error(engine());
    if (status != OTR_OK) {
      EXPECT_NE(std::string(otr_last_error(engine())), "") << what;
    }
    EXPECT_EQ(submitted(), 0u) << what;
  }
  void expect_usable() {
    const Outputs outputs = engine_.run({Request(tokens_)});
    EXPECT_EQ(outputs.at({0, 0}).error, "");
    EXPECT_FALSE(outputs.at({0, 0}).tokens.empty());
  }

  const TinyModel model_;
  const TestEngine engine_{model_};
  std::vector<int32_t> tokens_ = {1, 2, 3};
  otr_group_request group_;
  otr_score_request score_;
  otr_sampling_params sampling_;
  otr_engine_options options_;
  uint64_t id_ = 77;
};

// ---- Submit and score -------------------------------------------------------------------------------------------------------------

TEST_F(Abi, SubmitRefusesWrongRequests) {
  const struct {
    const char* what;
    std::function<void(otr_group_request*)> spoil;
    otr_status status = OTR_INVALID_ARGUMENT;
  } cases[] = {
      {"no prompt array", [](auto* r) { r->prompt_token_ids = nullptr; }},
      {"empty prompt", [](auto* r) { r->num_prompt_tokens = 0; }},
      {"empty prompt, no array", [](auto* r) { r->prompt_token_ids = nullptr, r->num_prompt_tokens = 0; }},
      {"n = 0", [](auto* r) { r->n = 0; }},
      {"n < 0", [](auto* r) { r->n = -1; }},
      {"least n", [](auto* r) { r->n = kIntMin; }},
      {"greatest n", [](auto* r) { r->n = kIntMax; }},
      {"sample indices beyond 32 bits", [](auto* r) { r->first_sample = UINT32_MAX, r->n = 2; }},
      // Lengths that no array has are refused before anybody follows them.
      {"prompt of 2^64 - 1", [](auto* r) { r->num_prompt_tokens = SIZE_MAX; }},
      {"prompt of 2^63", [](auto* r) { r->num_prompt_tokens = size_t{1} << 63; }},
      {"prompt of 2^32 + 3", [](auto* r) { r->num_prompt_tokens = (size_t{1} << 32) + 3; }},
      {"struct_size 0", [](auto* r) { r->struct_size = 0; }},
      {"struct_size 7", [](auto* r) { r->struct_size = 7; }},
      {"struct_size that cuts a pointer", [](auto* r) { r->struct_size = 12; }},
      {"struct_size 5000", [](auto* r) { r->struct_size = 5000; }},
      {"struct_size 2^64 - 8", [](auto* r) { r->struct_size = SIZE_MAX - 7; }},
  };
  for (const auto& c : cases) {
    otr_group_request r = group_;
    c.spoil(&r);
    expect_refused(otr_submit(engine(), &r, &id_), c.status, c.what);
  }
  expect_refused(otr_submit(engine(), nullptr, &id_), OTR_INVALID_ARGUMENT, "no request");
  expect_refused(otr_submit(engine(), &group_, nullptr), OTR_INVALID_ARGUMENT, "no id");
  EXPECT_EQ(id_, 77u);
  expect_usable();
}

TEST_F(Abi, TokensMustBeInTheVocabulary) {
  for (const int32_t token : {-1, 97, kIntMin, kIntMax}) {
    tokens_[2] = token;
    expect_refused(otr_submit(engine(), &group_, &id_), OTR_INVALID_ARGUMENT, "prompt " + std::to_string(token));
    EXPECT_NE(std::string(otr_last_error(engine())).find(std::to_string(token)), std::string::npos);
    expect_refused(otr_score(engine(), &score_, &id_), OTR_INVALID_ARGUMENT, "score " + std::to_string(token));
    tokens_[2] = 3;
    sampling_.stop_token_ids = &token;
    sampling_.num_stop_token_ids = 1;
    expect_refused(otr_submit(engine(), &group_, &id_), OTR_INVALID_ARGUMENT, "stop " + std::to_string(token));
    sampling_.num_stop_token_ids = 0;
  }
  tokens_[2] = 96;
  expect_usable();
}

TEST_F(Abi, APromptAtTheContextLimitIsRefused) {
  for (const size_t size : {size_t{1024}, size_t{1025}, size_t{5000}}) {
    const std::vector<int32_t> prompt(size, 1);
    group_.prompt_token_ids = prompt.data();
    group_.num_prompt_tokens = size;
    expect_refused(otr_submit(engine(), &group_, &id_), OTR_INVALID_ARGUMENT, std::to_string(size));
    EXPECT_NE(std::string(otr_last_error(engine())).find("1024"), std::string::npos);
  }
  const std::vector<int32_t> prompt(1023, 1);
  EXPECT_EQ(engine_.run({Request(prompt)}).at({0, 0}).tokens.size(), 1u);
}

TEST_F(Abi, EverySamplingParameterHasItsRange) {
  struct Case {
    const char* what;
    std::function<void(otr_sampling_params*)> set;
    bool good;
  };
  std::vector<Case> cases;
  const auto floats = [&cases](const char* name, float otr_sampling_params::*field, const std::vector<float>& good,
                               const std::vector<float>& bad) {
    for (const float x : good) cases.push_back({name, [field, x](auto* p) { p->*field = x; }, true});
    for (const float x : bad) cases.push_back({name, [field, x](auto* p) { p->*field = x; }, false});
    for (const float x : {kNan, kInf, -kInf}) cases.push_back({name, [field, x](auto* p) { p->*field = x; }, false});
  };
  const auto ints = [&cases](const char* name, int32_t otr_sampling_params::*field, const std::vector<int32_t>& good,
                             const std::vector<int32_t>& bad) {
    for (const int32_t x : good) cases.push_back({name, [field, x](auto* p) { p->*field = x; }, true});
    for (const int32_t x : bad) cases.push_back({name, [field, x](auto* p) { p->*field = x; }, false});
  };
  floats("temperature", &otr_sampling_params::temperature, {0.0f, -0.0f, 0.01f, 1.0f, 100.0f}, {0.009f, 1e-30f, -1.0f, 100.1f});
  floats("top_p", &otr_sampling_params::top_p, {1e-6f, 0.5f, 1.0f}, {0.0f, -0.1f, 1.001f});
  floats("min_p", &otr_sampling_params::min_p, {0.0f, 0.5f, 1.0f}, {-0.001f, 1.001f});
  floats("repetition_penalty", &otr_sampling_params::repetition_penalty, {0.5f, 1.0f, 2.0f}, {0.0f, -1.0f, 1e30f});
  floats("presence_penalty", &otr_sampling_params::presence_penalty, {-2.0f, 0.0f, 2.0f}, {-1e30f, 1e30f});
  floats("frequency_penalty", &otr_sampling_params::frequency_penalty, {-2.0f, 0.0f, 2.0f}, {-1e30f, 1e30f});
  ints("top_k", &otr_sampling_params::top_k, {0, 1, 97, kIntMax}, {-1, kIntMin});
  ints("max_new_tokens", &otr_sampling_params::max_new_tokens, {1, 5, kIntMax}, {0, -1, kIntMin});
  ints("ignore_eos", &otr_sampling_params::ignore_eos, {0, 1}, {2, -1, kIntMax});
  cases.push_back({"stop_token_ids", [](auto* p) { p->num_stop_token_ids = 1; }, false});
  cases.push_back({"stop_token_ids", [](auto* p) { p->num_stop_token_ids = SIZE_MAX; }, false});
  const int32_t stop = 5;
  cases.push_back({"stop_token_ids", [&stop](auto* p) { p->stop_token_ids = &stop, p->num_stop_token_ids = SIZE_MAX; }, false});
  cases.push_back({"stop_token_ids", [&stop](auto* p) { p->stop_token_ids = &stop, p->num_stop_token_ids = 1; }, true});
  for (const size_t size : {size_t{0}, size_t{4}, size_t{13}, size_t{1} << 40}) {
    cases.push_back({"struct_size", [size](auto* p) { p->struct_size = size; }, false});
  }
  for (const Case& c : cases) {
    otr_sampling_params params = sampling_;
    c.set(&params);
    group_.sampling = score_.sampling = &params;
    if (c.good) {
      EXPECT_EQ(otr_submit(engine(), &group_, &id_), OTR_OK) << c.what << ": " << otr_last_error(engine());
      EXPECT_EQ(otr_score(engine(), &score_, &id_), OTR_OK) << c.what << ": " << otr_last_error(engine());
      otr_cancel(engine(), id_ - 1);  // the longest would take a while
      engine_.collect();
    } else {
      expect_refused(otr_submit(engine(), &group_, &id_), OTR_INVALID_ARGUMENT, c.what);
      EXPECT_NE(std::string(otr_last_error(engine())).find(c.what), std::string::npos) << otr_last_error(engine());
      expect_refused(otr_score(engine(), &score_, &id_), OTR_INVALID_ARGUMENT, c.what);
    }
  }
  expect_usable();
}

TEST_F(Abi, ScoreRefusesWrongRequests) {
  const struct {
    const char* what;
    std::function<void(otr_score_request*)> spoil;
  } cases[] = {
      {"no tokens array", [](auto* r) { r->token_ids = nullptr; }},
      {"no tokens", [](auto* r) { r->num_tokens = 0; }},
      {"prompt without an array", [](auto* r) { r->num_prompt_tokens = 1; }},
      {"2^64 - 1 tokens", [](auto* r) { r->num_tokens = SIZE_MAX; }},
      {"2^63 tokens", [](auto* r) { r->num_tokens = size_t{1} << 63; }},
      {"a prompt of 2^64 - 1", [this](auto* r) { r->prompt_token_ids = tokens_.data(), r->num_prompt_tokens = SIZE_MAX; }},
      {"lengths that add up to 2^64", [this](auto* r) { r->prompt_token_ids = tokens_.data(), r->num_prompt_tokens = SIZE_MAX - 2; }},
      {"more than the context", [this](auto* r) { r->prompt_token_ids = tokens_.data(), r->num_prompt_tokens = 1022; }},
      {"struct_size 0", [](auto* r) { r->struct_size = 0; }},
      {"struct_size 20", [](auto* r) { r->struct_size = 20; }},
  };
  for (const auto& c : cases) {
    otr_score_request r = score_;
    c.spoil(&r);
    expect_refused(otr_score(engine(), &r, &id_), OTR_INVALID_ARGUMENT, c.what);
  }
  expect_refused(otr_score(engine(), nullptr, &id_), OTR_INVALID_ARGUMENT, "no request");
  expect_refused(otr_score(engine(), &score_, nullptr), OTR_INVALID_ARGUMENT, "no id");
  expect_usable();
}

// ---- Struct sizes -----------------------------------------------------------------------------------------------------------------

// A program built against an older header has a shorter struct: what lies behind its end is not read, and has the default.
TEST_F(Abi, AnOlderCallersShorterStructIsAccepted) {
  otr_group_request r = group_;
  r.struct_size = offsetof(otr_group_request, n);
  r.n = -5;
  r.sampling = reinterpret_cast<const otr_sampling_params*>(uintptr_t{0xdead});
  EXPECT_EQ(otr_submit(engine(), &r, &id_), OTR_OK) << otr_last_error(engine());
  otr_cancel(engine(), id_);
  EXPECT_EQ(engine_.collect().size(), 1u);

  sampling_.struct_size = offsetof(otr_sampling_params, max_new_tokens);
  sampling_.max_new_tokens = -1;
  EXPECT_EQ(otr_submit(engine(), &group_, &id_), OTR_OK) << otr_last_error(engine());
  otr_cancel(engine(), id_);
  engine_.collect();
}

struct NewerRequest {
  otr_group_request known;
  uint64_t added[4];
};

// A newer one's further fields must say nothing.
TEST_F(Abi, ANewerCallersLongerStructIsAcceptedWhileItSaysNothingNew) {
  NewerRequest r = {group_, {}};
  r.known.struct_size = sizeof r;
  EXPECT_EQ(otr_submit(engine(), &r.known, &id_), OTR_OK) << otr_last_error(engine());
  engine_.collect();
  for (uint64_t& field : r.added) {
    field = uint64_t{1} << 56;
    expect_refused(otr_submit(engine(), &r.known, &id_), OTR_UNSUPPORTED, "a new field");
    field = 0;
  }
  expect_usable();
}

TEST_F(Abi, InitFillsWhatTheCallerHas) {
  EXPECT_EQ(otr_sampling_params_init(nullptr, sizeof(otr_sampling_params)), OTR_INVALID_ARGUMENT);
  for (const size_t size : {size_t{0}, size_t{7}, size_t{4097}, size_t{1} << 40}) {
    EXPECT_EQ(otr_sampling_params_init(&sampling_, size), OTR_INVALID_ARGUMENT) << size;
    EXPECT_EQ(otr_group_request_init(&group_, size), OTR_INVALID_ARGUMENT) << size;
    EXPECT_EQ(otr_score_request_init(&score_, size), OTR_INVALID_ARGUMENT) << size;
    EXPECT_EQ(otr_engine_options_init(&options_, size), OTR_INVALID_ARGUMENT) << size;
    EXPECT_NE(std::string(otr_last_error(nullptr)), "");
  }
  unsigned char bytes[256];
  std::memset(bytes, 0xab, sizeof bytes);
  auto* newer = reinterpret_cast<NewerRequest*>(bytes);
  ASSERT_EQ(otr_group_request_init(&newer->known, sizeof *newer), OTR_OK);
  EXPECT_EQ(newer->known.struct_size, sizeof *newer);
  EXPECT_EQ(newer->known.n, 1);
  for (const uint64_t field : newer->added) EXPECT_EQ(field, 0u);
  EXPECT_EQ(bytes[sizeof *newer], 0xab);
  std::memset(bytes, 0xab, sizeof bytes);
  ASSERT_EQ(otr_group_request_init(&newer->known, 16), OTR_OK);  // an older caller's
  EXPECT_EQ(newer->known.prompt_token_ids, nullptr);
  EXPECT_EQ(bytes[16], 0xab);
}

TEST_F(Abi, DefaultsAreThoseOfTheHeader) {
  otr_sampling_params_init(&sampling_, sizeof sampling_);
  EXPECT_EQ(sampling_.temperature, 1.0f);
  EXPECT_EQ(sampling_.top_k, 0);
  EXPECT_EQ(sampling_.top_p, 1.0f);
  EXPECT_EQ(sampling_.min_p, 0.0f);
  EXPECT_EQ(sampling_.repetition_penalty, 1.0f);
  EXPECT_EQ(sampling_.presence_penalty, 0.0f);
  EXPECT_EQ(sampling_.frequency_penalty, 0.0f);
  EXPECT_EQ(sampling_.seed, 0u);
  EXPECT_EQ(sampling_.max_new_tokens, 1024);
  EXPECT_EQ(sampling_.ignore_eos, 0);
  otr_engine_options_init(&options_, sizeof options_);
  EXPECT_STREQ(options_.device, "auto");
  EXPECT_STREQ(options_.isa, "auto");
  EXPECT_STREQ(options_.policy, "off");
  EXPECT_EQ(options_.max_batch, 256);
  EXPECT_EQ(options_.prefill_chunk, 512);
  EXPECT_EQ(options_.num_threads, 0);
  EXPECT_EQ(options_.kv_bytes, 0u);
  EXPECT_EQ(options_.model_path, nullptr);
}

// ---- Create -------------------------------------------------------------------------------------------------------------------------

TEST_F(Abi, CreateRefusesWrongOptions) {
  const struct {
    const char* what;
    std::function<void(otr_engine_options*)> spoil;
    otr_status status = OTR_INVALID_ARGUMENT;
  } cases[] = {
      {"no model", [](auto* o) { o->model_path = nullptr; }},
      {"empty model", [](auto* o) { o->model_path = ""; }},
      {"unknown device", [](auto* o) { o->device = "gpu"; }},
      {"no CUDA here", [](auto* o) { o->device = "cuda:0"; }, OTR_UNSUPPORTED},
      {"unknown path", [](auto* o) { o->isa = "cpu-sse"; }},
      {"unknown policy", [](auto* o) { o->policy = "fast"; }},
      {"max_batch 0", [](auto* o) { o->max_batch = 0; }},
      {"max_batch < 0", [](auto* o) { o->max_batch = -1; }},
      {"huge max_batch", [](auto* o) { o->max_batch = kIntMax; }},
      {"prefill_chunk 0", [](auto* o) { o->prefill_chunk = 0; }},
      {"huge prefill_chunk", [](auto* o) { o->prefill_chunk = kIntMax; }},
      {"num_threads < 0", [](auto* o) { o->num_threads = -1; }},
      {"huge num_threads", [](auto* o) { o->num_threads = kIntMax; }},
      {"less than a page", [](auto* o) { o->kv_bytes = 100; }},
      {"a terabyte of pages", [](auto* o) { o->kv_bytes = uint64_t{1} << 40; }, OTR_OUT_OF_MEMORY},
      {"2^64 - 1 bytes of pages", [](auto* o) { o->kv_bytes = UINT64_MAX; }, OTR_OUT_OF_MEMORY},
      {"struct_size 0", [](auto* o) { o->struct_size = 0; }},
      {"struct_size 12", [](auto* o) { o->struct_size = 12; }},
      {"struct_size 5000", [](auto* o) { o->struct_size = 5000; }},
  };
  for (const auto& c : cases) {
    otr_engine_options o = options_;
    c.spoil(&o);
    auto* made = reinterpret_cast<otr_engine*>(uintptr_t{1});
    EXPECT_EQ(otr_engine_create(&o, &made), c.status) << c.what << ": " << otr_last_error(nullptr);
    EXPECT_EQ(made, nullptr) << c.what;
    EXPECT_NE(std::string(otr_last_error(nullptr)), "") << c.what;
  }
  otr_engine* made = nullptr;
  EXPECT_EQ(otr_engine_create(nullptr, &made), OTR_INVALID_ARGUMENT);
  EXPECT_EQ(otr_engine_create(&options_, nullptr), OTR_INVALID_ARGUMENT);
  options_.model_path = "/nowhere/at all";
  EXPECT_NE(otr_engine_create(&options_, &made), OTR_OK);
  EXPECT_NE(std::string(otr_last_error(nullptr)).find("/nowhere/at all"), std::string::npos);
  expect_usable();
}

// A forced path that is missing is refused, and every one that is there makes an engine that says so.
TEST_F(Abi, CreateTakesThePathItIsTold) {
  for (const PathInfo& path : list_paths()) {
    options_.isa = path.table->path;
    otr_engine* made = nullptr;
    const otr_status status = otr_engine_create(&options_, &made);
    EXPECT_EQ(status, path.available ? OTR_OK : OTR_UNSUPPORTED) << path.table->path;
    if (!path.available) {
      EXPECT_NE(std::string(otr_last_error(nullptr)).find(path.reason), std::string::npos);
      continue;
    }
    char stats[4096];
    size_t size = 0;
    ASSERT_EQ(otr_stats(made, stats, sizeof stats, &size), OTR_OK);
    EXPECT_EQ(nlohmann::json::parse(stats)["isa"], path.table->path);
    EXPECT_EQ(otr_engine_destroy(made), OTR_OK);
  }
}

TEST_F(Abi, ZeroMeansTheDefault) {
  options_.num_threads = 0;
  options_.device = options_.isa = options_.policy = nullptr;
  otr_engine* made = nullptr;
  ASSERT_EQ(otr_engine_create(&options_, &made), OTR_OK) << otr_last_error(nullptr);
  char stats[4096];
  size_t size = 0;
  ASSERT_EQ(otr_stats(made, stats, sizeof stats, &size), OTR_OK);
  EXPECT_EQ(nlohmann::json::parse(stats)["num_threads"], ThreadPool::affinity_count());
  otr_engine_destroy(made);
}

// ---- Handles -------------------------------------------------------------------------------------------------------------------------

TEST_F(Abi, ADeadOrForeignHandleIsFoundOut) {
  otr_engine* dead = nullptr;
  ASSERT_EQ(otr_engine_create(&options_, &dead), OTR_OK);
  ASSERT_EQ(otr_engine_destroy(dead), OTR_OK);
  otr_engine* next = nullptr;
  ASSERT_EQ(otr_engine_create(&options_, &next), OTR_OK);  // takes its place, but not its name
  EXPECT_NE(next, dead);
  int local = 0;
  for (otr_engine* handle : {dead, reinterpret_cast<otr_engine*>(&local), reinterpret_cast<otr_engine*>(uintptr_t{0x1000}),
                             reinterpret_cast<otr_engine*>(UINTPTR_MAX), static_cast<otr_engine*>(nullptr)}) {
    otr_result* result = reinterpret_cast<otr_result*>(uintptr_t{1});
    size_t size = 0;
    EXPECT_EQ(otr_submit(handle, &group_, &id_), OTR_INVALID_HANDLE);
    EXPECT_NE(std::string(otr_last_error(handle)), "");
    EXPECT_EQ(otr_score(handle, &score_, &id_), OTR_INVALID_HANDLE);
    EXPECT_EQ(otr_cancel(handle, 1), OTR_INVALID_HANDLE);
    EXPECT_EQ(otr_wait(handle, 0, &result), OTR_INVALID_HANDLE);
    EXPECT_EQ(result, nullptr);
    EXPECT_EQ(otr_stats(handle, nullptr, 0, &size), OTR_INVALID_HANDLE);
    EXPECT_EQ(otr_engine_destroy(handle), handle == nullptr ? OTR_OK : OTR_INVALID_HANDLE);
  }
  EXPECT_EQ(otr_engine_destroy(next), OTR_OK);
  expect_usable();
}

TEST_F(Abi, ResultsAreHandlesOfTheirOwn) {
  engine_.submit(Request(tokens_), 5);
  otr_result* result = nullptr;
  ASSERT_EQ(otr_wait(engine(), -1, &result), OTR_OK);
  otr_result_view view;
  EXPECT_EQ(otr_result_get(result, nullptr, sizeof view), OTR_INVALID_ARGUMENT);
  for (const size_t size : {size_t{0}, size_t{7}, size_t{9}, size_t{1} << 40}) EXPECT_EQ(otr_result_get(result, &view, size), OTR_INVALID_ARGUMENT);
  EXPECT_EQ(otr_result_get(reinterpret_cast<otr_result*>(engine()), &view, sizeof view), OTR_INVALID_HANDLE);
  ASSERT_EQ(otr_result_get(result, &view, sizeof view), OTR_OK);
  EXPECT_EQ(view.tag, 5u);
  EXPECT_EQ(view.struct_size, sizeof view);
  std::memset(static_cast<void*>(&view), 0xab, sizeof view);
  ASSERT_EQ(otr_result_get(result, &view, offsetof(otr_result_view, sample)), OTR_OK);  // an older caller's
  EXPECT_EQ(view.tag, 5u);
  EXPECT_EQ(view.sample, 0xababababu);
  EXPECT_EQ(otr_result_destroy(result), OTR_OK);
  EXPECT_EQ(otr_result_destroy(result), OTR_INVALID_HANDLE);
  EXPECT_EQ(otr_result_get(result, &view, sizeof view), OTR_INVALID_HANDLE);
  EXPECT_EQ(otr_result_destroy(nullptr), OTR_OK);
  EXPECT_EQ(otr_result_get(nullptr, &view, sizeof view), OTR_INVALID_HANDLE);
}

TEST_F(Abi, ResultsOutliveTheirEngine) {
  otr_engine* made = nullptr;
  ASSERT_EQ(otr_engine_create(&options_, &made), OTR_OK);
  ASSERT_EQ(otr_submit(made, &group_, &id_), OTR_OK);
  otr_result* result = nullptr;
  ASSERT_EQ(otr_wait(made, -1, &result), OTR_OK);
  otr_result_view before, after;
  ASSERT_EQ(otr_result_get(result, &before, sizeof before), OTR_OK);
  ASSERT_EQ(otr_engine_destroy(made), OTR_OK);
  ASSERT_EQ(otr_result_get(result, &after, sizeof after), OTR_OK);
  EXPECT_EQ(before.token_ids, after.token_ids);
  EXPECT_EQ(before.group_id, id_);
  ASSERT_GT(after.num_tokens, 0u);
  for (size_t i = 0; i < after.num_tokens; ++i) {
    EXPECT_TRUE(after.token_ids[i] >= 0 && after.token_ids[i] < 97);
    EXPECT_LT(after.raw_logprobs[i], 0.0f);
  }
  EXPECT_STREQ(after.error, "");
  EXPECT_EQ(otr_result_destroy(result), OTR_OK);
}

// With groups that run, groups that wait for the batch, and groups that nobody has looked at yet: nothing may leak (asan).
TEST_F(Abi, DestroyAbandonsWhatIsOutstanding) {
  for (const int32_t groups : {1, 3, 20}) {
    otr_engine* made = nullptr;
    ASSERT_EQ(otr_engine_create(&options_, &made), OTR_OK);
    const std::vector<int32_t> prompt = random_tokens(1, 500, 97);
    group_.prompt_token_ids = prompt.data();
    group_.num_prompt_tokens = prompt.size();
    group_.n = 5;
    for (int32_t i = 0; i < groups; ++i) EXPECT_EQ(otr_submit(made, &group_, &id_), OTR_OK) << otr_last_error(made);
    EXPECT_EQ(otr_engine_destroy(made), OTR_OK);
  }
}

// ---- Texts ---------------------------------------------------------------------------------------------------------------------------

TEST_F(Abi, LastErrorBelongsToEngineAndThread) {
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
  }).join();
}

TEST_F(Abi, LastErrorsOfManyEnginesAreBounded) {
  std::thread([this] {
    EXPECT_EQ(otr_cancel(engine(), 1111), OTR_INVALID_ARGUMENT);
    for (uintptr_t i = 1; i <= 1000; ++i) EXPECT_EQ(otr_cancel(reinterpret_cast<otr_engine*>(i << 40), 1), OTR_INVALID_HANDLE);
    EXPECT_STREQ(otr_last_error(engine()), "");
    EXPECT_NE(std::string(otr_last_error(reinterpret_cast<otr_engine*>(uintptr_t{1000} << 40))), "");
  }).join();
}

TEST(AbiTexts, StatusesReasonsAndVersion) {
  EXPECT_STREQ(otr_status_text(OTR_OK), "ok");
  std::vector<std::string> texts;
  for (int status = OTR_OK; status <= OTR_IDLE; ++status) {
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

TEST_F(Abi, StatsFitTheBufferOrSayWhatTheyNeed) {
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
                          "prefix_hit_tokens", "kv_pages_total", "kv_pages_in_use", "kv_pages_peak", "kv_page_bytes", "busy_seconds",
                          "kernel_seconds", "num_threads"}) {
    EXPECT_TRUE(stats.contains(key)) << key;
  }
  EXPECT_EQ(stats["version"], otr_version());
}

// ---- Wait and cancel -----------------------------------------------------------------------------------------------------------------

TEST_F(Abi, WaitKeepsItsTimeLimits) {
  auto* result = reinterpret_cast<otr_result*>(uintptr_t{1});
  EXPECT_EQ(otr_wait(engine(), 0, &result), OTR_IDLE);
  EXPECT_EQ(result, nullptr);
  EXPECT_EQ(otr_wait(engine(), -1, &result), OTR_IDLE);
  EXPECT_EQ(otr_wait(engine(), std::numeric_limits<int64_t>::max(), &result), OTR_IDLE);
  EXPECT_EQ(otr_wait(engine(), std::numeric_limits<int64_t>::min(), &result), OTR_IDLE);
  EXPECT_EQ(otr_wait(engine(), 0, nullptr), OTR_INVALID_ARGUMENT);

  Request slow;
  slow.prompt = {1};
  slow.n = 1000;
  slow.sampling.max_new_tokens = 1000;
  slow.sampling.ignore_eos = 1;
  const uint64_t group = engine_.submit(slow, 0);
  EXPECT_EQ(otr_wait(engine(), 0, &result), OTR_TIMEOUT);
  EXPECT_EQ(result, nullptr);
  EXPECT_NE(std::string(otr_last_error(engine())), "");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(otr_wait(engine(), 20, &result), OTR_TIMEOUT);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(19));
  EXPECT_EQ(otr_cancel(engine(), group), OTR_OK);
  EXPECT_EQ(engine_.collect().size(), 1000u);
}

TEST_F(Abi, CancelBeforeWhileAndAfter) {
  EXPECT_EQ(otr_cancel(engine(), 0), OTR_INVALID_ARGUMENT);
  EXPECT_EQ(otr_cancel(engine(), 12345), OTR_INVALID_ARGUMENT);
  Request r;
  r.prompt = {1, 2};
  r.n = 1000;
  r.sampling.max_new_tokens = 1000;
  r.sampling.ignore_eos = 1;
  // Before the engine looks at it, or in its first ticks: long before the last samples join the batch.
  uint64_t group = engine_.submit(r, 0);
  EXPECT_EQ(otr_cancel(engine(), group), OTR_OK);
  Outputs outputs = engine_.collect();
  ASSERT_EQ(outputs.size(), 1000u);
  EXPECT_EQ(outputs.at({0, 999}).reason, OTR_FINISH_ABORT);
  EXPECT_LE(outputs.at({0, 999}).tokens.size(), 1u);
  EXPECT_EQ(otr_cancel(engine(), group), OTR_INVALID_ARGUMENT);

  // While it runs: with the tokens it has, which are the first of those it would have had.
  r.n = 3;
  const Outputs whole = engine_.run({r});
  const int64_t before = engine_.count("generated_tokens");
  group = engine_.submit(r, 0);
  while (engine_.count("generated_tokens") < before + 30) std::this_thread::yield();
  EXPECT_EQ(otr_cancel(engine(), group), OTR_OK);
  outputs = engine_.collect();
  ASSERT_EQ(outputs.size(), 3u);
  for (const auto& [key, output] : outputs) {
    if (output.reason != OTR_FINISH_ABORT) continue;  // it may have been quick
    const std::vector<int32_t>& all = whole.at(key).tokens;
    ASSERT_LE(output.tokens.size(), all.size());
    EXPECT_TRUE(std::equal(output.tokens.begin(), output.tokens.end(), all.begin()));
    EXPECT_EQ(output.logprobs.size(), output.tokens.size());
  }

  // One of two groups only.
  group = engine_.submit(r, 0);
  engine_.submit(Request(tokens_), 1);
  EXPECT_EQ(otr_cancel(engine(), group), OTR_OK);
  outputs = engine_.collect();
  EXPECT_NE(outputs.at({1, 0}).reason, OTR_FINISH_ABORT);
  EXPECT_EQ(engine_.count("kv_pages_in_use"), 0);
}

}  // namespace
}  // namespace otr
