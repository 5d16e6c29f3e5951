// The edges of what a model or a context may be: 32k tokens, prompts of one token, one layer and one head, vocabularies that
// are no multiple of anything. Each is run in two ways that must agree to the bit.
#include <gtest/gtest.h>

#include "tests/runtime/every_path.h"
#include "tests/runtime/sanitized.h"
#include "tests/runtime/test_engine.h"

namespace otr {
namespace {

class Shapes : public EveryPath {
 protected:
  // The outputs of one engine per setting, which must be the same; returns them.
  static Outputs same_outputs(const TinyModel& model, const std::vector<Request>& requests,
                              const std::vector<EngineSetup>& setups) {
    Outputs first;
    for (const EngineSetup& s : setups) {
      const Outputs outputs = TestEngine(model, s).run(requests);
      if (first.empty()) first = outputs;
      EXPECT_EQ(difference(first, outputs), "") << "chunk " << s.prefill_chunk << ", batch " << s.max_batch;
    }
    return first;
  }
};

TEST_P(Shapes, ContextsOf32kTokens) {
  if (std::string(GetParam()) == "cpu-scalar" || kSanitized) GTEST_SKIP() << "half a billion pairs of tokens take minutes here";
  constexpr int32_t kContext = 32768;
  const TinyModel model({.num_heads = 1, .max_position_embeddings = kContext, .eos_ids = {}});
  Request request(random_tokens(5, kContext - 6, 97));
  request.n = 2;
  request.sampling.max_new_tokens = 100;  // clamped to what the context leaves
  EngineSetup a = setup(), b = setup();
  b.prefill_chunk = 4096;
  b.num_threads = 2;
  const Outputs outputs = same_outputs(model, {request}, {a, b});
  ASSERT_EQ(outputs.size(), 2u);
  for (const auto& [key, output] : outputs) {
    EXPECT_EQ(output.tokens.size(), 6u);
    EXPECT_EQ(output.reason, OTR_FINISH_LENGTH);
  }
  EXPECT_NE(outputs.at({0, 0}).tokens, outputs.at({0, 1}).tokens);
}

TEST_P(Shapes, PromptsOfOneToken) {
  const TinyModel model({.eos_ids = {}});
  std::vector<Request> requests;
  for (int32_t token : {0, 1, 96}) {
    requests.emplace_back(std::vector<int32_t>{token});
    requests.back().stream = static_cast<uint64_t>(token);
    requests.back().n = 3;
    requests.back().sampling.max_new_tokens = 70;  // into a second page
  }
  EngineSetup alone = setup();
  alone.max_batch = 1;
  EXPECT_EQ(same_outputs(model, requests, {setup(), alone}).size(), 9u);
}

TEST_P(Shapes, OneLayerAndOneHead) {
  const TinyModel model({.num_heads = 1});
  Request request(random_tokens(6, 130, 97, 4));
  request.n = 4;
  request.sampling.max_new_tokens = 40;
  EngineSetup small = setup();
  small.prefill_chunk = 7;
  EXPECT_EQ(same_outputs(model, {request}, {setup(), small}).size(), 4u);
}

TEST_P(Shapes, OddVocabularies) {
  for (const int32_t vocab : {2, 31, 33, 67, 257, 4099}) {
    SCOPED_TRACE(vocab);
    const TinyModel model({.vocab_size = vocab, .eos_ids = {}});
    std::vector<Request> requests;
    for (uint64_t i = 0; i < 3; ++i) {
      requests.emplace_back(random_tokens(7 + static_cast<uint32_t>(i), 20, vocab));
      requests.back().stream = i;
      requests.back().n = 2;
      requests.back().sampling.max_new_tokens = 24;
      requests.back().sampling.top_k = i == 1 ? 5 : 0;
      requests.back().sampling.top_p = i == 2 ? 0.9f : 1.0f;
    }
    EngineSetup alone = setup();
    alone.max_batch = 1;
    for (const auto& [key, output] : same_outputs(model, requests, {setup(), alone})) {
      EXPECT_EQ(output.tokens.size(), 24u);
      for (int32_t token : output.tokens) EXPECT_TRUE(token >= 0 && token < vocab) << token;
    }
  }
}

OTR_INSTANTIATE_EVERY_PATH(Shapes);

}  // namespace
}  // namespace otr
