// What a request's sequences are made with.

#include "runtime/request.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/runtime/rollouts.h"

namespace otr {
namespace {

TEST(PenaltiesOf, AreThoseOfTheTokensOneByOne) {
  for (const size_t num_tokens : {0, 1, 2, 50, 3000}) {
    const std::vector<int32_t> tokens = random_tokens(static_cast<uint32_t>(num_tokens), num_tokens, 97);
    for (const size_t num_prompt : {size_t{0}, num_tokens / 3, num_tokens}) {
      std::vector<PenaltyEntry> one_by_one;
      for (size_t i = 0; i < tokens.size(); ++i) add_penalty(tokens[i], i >= num_prompt, &one_by_one);
      const std::vector<PenaltyEntry> found = penalties_of(tokens, num_prompt);
      ASSERT_EQ(found.size(), one_by_one.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].token, one_by_one[i].token);
        EXPECT_EQ(found[i].output_count, one_by_one[i].output_count);
      }
    }
  }
}

}  // namespace
}  // namespace otr
