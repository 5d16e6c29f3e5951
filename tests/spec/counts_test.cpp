#include "spec/counts.h"

#include <gtest/gtest.h>

#include <vector>

namespace otr {
namespace {

TEST(SpecCounts, CountsEveryNodeForEachOfItsProposers) {
  Forest forest;
  const int32_t a = forest.add(Forest::kRoot, 1, 1, 0, 0);
  forest.add(Forest::kRoot, 2, 1, 1, 0);
  const int32_t b = forest.add(a, 3, 1, 0, 1);
  forest.add(a, 3, 1, 1, 0);
  SpecCounts c;
  const std::vector<int32_t> kept = {a, b};
  c.add(forest, kept, 3, kMaxDraftDepth);
  EXPECT_EQ(c.decode_steps, 1);
  EXPECT_EQ(c.decode_tokens, 3);
  EXPECT_EQ(c.verify_steps, 1);
  EXPECT_EQ(c.draft_tokens, 3);
  EXPECT_EQ(c.accepted_tokens, 2);
  EXPECT_EQ(c.drafters[0].drafts, 1);
  EXPECT_EQ(c.drafters[0].drafted, 2);
  EXPECT_EQ(c.drafters[0].accepted, 2);
  EXPECT_EQ(c.drafters[1].drafted, 2);
  EXPECT_EQ(c.drafters[1].accepted, 1);
  EXPECT_EQ(c.drafters[0].drafted_at[0], 1);
  EXPECT_EQ(c.drafters[1].drafted_at[1], 1);
  EXPECT_EQ(c.drafters[0].accepted_rank[1], 1);
  EXPECT_EQ(c.drafters[2].drafts, 0);
}

TEST(SpecCounts, PiIsJudgedBelowKeptNodesOnly) {
  Forest forest;
  const int32_t a = forest.add(Forest::kRoot, 1, 0.75f, 0, 0);
  forest.add(Forest::kRoot, 2, 0.125f, 0, 1);
  const int32_t b = forest.add(a, 3, 0.75f * 0.5f, 0, 0);
  forest.add(b, 4, 0.3f, 0, 0);  // below a wrong one: nobody judged it
  SpecCounts c;
  const std::vector<int32_t> kept = {a};
  c.add(forest, kept, 2, kMaxDraftDepth);
  const DrafterCounts& d = c.drafters[0];
  EXPECT_EQ(d.judged_at_pi[7], 1);
  EXPECT_EQ(d.kept_at_pi[7], 1);
  EXPECT_EQ(d.judged_at_pi[1], 1);
  EXPECT_EQ(d.kept_at_pi[1], 0);
  EXPECT_EQ(d.judged_at_pi[5], 1);
  EXPECT_EQ(d.kept_at_pi[5], 0);
  EXPECT_EQ(d.sum_of_pi[7], 0.75);
  EXPECT_EQ(d.judged_at_pi[8] + d.judged_at_pi[2] + d.judged_at_pi[3] + d.judged_at_pi[9], 0);
}

TEST(SpecCounts, AMissIsADecodeStepWithoutAVerifyStep) {
  SpecCounts c;
  c.add(Forest(), {}, 1, kMaxDraftDepth);
  EXPECT_EQ(c.decode_steps, 1);
  EXPECT_EQ(c.decode_tokens, 1);
  EXPECT_EQ(c.verify_steps, 0);
}

TEST(SpecCounts, NodesBelowTheEndWereNotJudged) {
  Forest forest;
  int32_t parent = Forest::kRoot;
  for (int32_t token = 0; token < 5; ++token) parent = forest.add(parent, token, 1, 0, 0);
  SpecCounts c;
  const std::vector<int32_t> kept = {0, 1};
  c.add(forest, kept, 2, 2);  // the second token ended the sequence
  EXPECT_EQ(c.draft_tokens, 2);
  EXPECT_EQ(c.drafters[0].drafted, 2);
  EXPECT_EQ(c.drafters[0].accepted, 2);
  EXPECT_EQ(c.drafters[0].drafted_at[2], 0);
  int64_t judged = 0;
  for (const int64_t n : c.drafters[0].judged_at_pi) judged += n;
  EXPECT_EQ(judged, 2);
}

// Every count of two workers is the sum of both.
TEST(SpecCounts, WorkersAddUp) {
  Forest forest;
  const int32_t a = forest.add(Forest::kRoot, 1, 0.75f, 15, 0);
  forest.add(Forest::kRoot, 2, 0.25f, 15, 1);
  forest.add(a, 3, 0.5f, 15, 40);
  SpecCounts once, sum;
  once.add(forest, std::vector<int32_t>{a}, 2, kMaxDraftDepth);
  sum.add(once);
  sum.add(once);
  EXPECT_EQ(sum.decode_steps, 2);
  EXPECT_EQ(sum.decode_tokens, 4);
  EXPECT_EQ(sum.verify_steps, 2);
  EXPECT_EQ(sum.draft_tokens, 6);
  EXPECT_EQ(sum.accepted_tokens, 2);
  const DrafterCounts& d = sum.drafters[15];
  EXPECT_EQ(d.drafts, 2);
  EXPECT_EQ(d.drafted, 6);
  EXPECT_EQ(d.accepted, 2);
  EXPECT_EQ(d.drafted_at[0], 4);
  EXPECT_EQ(d.drafted_at[1], 2);
  EXPECT_EQ(d.accepted_at[0], 2);
  EXPECT_EQ(d.drafted_rank[0], 2);
  EXPECT_EQ(d.drafted_rank[1], 2);
  EXPECT_EQ(d.drafted_rank[DrafterCounts::kRanks - 1], 2);  // all ranks from there on
  EXPECT_EQ(d.accepted_rank[0], 2);
  EXPECT_EQ(d.accepted_rank[1], 0);
  EXPECT_EQ(d.judged_at_pi[7], 2);
  EXPECT_EQ(d.kept_at_pi[7], 2);
  EXPECT_EQ(d.judged_at_pi[2], 2);
  EXPECT_EQ(d.kept_at_pi[2], 0);
  EXPECT_EQ(d.judged_at_pi[6], 2);
  EXPECT_EQ(d.sum_of_pi[7], 1.5);
}

// Of a shared node nobody knows whose probability it has; one that is certain, or said to be more, belongs to the last tenth.
TEST(SpecCounts, PiIsOfOwnNodesFromNoneToCertain) {
  Forest forest;
  const int32_t a = forest.add(Forest::kRoot, 1, 0.5f, 0, 0);
  forest.add(Forest::kRoot, 1, 0.5f, 1, 0);
  forest.add(a, 2, 0.5f, 0, 0);   // certain behind a
  forest.add(a, 3, 0.75f, 1, 0);  // another drafter's A
  const int32_t never = forest.add(a, 4, 0.0f, 2, 0);
  forest.add(never, 5, 0.0f, 2, 0);
  SpecCounts c;
  c.add(forest, std::vector<int32_t>{a, never}, 3, kMaxDraftDepth);
  EXPECT_EQ(c.drafters[0].judged_at_pi[5], 0);
  EXPECT_EQ(c.drafters[0].judged_at_pi[9], 1);
  EXPECT_EQ(c.drafters[1].judged_at_pi[9], 1);
  EXPECT_EQ(c.drafters[1].sum_of_pi[9], 1.0);
  EXPECT_EQ(c.drafters[2].judged_at_pi[0], 2);
  EXPECT_EQ(c.drafters[2].kept_at_pi[0], 1);
  EXPECT_EQ(c.drafters[2].sum_of_pi[0], 0.0);
}

TEST(SpecCounts, OneNodeIsAVerifyStep) {
  Forest forest;
  forest.add(Forest::kRoot, 1, 0.5f, 0, 0);
  SpecCounts c;
  c.add(forest, {}, 1, kMaxDraftDepth);
  EXPECT_EQ(c.verify_steps, 1);
  EXPECT_EQ(c.draft_tokens, 1);
}

}  // namespace
}  // namespace otr
