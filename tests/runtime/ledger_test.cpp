// What the ledger has is what was accepted, whoever reports it in whatever pieces; what contradicts it is refused.

#include "runtime/ledger.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace otr {
namespace {

constexpr int32_t kLedgerVocab = 100, kWorker = 2;

std::vector<std::unique_ptr<Sequence>> sequences(int32_t n, int32_t max_new_tokens, uint64_t id = 7) {
  const std::vector<int32_t> prompt = {5, 6, 5};
  otr_sampling_params sampling;
  otr_sampling_params_init(&sampling, sizeof sampling);
  sampling.max_new_tokens = max_new_tokens;
  sampling.repetition_penalty = 1.5f;
  otr_group_request r;
  otr_group_request_init(&r, sizeof r);
  r.prompt_token_ids = prompt.data();
  r.num_prompt_tokens = prompt.size();
  r.n = n;
  r.first_sample = 10;
  r.sampling = &sampling;
  auto made = make_group(r, {.vocab_size = kLedgerVocab, .context_limit = 64, .num_pages = 8, .eos_ids = {3}});
  EXPECT_TRUE(made.ok()) << made.status().message();
  for (auto& s : made.value()) s->group->id = id;
  return std::move(made.value());
}

void accept(Sequence* s, int32_t token) {
  s->tokens.push_back(token);
  s->logprobs.push_back(-0.5f * static_cast<float>(token));
  s->raw_logprobs.push_back(-1.0f * static_cast<float>(token));
  s->note_penalty(token, true);
  s->spec.draft_tokens += 2;
  s->spec.judged_tokens += 1;
}

void expect_equal(const Sequence& a, const Sequence& b) {
  EXPECT_EQ(a.group, b.group);
  EXPECT_EQ(a.sample, b.sample);
  EXPECT_EQ(a.age, b.age);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.logprobs, b.logprobs);
  EXPECT_EQ(a.raw_logprobs, b.raw_logprobs);
  EXPECT_EQ(a.max_tokens, b.max_tokens);
  EXPECT_EQ(a.spec.draft_tokens, b.spec.draft_tokens);
  EXPECT_EQ(a.spec.judged_tokens, b.spec.judged_tokens);
  EXPECT_EQ(a.num_computed, 0);
  ASSERT_EQ(a.penalties.size(), b.penalties.size());
  for (size_t i = 0; i < a.penalties.size(); ++i) {
    EXPECT_EQ(a.penalties[i].token, b.penalties[i].token);
    EXPECT_EQ(a.penalties[i].output_count, b.penalties[i].output_count);
  }
  EXPECT_TRUE(std::equal(std::begin(a.noise.r), std::end(a.noise.r), std::begin(b.noise.r)));
}

TEST(Ledger, RestoresWhatWasAccepted) {
  auto live = sequences(3, 20);
  for (size_t i = 0; i < live.size(); ++i) live[i]->age = 40 + i;
  Ledger ledger;
  ledger.open(live, kWorker);
  Progress progress;
  for (int32_t round = 0; round < 5; ++round) {
    for (auto& s : live) {
      for (int32_t i = 0; i < round; ++i) accept(s.get(), 10 + round + i + static_cast<int32_t>(s->sample));
      progress.add(s.get());
    }
    if (round % 2 == 0) continue;  // several segments of a sample in one report
    ASSERT_TRUE(ledger.append(kWorker, progress, kLedgerVocab).ok());
    progress.clear();
  }
  ASSERT_TRUE(ledger.append(kWorker, progress, kLedgerVocab).ok());
  const LedgerGroup* group = ledger.find(7);
  ASSERT_NE(group, nullptr);
  for (const auto& s : live) {
    const auto restored = restore(*group, *group->find(s->sample));
    EXPECT_EQ(s->raw_logprobs.size(), 10u);
    expect_equal(*restored, *s);
    EXPECT_GE(restored->tokens.capacity(), static_cast<size_t>(s->max_tokens));
    EXPECT_EQ(restored->num_reported, 10);
  }
}

TEST(Ledger, AReportThatContradictsItIsRefused) {
  auto live = sequences(1, 4);
  Ledger ledger;
  ledger.open(live, kWorker);
  const auto refused = [&](int32_t worker, uint64_t group, uint32_t sample, int32_t first, std::vector<int32_t> tokens,
                           size_t floats) {
    Progress p;
    p.segments.push_back({.group = group, .sample = sample, .first = first, .count = static_cast<int32_t>(tokens.size())});
    p.tokens = std::move(tokens);
    p.logprobs.resize(floats);
    p.raw_logprobs.resize(floats);
    const Status status = ledger.append(worker, p, kLedgerVocab);
    EXPECT_EQ(status.ok(), false);
    EXPECT_EQ(status.code(), StatusCode::kBadInput);
    EXPECT_EQ(ledger.find(7)->find(10)->num_accepted(), 0) << status.message();
  };
  refused(kWorker + 1, 7, 10, 0, {1}, 1);  // at another worker
  refused(kWorker, 8, 10, 0, {1}, 1);      // no such group
  refused(kWorker, 7, 11, 0, {1}, 1);      // no such sample
  refused(kWorker, 7, 10, 1, {1}, 1);      // a gap
  refused(kWorker, 7, 10, -1, {1}, 1);
  refused(kWorker, 7, 10, 0, {1, 2, 3, 4, 5}, 5);  // over its limit
  refused(kWorker, 7, 10, 0, {kLedgerVocab}, 1);   // outside the vocabulary
  refused(kWorker, 7, 10, 0, {-1}, 1);
  refused(kWorker, 7, 10, 0, {}, 0);
  refused(kWorker, 7, 10, 0, {1, 2}, 1);  // arrays of different lengths
  Progress spare;
  spare.tokens = {1};
  spare.logprobs = spare.raw_logprobs = {0.0f};
  EXPECT_FALSE(ledger.append(kWorker, spare, kLedgerVocab).ok());
}

TEST(Ledger, EndsAreCheckedAgainstTheTokens) {
  auto live = sequences(2, 2);
  Ledger ledger;
  ledger.open(live, kWorker);
  Progress progress;
  accept(live[0].get(), 3);  // the model's stop id
  accept(live[1].get(), 4);
  for (auto& s : live) progress.add(s.get());
  ASSERT_TRUE(ledger.append(kWorker, progress, kLedgerVocab).ok());
  for (const otr_finish_reason wrong : {OTR_FINISH_LENGTH, OTR_FINISH_SCORE, OTR_FINISH_ABORT}) {
    EXPECT_FALSE(ledger.finish(kWorker, 7, 10, wrong, "").ok()) << wrong;
  }
  EXPECT_FALSE(ledger.finish(kWorker, 7, 11, OTR_FINISH_STOP, "").ok());
  EXPECT_FALSE(ledger.finish(kWorker + 1, 7, 10, OTR_FINISH_STOP, "").ok());
  ASSERT_TRUE(ledger.finish(kWorker, 7, 10, OTR_FINISH_STOP, "").value());
  EXPECT_FALSE(ledger.finish(kWorker, 7, 10, OTR_FINISH_STOP, "").ok());  // once
  ASSERT_TRUE(ledger.finish(kWorker, 7, 11, OTR_FINISH_ERROR, "why").ok());
  const LedgerGroup& group = *ledger.find(7);
  EXPECT_EQ(restore(group, *group.find(10))->finish_reason, OTR_FINISH_STOP);
  EXPECT_EQ(restore(group, *group.find(11))->error, "why");
}

// A sample in a race is where its furthest replica is, and ends once.
TEST(Ledger, ReplicasAgree) {
  auto live = sequences(2, 20);
  Ledger ledger;
  ledger.open(live, 0);
  const auto report = [&](int32_t worker, int32_t first, std::vector<int32_t> tokens) {
    Progress p;
    for (const int32_t t : tokens) {
      p.logprobs.push_back(-0.5f * static_cast<float>(t));
      p.raw_logprobs.push_back(-1.0f * static_cast<float>(t));
    }
    p.segments = {{.group = 7, .sample = 10, .first = first, .count = static_cast<int32_t>(tokens.size())}};
    p.tokens = std::move(tokens);
    return ledger.append(worker, p, kLedgerVocab).ok();
  };
  ASSERT_TRUE(report(0, 0, {10, 11}));
  EXPECT_FALSE(report(1, 2, {12}));
  ASSERT_TRUE(ledger.lend(7, 10, 1, true));
  ASSERT_TRUE(ledger.lend(7, 10, 2, true));
  EXPECT_FALSE(ledger.lend(7, 99, 2, true));
  ASSERT_TRUE(report(1, 2, {12, 13, 14}));
  EXPECT_EQ(ledger.leaps().size(), 1u);
  EXPECT_EQ(ledger.leaps()[0].first, 2);
  ASSERT_TRUE(report(0, 2, {12, 13}));  // it is behind
  EXPECT_TRUE(ledger.leaps().empty());
  ASSERT_TRUE(report(0, 4, {14, 15}));
  EXPECT_EQ(ledger.leaps()[0].count, 1);
  EXPECT_FALSE(report(2, 2, {12, 13, 77}));  // another token
  EXPECT_FALSE(report(2, 7, {16}));          // a gap
  EXPECT_EQ(ledger.find(7)->find(10)->tokens, (std::vector<int32_t>{10, 11, 12, 13, 14, 15}));
  // One fails, one dies: it goes on at the third.
  EXPECT_FALSE(ledger.finish(2, 7, 10, OTR_FINISH_ERROR, "why").value());
  EXPECT_FALSE(report(2, 6, {16}));
  EXPECT_TRUE(ledger.lose(0, 7, 10));
  EXPECT_EQ(ledger.find(7)->find(10)->worker, 1);
  EXPECT_FALSE(ledger.lose(1, 7, 10));
  EXPECT_FALSE(ledger.drop(1, 7, 10).ok());  // the last one
  ASSERT_TRUE(ledger.lend(7, 10, 0, false));
  ASSERT_TRUE(report(0, 6, {3}));
  EXPECT_TRUE(ledger.finish(0, 7, 10, OTR_FINISH_STOP, "").value());
  // Its stragglers are heard, and change nothing.
  EXPECT_TRUE(ledger.is_straggler(1, 7, 10));
  ASSERT_TRUE(report(1, 6, {3}));
  EXPECT_FALSE(ledger.finish(1, 7, 10, OTR_FINISH_STOP, "").value());
  EXPECT_FALSE(ledger.is_straggler(1, 7, 10));
  EXPECT_FALSE(ledger.finish(1, 7, 10, OTR_FINISH_STOP, "").ok());
  EXPECT_EQ(ledger.lose_stragglers(1), 0);
}

// Whoever is the last to fail may be the first to say so.
TEST(Ledger, TheLastFailureIsTheEnd) {
  auto live = sequences(2, 20);
  Ledger ledger;
  ledger.open(live, 0);
  ASSERT_TRUE(ledger.lend(7, 10, 1, false));
  ASSERT_TRUE(ledger.lend(7, 10, 2, false));
  EXPECT_TRUE(ledger.finish(2, 7, 10, OTR_FINISH_ERROR, "why", /*is_last=*/true).value());
  EXPECT_TRUE(ledger.find(7)->find(10)->is_finished);
  EXPECT_TRUE(ledger.drop(0, 7, 10).ok());
  EXPECT_TRUE(ledger.drop(1, 7, 10).ok());
  EXPECT_FALSE(ledger.drop(2, 7, 10).ok());
}

// What the engine fails is nobody's: replicas may say what they like, and its tokens stay as they were.
TEST(Ledger, WhatTheEngineFailsIsUnfinishedAndAtNobody) {
  auto live = sequences(1, 8);
  Ledger ledger;
  ledger.open(live, kWorker);
  ASSERT_TRUE(ledger.lend(7, 10, 3, false));
  Progress progress;
  accept(live[0].get(), 5);
  progress.add(live[0].get());
  ASSERT_TRUE(ledger.append(3, progress, kLedgerVocab).ok());
  const auto failed = ledger.fail(3, 7, 10);
  ASSERT_TRUE(failed.ok());
  EXPECT_TRUE(failed.value());
  const LedgerSample* sample = ledger.find(7)->find(10);
  ASSERT_NE(sample, nullptr);
  EXPECT_TRUE(sample->is_over());
  EXPECT_FALSE(sample->is_finished);
  EXPECT_TRUE(ledger.append(kWorker, progress, kLedgerVocab).ok());  // of a replica that is late
  EXPECT_EQ(sample->num_accepted(), 1);
  EXPECT_FALSE(ledger.lend(7, 10, 4, false));
  EXPECT_TRUE(ledger.drop(4, 7, 10).ok());
  ledger.close(7, 10);
  EXPECT_TRUE(ledger.drop(kWorker, 7, 10).ok());
  EXPECT_FALSE(ledger.fail(kWorker, 7, 10).ok());  // once is enough
  EXPECT_TRUE(ledger.empty());
}

TEST(Ledger, AGroupGoesWithItsLastSample) {
  auto live = sequences(3, 5), other = sequences(1, 5, 8);
  Ledger ledger;
  ledger.open(live, 0);
  ledger.open(other, 1);
  ledger.move(7, 11, 0, 1);
  EXPECT_EQ(ledger.find(7)->find(10)->worker, 0);
  EXPECT_EQ(ledger.find(7)->find(11)->worker, 1);
  for (const uint32_t sample : {11u, 11u, 10u, 99u}) ledger.close(7, sample);
  EXPECT_EQ(ledger.find(7)->find(11), nullptr);
  ASSERT_NE(ledger.find(7)->find(12), nullptr);
  ledger.close(7, 12);
  EXPECT_EQ(ledger.find(7), nullptr);
  EXPECT_EQ(ledger.groups().size(), 1u);
}

TEST(Ledger, NewWeightsBeginASpanOfWhatIsUnfinished) {
  auto live = sequences(3, 20);
  for (auto& s : live) s->weight_spans.front().weight_version = 4;
  Ledger ledger;
  ledger.open(live, kWorker);
  EXPECT_TRUE(ledger.lend(7, 11, kWorker + 1, true));
  Progress progress;
  for (const int32_t token : {8, 9, 3}) accept(live[0].get(), token);
  for (const int32_t token : {8, 9}) accept(live[1].get(), token);
  progress.add(live[0].get());
  progress.add(live[1].get());
  ASSERT_TRUE(ledger.append(kWorker, progress, kLedgerVocab).ok());
  ASSERT_TRUE(ledger.finish(kWorker, 7, 10, OTR_FINISH_STOP, "").value());
  ledger.reserve_spans();
  ledger.rewind();
  for (const uint64_t version : {5, 6}) {
    ledger.reserve_spans();
    ledger.change_weights(version);
  }
  const LedgerGroup& group = *ledger.find(7);
  const auto spans = [&group](uint32_t sample) {
    const std::unique_ptr<Sequence> restored = restore(group, *group.find(sample));
    std::string text;
    for (const otr_weight_span& span : restored->weight_spans)
      text += std::to_string(span.first_token) + ":" + std::to_string(span.weight_version) + " ";
    return text;
  };
  EXPECT_EQ(spans(10), "0:4 ");  // it is finished
  EXPECT_EQ(spans(11), "0:4 2:6 ");
  EXPECT_EQ(spans(12), "0:6 ");
  ledger.reserve_spans();
  ledger.change_weights(4);
  EXPECT_EQ(spans(11), "0:4 ");  // nothing was drawn in between
  EXPECT_TRUE(group.find(11)->replicas.empty());
  progress.clear();
  accept(live[1].get(), 1);
  progress.add(live[1].get());
  EXPECT_FALSE(ledger.append(kWorker + 1, progress, kLedgerVocab).ok());  // no replica is left to say that
  EXPECT_TRUE(ledger.append(kWorker, progress, kLedgerVocab).ok());
}

TEST(Ledger, AScoreGoesOnBehindWhatItHas) {
  const std::vector<int32_t> tokens = {4, 9, 4, 2};
  otr_score_request r;
  otr_score_request_init(&r, sizeof r);
  r.token_ids = tokens.data();
  r.num_tokens = tokens.size();
  auto made = make_score(r, {.vocab_size = kLedgerVocab, .context_limit = 64, .num_pages = 8, .eos_ids = {}});
  ASSERT_TRUE(made.ok());
  std::vector<std::unique_ptr<Sequence>> live;
  live.push_back(std::move(made.value()));
  live.front()->group->id = 7;
  Ledger ledger;
  ledger.open(live, kWorker);
  const auto score = [&](float logprob) {
    live.front()->logprobs.push_back(logprob);
    live.front()->raw_logprobs.push_back(logprob);
  };
  Progress progress;
  score(-1.0f);
  progress.add(live.front().get());
  ASSERT_TRUE(ledger.append(kWorker, progress, kLedgerVocab).ok());
  const LedgerGroup& group = *ledger.find(7);
  const auto restored = restore(group, *group.find(0));
  EXPECT_EQ(restored->tokens, tokens);
  EXPECT_EQ(restored->logits_from(), live.front()->logits_from());
  EXPECT_FALSE(ledger.finish(kWorker, 7, 0, OTR_FINISH_SCORE, "").ok());  // two are missing
  {
    Ledger again = ledger;
    again.rewind();
    const auto fresh = restore(*again.find(7), *again.find(7)->find(0));
    EXPECT_EQ(fresh->raw_logprobs.size(), 1u);  // of the token that nothing precedes
    restored->rewind();
    EXPECT_EQ(restored->logprobs.size(), 1u);
    EXPECT_EQ(restored->raw_logprobs.size(), 1u);
    EXPECT_EQ(restored->num_reported, fresh->num_reported);
    EXPECT_EQ(restored->logits_from(), fresh->logits_from());
  }
  progress.clear();
  score(-2.0f);
  score(-3.0f);
  progress.add(live.front().get());
  ASSERT_TRUE(ledger.append(kWorker, progress, kLedgerVocab).ok());
  ASSERT_TRUE(ledger.finish(kWorker, 7, 0, OTR_FINISH_SCORE, "").ok());
}

TEST(Ledger, ProgressThatHasRoomAllocatesNothing) {
  auto live = sequences(1, 40);
  Progress progress;
  progress.reserve(4, 40);
  const int32_t* before = progress.tokens.data();
  for (int i = 0; i < 4; ++i) {
    for (int t = 0; t < 10; ++t) accept(live.front().get(), t);
    progress.add(live.front().get());
  }
  EXPECT_EQ(progress.tokens.data(), before);
  progress.add(live.front().get());
  EXPECT_EQ(progress.segments.size(), 4u);  // nothing new
}

}  // namespace
}  // namespace otr
