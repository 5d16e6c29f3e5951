#include "spec/ngram_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace otr {
namespace {

void append_all(NgramIndex* index, int32_t stream, const std::vector<int32_t>& tokens) {
  for (const int32_t token : tokens) index->append(stream, token);
}

TEST(NgramIndex, PrefersTheLongestMatchThenTheNewest) {
  NgramIndex index(2);
  const int32_t a = index.add_stream({}), b = index.add_stream({});
  append_all(&index, a, {1, 2, 3, 9, 2, 3, 8});
  const std::vector<int32_t> query = {1, 2, 3};
  NgramIndex::Match m = index.find(query);
  EXPECT_EQ(m.length, 3);
  EXPECT_EQ(index.stream(m.stream)[static_cast<size_t>(m.position)], 9);
  append_all(&index, b, {1, 2, 3, 7});
  m = index.find(query);
  EXPECT_EQ(m.stream, b);
  const std::vector<int32_t> other = {5, 2, 3};
  m = index.find(other);
  EXPECT_EQ(m.length, 2);
  EXPECT_EQ(index.stream(m.stream)[static_cast<size_t>(m.position)], 7);
}

TEST(NgramIndex, TheEndItselfIsNoMatch) {
  NgramIndex index(2);
  const int32_t s = index.add_stream({});
  append_all(&index, s, {1, 2, 3, 4});
  EXPECT_EQ(index.find(std::vector<int32_t>{3, 4}).length, 0);
  index.append(s, 5);
  EXPECT_EQ(index.find(std::vector<int32_t>{3, 4}).length, 2);
  EXPECT_EQ(index.find(std::vector<int32_t>{4}).length, 0);  // too short to ask
  EXPECT_EQ(index.find({}).length, 0);
}

TEST(NgramIndex, ContextCountsButIsNotFound) {
  NgramIndex index(2);
  const std::vector<int32_t> context = {1, 2, 3};
  const int32_t s = index.add_stream(context);
  EXPECT_EQ(index.find(std::vector<int32_t>{1, 2}).length, 0);
  index.append(s, 4);
  EXPECT_EQ(index.find(std::vector<int32_t>{1, 2, 3}).length, 3);
  EXPECT_EQ(index.find(std::vector<int32_t>{1, 2}).length, 0);
}

// Against a search of everything, on few distinct tokens, so that matches of every length abound.
TEST(NgramIndex, FindsWhatAFullSearchFinds) {
  std::mt19937 random(3);
  for (const int32_t min_match : {1, 2, 3}) {
    NgramIndex index(min_match);
    std::vector<std::vector<int32_t>> streams(4);
    std::vector<std::pair<int32_t, int32_t>> order;  // (stream, position) as they came
    for (size_t s = 0; s < streams.size(); ++s) index.add_stream({});
    for (int step = 0; step < 3000; ++step) {
      const int32_t s = static_cast<int32_t>(random() % 4), token = static_cast<int32_t>(random() % 12);
      index.append(s, token);
      streams[static_cast<size_t>(s)].push_back(token);
      order.emplace_back(s, static_cast<int32_t>(streams[static_cast<size_t>(s)].size()) - 1);
      if (step % 10 != 0) continue;
      const std::vector<int32_t>& query = streams[random() % 4];
      NgramIndex::Match best;
      int32_t candidates = 0;
      for (auto at = order.rbegin(); at != order.rend(); ++at) {
        const std::vector<int32_t>& text = streams[static_cast<size_t>(at->first)];
        int32_t length = 0;
        while (length < NgramIndex::kMaxMatch && length < at->second && length < static_cast<int32_t>(query.size()) &&
               text[static_cast<size_t>(at->second - 1 - length)] == query[query.size() - 1 - static_cast<size_t>(length)]) {
          ++length;
        }
        if (length < min_match) continue;
        ++candidates;
        if (length > best.length) best = {at->first, at->second, length};
      }
      const NgramIndex::Match found = index.find(query);
      if (candidates <= NgramIndex::kMaxVisits / 2) {  // few enough that chains are walked to their ends
        ASSERT_EQ(found.length, best.length);
        ASSERT_EQ(found.stream, best.stream);
        ASSERT_EQ(found.position, best.position);
      } else {
        ASSERT_LE(found.length, best.length);
        ASSERT_GE(found.length, min_match);
      }
    }
  }
}

// The longest match is the oldest one: it is found behind as many newer entries as a lookup visits before it, and no more.
TEST(NgramIndex, ALookupVisitsSoManyEntries) {
  for (const int32_t newer : {NgramIndex::kMaxVisits - 1, NgramIndex::kMaxVisits}) {
    NgramIndex index(2);
    append_all(&index, index.add_stream({}), {9, 1, 2, 3});
    for (int32_t i = 0; i < newer; ++i) append_all(&index, index.add_stream({}), {1, 2, 4});
    EXPECT_EQ(index.find(std::vector<int32_t>{9, 1, 2}).length, newer < NgramIndex::kMaxVisits ? 3 : 2);
  }
}

}  // namespace
}  // namespace otr
