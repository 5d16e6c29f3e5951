// The C ABI under misuse: every wrong argument gives its status and a text, has no effect, and leaves a usable engine.
// Requests, and the structs they come in.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/runtime/abi_fixture.h"

namespace otr {
namespace {

class AbiRequest : public AbiFixture {};

TEST_F(AbiRequest, SubmitRefusesWrongRequests) {
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

TEST_F(AbiRequest, TokensMustBeInTheVocabulary) {
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

TEST_F(AbiRequest, APromptAtTheContextLimitIsRefused) {
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

TEST_F(AbiRequest, EverySamplingParameterHasItsRange) {
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

TEST_F(AbiRequest, ScoreRefusesWrongRequests) {
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
      {"lengths that add up to 2^64",
       [this](auto* r) { r->prompt_token_ids = tokens_.data(), r->num_prompt_tokens = SIZE_MAX - 2; }},
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

// ---- Struct sizes
// -----------------------------------------------------------------------------------------------------------------

// A program built against an older header has a shorter struct: what lies behind its end is not read, and has the default.
TEST_F(AbiRequest, AnOlderCallersShorterStructIsAccepted) {
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
TEST_F(AbiRequest, ANewerCallersLongerStructIsAcceptedWhileItSaysNothingNew) {
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

TEST_F(AbiRequest, InitFillsWhatTheCallerHas) {
  EXPECT_EQ(otr_sampling_params_init(nullptr, sizeof(otr_sampling_params)), OTR_INVALID_ARGUMENT);
  EXPECT_EQ(otr_group_request_init(nullptr, sizeof(otr_group_request)), OTR_INVALID_ARGUMENT);
  EXPECT_EQ(otr_score_request_init(nullptr, sizeof(otr_score_request)), OTR_INVALID_ARGUMENT);
  EXPECT_EQ(otr_append_request_init(nullptr, sizeof(otr_append_request)), OTR_INVALID_ARGUMENT);
  EXPECT_EQ(otr_engine_options_init(nullptr, sizeof(otr_engine_options)), OTR_INVALID_ARGUMENT);
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

TEST_F(AbiRequest, DefaultsAreThoseOfTheHeader) {
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
  EXPECT_STREQ(options_.policy, "auto");
  EXPECT_EQ(options_.max_batch, 256);
  EXPECT_EQ(options_.prefill_chunk, 512);
  EXPECT_EQ(options_.num_threads, 0);
  EXPECT_EQ(options_.kv_bytes, 0u);
  EXPECT_EQ(options_.model_path, nullptr);
}

}  // namespace
}  // namespace otr
