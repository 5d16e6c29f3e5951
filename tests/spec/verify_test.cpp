#include "spec/verify.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace otr {
namespace {

TEST(CountAccepted, KeepsTheEqualBeginning) {
  struct Case {
    std::vector<int32_t> draft, drawn;
    int32_t kept;
  };
  const Case cases[] = {
      {{}, {5}, 0},
      {{1}, {1, 2}, 1},
      {{1}, {2, 1}, 0},
      {{1, 2, 3}, {1, 2, 3, 4}, 3},
      {{1, 2, 3}, {1, 2, 9, 4}, 2},
      {{1, 2, 3}, {9, 2, 3, 4}, 0},  // equal again behind a difference: those rows saw another past
      {{0, 0}, {0, 1, 0}, 1},
  };
  for (const Case& c : cases) EXPECT_EQ(count_accepted(c.draft, c.drawn), c.kept) << testing::PrintToString(c.draft);
}

// Whatever is drafted, what is committed is what the target alone would draw: its draws are a function of the tokens before.
TEST(CountAccepted, AnyDraftGivesTheTargetsTokens) {
  std::mt19937 random(1);
  const auto target = [](const std::vector<int32_t>& past) {
    uint32_t h = 17;
    for (const int32_t t : past) h = h * 31 + static_cast<uint32_t>(t);
    return static_cast<int32_t>(h >> 7 & 3);
  };
  std::vector<int32_t> plain;
  while (plain.size() < 500) plain.push_back(target(plain));

  std::vector<int32_t> tokens;
  int32_t kept_in_all = 0;
  while (tokens.size() < plain.size()) {
    std::vector<int32_t> draft(random() % 6);
    for (int32_t& t : draft) t = static_cast<int32_t>(random() & 3);
    std::vector<int32_t> past = tokens, drawn = {target(past)};
    for (const int32_t t : draft) {
      past.push_back(t);
      drawn.push_back(target(past));
    }
    const int32_t kept = count_accepted(draft, drawn);
    kept_in_all += kept;
    tokens.insert(tokens.end(), drawn.begin(), drawn.begin() + kept + 1);
  }
  tokens.resize(plain.size());
  EXPECT_EQ(tokens, plain);
  EXPECT_GT(kept_in_all, 50);
}

}  // namespace
}  // namespace otr
