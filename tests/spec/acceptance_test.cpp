#include "spec/acceptance.h"

#include <gtest/gtest.h>

#include <vector>

namespace otr {
namespace {

constexpr int kTrained = 1, kFound = 0;

// A chain of `depth` nodes of drafter `number`, each kept with probability p after the one before.
Forest chain(int number, int32_t depth, float p) {
  Forest forest;
  float acceptance = 1;
  for (int32_t i = 0, parent = Forest::kRoot; i < depth; ++i) {
    acceptance *= p;
    parent = forest.add(parent, i, acceptance, number, 0);
  }
  return forest;
}

TEST(Acceptance, BeginsWithAPrior) {
  const Acceptance acceptance;
  EXPECT_NEAR(static_cast<double>(acceptance.p(kTrained)), Acceptance::kPrior, 1e-6);
  EXPECT_NEAR(static_cast<double>(acceptance.p(kTrained, 3, 7)), Acceptance::kPrior, 1e-6);
  EXPECT_EQ(acceptance.known(3, 7).tokens, 0.0f);
}

TEST(Acceptance, FindsTheShareThatIsKept) {
  Acceptance acceptance;
  for (int i = 0; i < 400; ++i) {
    EXPECT_TRUE(acceptance.note_draft(0, 1, chain(kTrained, 4, 0.9f), 1u << kTrained));
    acceptance.note_draft(1, 2, chain(kTrained, 4, 0.5f), 1u << kTrained);
  }
  EXPECT_NEAR(acceptance.p(kTrained, 0, 1), 0.9f, 0.03f);
  EXPECT_NEAR(acceptance.p(kTrained, 1, 2), 0.5f, 0.08f);  // the prior, 0.73, weighs 4 places of 16
  // 0.9 (1 + … + 0.9^3) of 1 + … + 0.9^3 and 0.5 (1 + … + 0.5^3) of 1 + … + 0.5^3 together
  EXPECT_NEAR(acceptance.p(kTrained), (3.0951f + 0.9375f) / (3.439f + 1.875f), 0.02f);
  EXPECT_EQ(acceptance.p(kTrained, 0, 5), acceptance.p(kTrained));  // another sequence in that slot
}

// Two children share what one would have: a tree's share of a place is their sum.
TEST(Acceptance, SiblingsAddUp) {
  Acceptance acceptance;
  Forest forest;
  const int32_t first = forest.add(Forest::kRoot, 1, 0.6f, kTrained, 0);
  forest.add(Forest::kRoot, 2, 0.3f, kTrained, 1);
  forest.add(first, 3, 0.54f, kTrained, 0);
  for (int i = 0; i < 400; ++i) acceptance.note_draft(0, 1, forest, 1u << kTrained);
  EXPECT_NEAR(acceptance.p(kTrained, 0, 1), (0.6f + 0.3f + 0.54f) / 1.6f, 0.01f);
}

// A place counts once however many children it has, wherever in the forest it lies.
TEST(Acceptance, APlaceIsCountedOnce) {
  Acceptance acceptance;
  Forest forest;
  const int32_t first = forest.add(Forest::kRoot, 1, 0.8f, kTrained, 0);
  forest.add(first, 2, 0.4f, kTrained, 0);
  forest.add(first, 3, 0.2f, kTrained, 1);
  for (int i = 0; i < 400; ++i) acceptance.note_draft(0, 1, forest, 1u << kTrained);
  EXPECT_NEAR(acceptance.p(kTrained, 0, 1), (0.8f + 0.4f + 0.2f) / (1 + 0.8f), 0.01f);

  Acceptance of_a_long_one;
  for (int i = 0; i < 400; ++i) of_a_long_one.note_draft(0, 1, chain(kTrained, 200, 0.98f), 1u << kTrained);
  EXPECT_NEAR(of_a_long_one.p(kTrained, 0, 1), 0.98f, 0.002f);
}

// What a merged node has of another drafter's may make a place's children more than 1 together.
TEST(Acceptance, NoPlaceIsMoreThanCertain) {
  Acceptance acceptance;
  Forest forest;
  forest.add(Forest::kRoot, 1, 0.8f, kTrained, 0);
  forest.add(Forest::kRoot, 2, 0.7f, kTrained, 1);
  acceptance.note_draft(0, 1, forest, 1u << kTrained);
  EXPECT_NEAR(acceptance.p(kTrained), (1 + 4 * 0.8f) / 5, 1e-6f);
  // Nor is anything of a drafter that keeps more than it foretells.
  const Forest modest = chain(kTrained, 1, 0.1f), sure = chain(kTrained, 4, 1.0f);
  for (int i = 0; i < 100; ++i) {
    acceptance.note_draft(0, 1, sure, 1u << kTrained);
    acceptance.note_verdict(modest, std::vector<int32_t>{0});
  }
  EXPECT_GT(acceptance.trust(kTrained), 2);
  EXPECT_EQ(acceptance.p(kTrained), 0.999f);
  EXPECT_EQ(acceptance.p(kTrained, 0, 1), 0.999f);
}

TEST(Acceptance, AnEmptyDraftSaysNothing) {
  Acceptance acceptance;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(acceptance.note_draft(0, 1, Forest(), 1u << kTrained));
  EXPECT_NEAR(static_cast<double>(acceptance.p(kTrained)), Acceptance::kPrior, 1e-6);
}

TEST(Acceptance, VerdictsCorrectDraftersThatFlatterThemselves) {
  Acceptance acceptance;
  const Forest forest = chain(kTrained, 4, 0.9f);
  for (int i = 0; i < 500; ++i) {
    acceptance.note_draft(0, 1, forest, 1u << kTrained);
    const std::vector<int32_t> kept(i % 5 == 0 ? 1 : 0, 0);
    acceptance.note_verdict(forest, kept);  // 0.2 kept of 3.1 foretold
  }
  EXPECT_LT(acceptance.p(kTrained), 0.15f);
  EXPECT_NEAR(acceptance.trust(kTrained), 0.08, 0.03);
  EXPECT_EQ(acceptance.trust(kFound), 1.0);
  for (int i = 0; i < 10000; ++i) acceptance.end_tick();
  EXPECT_GT(acceptance.trust(kTrained), 0.9);  // it may try again
  EXPECT_NEAR(static_cast<double>(acceptance.p(0)), Acceptance::kPrior, 1e-6);
}

// Each drafter by its own nodes; what a sequence kept counts in the same proportion.
TEST(Acceptance, AVerdictIsOfAllProposers) {
  Acceptance acceptance;
  Forest forest;
  forest.add(Forest::kRoot, 1, 1.0f, kFound, 0);
  forest.add(Forest::kRoot, 2, 1.0f, kTrained, 0);
  for (int i = 0; i < 400; ++i) acceptance.note_draft(0, 1, chain(kTrained, 1, 0.8f), 1u << kTrained);
  acceptance.note_verdict(forest, {});
  EXPECT_EQ(acceptance.trust(kFound), 0.5);  // 0 of 1, and 1 of 1 before
  EXPECT_EQ(acceptance.trust(kTrained), 0.5);
  EXPECT_NEAR(acceptance.p(kTrained, 0, 1), 0.4f, 1e-4f);
}

TEST(Acceptance, LookupsOfLate) {
  Acceptance acceptance;
  acceptance.note_lookups(0, 1, chain(kFound, 3, 1.0f), 1u << kFound);
  EXPECT_NEAR(acceptance.known(0, 1).tokens, 3.0f, 1e-6f);
  for (int i = 0; i < 100; ++i) acceptance.note_lookups(0, 1, Forest(), 1u << kFound);
  EXPECT_NEAR(acceptance.known(0, 1).tokens, 0.0f, 1e-3f);
  acceptance.note_lookups(0, 1, chain(kTrained, 3, 1.0f), 1u << kFound);  // another's nodes
  EXPECT_NEAR(acceptance.known(0, 1).tokens, 0.0f, 1e-3f);
}

// Their worth is what the chooser makes of it, not what they say; none but a sequence's own are its.
TEST(Acceptance, LookupsCountByTheirWorth) {
  Acceptance acceptance;
  Forest forest = chain(kFound, 2, 1.0f);
  forest.set_worth(0, 0.5f);
  forest.set_worth(1, 0.25f);
  acceptance.note_lookups(0, 1, forest, 1u << kFound);
  EXPECT_EQ(acceptance.known(0, 1).tokens, 0.75f);
  EXPECT_EQ(acceptance.known(0, 2).tokens, 0.0f);
  acceptance.note_draft(1, 3, chain(kTrained, 1, 0.5f), 1u << kTrained);  // of lookups nothing is known
  EXPECT_EQ(acceptance.known(1, 3).tokens, 0.0f);
  EXPECT_EQ(acceptance.known(1, 3).nodes, 0.0f);
}

// What they take counts, kept or not. Beside a model, where deeper places are verified, more says little and less as much as
// ever.
TEST(Acceptance, LookupsBesideAModel) {
  Acceptance acceptance;
  const uint32_t lookups = 1u << kFound;
  const auto note = [&](int32_t nodes, float worth, bool beside_model) {
    acceptance.note_lookups(0, 1, chain(kFound, nodes, worth), lookups, beside_model);
  };
  for (int i = 0; i < 100; ++i) note(4, 0.5f, false);
  const float tokens = acceptance.known(0, 1).tokens;
  EXPECT_NEAR(acceptance.known(0, 1).nodes, 4.0f, 1e-3f);
  EXPECT_LT(tokens, 1.0f);  // 0.5 + 0.25 + ...
  for (int i = 0; i < 5; ++i) note(8, 1.0f, true);
  EXPECT_LT(acceptance.known(0, 1).tokens, tokens + 0.4f);
  for (int i = 0; i < 5; ++i) note(8, 1.0f, false);
  EXPECT_GT(acceptance.known(0, 1).tokens, tokens + 3.0f);
  for (int i = 0; i < 20; ++i) note(0, 0.0f, true);
  EXPECT_LT(acceptance.known(0, 1).tokens, 0.3f);
}

}  // namespace
}  // namespace otr
