// Messages are read as they were written; no part of one is taken for a whole, and no field for what it cannot be.

#include "runtime/worker_wire.h"

#include <gtest/gtest.h>

#include <functional>

#include "runtime/page_net_wire.h"
#include "runtime/race.h"
#include "tests/runtime/wire_samples.h"

namespace otr {
namespace {

// Every beginning of a message is refused, and so is one with a byte too many.
void expect_no_part_is_whole(const WireBytes& whole, const std::function<bool(WireView)>& decodes) {
  ASSERT_TRUE(decodes(whole));
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(decodes(WireView(whole).first(size))) << size;
  WireBytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decodes(longer));
}

TEST(WorkerWire, Setup) {
  WireBytes bytes;
  std::vector<int> files;
  const WorkerSetup setup = sample_setup();
  encode_setup(setup, &bytes, &files);
  EXPECT_EQ(files, (std::vector<int>{10, 11, 12, 13, 14}));
  const Result<WorkerSetup> read = decode_setup(bytes, files);
  ASSERT_TRUE(read.ok()) << read.status().message();
  WireBytes again;
  std::vector<int> files_again;
  encode_setup(read.value(), &again, &files_again);
  EXPECT_EQ(again, bytes);
  EXPECT_EQ(files_again, files);
  EXPECT_EQ(read.value().proofs.migrate_at_tick, setup.proofs.migrate_at_tick);
  expect_no_part_is_whole(bytes, [&](WireView in) { return decode_setup(in, files).ok(); });
  EXPECT_FALSE(decode_setup(bytes, std::span(files).first(4)).ok());
  files.push_back(15);
  EXPECT_FALSE(decode_setup(bytes, files).ok());
}

// What the loader refuses, since rotary frequencies would not be finite.
TEST(WorkerWire, SetupOfAConfigThatNoModelHasIsRefused) {
  const auto decodes = [](const std::function<void(ModelConfig*)>& change) {
    WorkerSetup setup = sample_setup();
    change(&setup.target.config);
    WireBytes bytes;
    std::vector<int> files;
    encode_setup(setup, &bytes, &files);
    return decode_setup(bytes, files).ok();
  };
  EXPECT_TRUE(decodes([](ModelConfig*) {}));
  EXPECT_TRUE(decodes([](ModelConfig* c) { c->rope_theta = 1, c->yarn.reset(); }));
  EXPECT_FALSE(decodes([](ModelConfig* c) { c->rope_theta = 1; }));
  EXPECT_FALSE(decodes([](ModelConfig* c) { c->rope_theta = 1e300; }));
  EXPECT_FALSE(decodes([](ModelConfig* c) { c->yarn->factor = 1e300; }));
  EXPECT_FALSE(decodes([](ModelConfig* c) { c->yarn->beta_fast = 0; }));
  EXPECT_FALSE(decodes([](ModelConfig* c) { c->yarn->beta_slow = -1; }));
  EXPECT_TRUE(decodes([](ModelConfig* c) { c->experts.reset(); }));
  EXPECT_TRUE(decodes([](ModelConfig* c) { c->experts->dense_layers = {}; }));
  EXPECT_FALSE(decodes([](ModelConfig* c) { c->experts->experts_per_token = 7; }));
  EXPECT_FALSE(decodes([](ModelConfig* c) { c->experts->num_experts = 0; }));
  EXPECT_FALSE(decodes([](ModelConfig* c) { c->experts->num_experts = 1024, c->num_layers = 65; }));
  EXPECT_FALSE(decodes([](ModelConfig* c) { c->experts->intermediate_size = -5; }));
  for (const std::vector<int32_t>& dense : {std::vector<int32_t>{2}, {-1}, {1, 1}, {1, 0}, {0, 1}})
    EXPECT_FALSE(decodes([&](ModelConfig* c) { c->experts->dense_layers = dense; })) << dense[0];
}

TEST(WorkerWire, Start) {
  for (const bool is_blocked : {false, true}) {
    WireBytes bytes, again;
    const std::unique_ptr<Sequence> s = sample_sequence(is_blocked);
    encode_start(*s, &bytes);
    const Result<std::unique_ptr<Sequence>> read = decode_start(bytes, kSampleLimits);
    ASSERT_TRUE(read.ok()) << read.status().message();
    const Sequence& r = *read.value();
    EXPECT_EQ(r.tokens, s->tokens);
    EXPECT_EQ(r.raw_logprobs.size(), s->raw_logprobs.size());
    EXPECT_EQ(r.penalties.size(), s->penalties.size());
    EXPECT_EQ(r.group->blocked.size(), is_blocked ? 2u : 0u);
    encode_start(r, &again);
    EXPECT_EQ(again, bytes);
    expect_no_part_is_whole(bytes, [&](WireView in) {
      const auto decoded = decode_start(in, kSampleLimits);
      if (decoded.ok()) decoded.value()->group->disband();
      return decoded.ok();
    });
    r.group->disband();
    s->group->disband();
  }
}

TEST(WorkerWire, StartOfWhatDoesNotFitIsRefused) {
  const std::unique_ptr<Sequence> s = sample_sequence(false);
  WireBytes bytes;
  encode_start(*s, &bytes);
  for (const StartLimits& limits : {StartLimits{5, 64, 8}, StartLimits{100, 10, 8}, StartLimits{100, 64, 0}}) {
    EXPECT_FALSE(decode_start(bytes, limits).ok());
  }
  s->logprobs.pop_back();
  s->raw_logprobs.pop_back();
  bytes.clear();
  encode_start(*s, &bytes);
  EXPECT_FALSE(decode_start(bytes, kSampleLimits).ok());
}

TEST(WorkerWire, Report) {
  WireBytes bytes, again;
  const ProcessReport report = sample_report();
  encode_report(report, &bytes);
  ProcessReport read;
  ASSERT_TRUE(decode_report(bytes, 4, &read).ok());
  EXPECT_EQ(read.progress.tokens, report.progress.tokens);
  EXPECT_EQ(read.finished.at(0).error, "why");
  EXPECT_EQ(read.stats->spec.drafters[2].kept_at_pi[3], 9);
  encode_report(read, &again);
  EXPECT_EQ(again, bytes);
  EXPECT_FALSE(decode_report(bytes, 2, &read).ok());  // it gives to worker 3
  bytes.clear();
  ProcessReport small = sample_report();
  small.stats.reset();
  encode_report(small, &bytes);
  expect_no_part_is_whole(bytes, [&](WireView in) { return decode_report(in, 4, &read).ok(); });
  for (const double wrong : {-1.0, std::nan(""), HUGE_VAL}) {
    ProcessReport odd = sample_report();
    odd.stats->busy_seconds = wrong;
    bytes.clear();
    encode_report(odd, &bytes);
    EXPECT_FALSE(decode_report(bytes, 4, &read).ok());
  }
}

TEST(WorkerWire, AReplicaIsOne) {
  const std::unique_ptr<Sequence> s = sample_sequence(false);
  s->rung = 3;
  s->race = std::make_shared<Race>(*s, true);
  WireBytes bytes;
  encode_start(*s, &bytes, {.num_positions = 6, .worker = 2, .generation = 3, .parcel = 4});
  StartPages pages;
  const auto read = decode_start(bytes, kSampleLimits, &pages);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(std::tie(pages.num_positions, pages.worker, pages.generation, pages.parcel), std::tuple(6, 2, 3u, 4u));
  EXPECT_EQ(read.value()->rung, 3);
  EXPECT_TRUE(read.value()->race->leaps());
  EXPECT_FALSE(decode_start(bytes, kSampleLimits).ok());  // where no file can come
  s->rung = 0;
  bytes.clear();
  encode_start(*s, &bytes);
  EXPECT_FALSE(decode_start(bytes, kSampleLimits).ok());
}

TEST(WorkerWire, ProgressAndTicks) {
  const Progress progress = sample_report().progress;
  WireBytes bytes;
  encode_progress(progress, &bytes);
  EXPECT_EQ(decode_progress(bytes, 10).value().tokens, progress.tokens);
  EXPECT_FALSE(decode_progress(bytes, 9).ok());
  expect_no_part_is_whole(bytes, [](WireView in) { return decode_progress(in, 10).ok(); });
  const TickPlan plan{.drafters = 5, .depth = 3, .row_depth = {}, .model_depth = {}, .expected_ms = std::nan("")};
  bytes.clear();
  for (int64_t i = 1; i <= 2; ++i)
    encode_tick({.worker = 0, .number = i, .tick = 0.5, .plan = &plan}, 1'000'000'000 * i, &bytes);
  int64_t number = 0;
  ASSERT_TRUE(decode_ticks(bytes, 3, 4'000'000'000, [&number](const TraceTick& t) {
                EXPECT_EQ(t.number, ++number);
                EXPECT_EQ(t.worker, 3);
                EXPECT_EQ(t.plan->drafters, 5u);
                EXPECT_EQ(t.plan->expected_ms, 0);
                EXPECT_NEAR(t.age, 4 - static_cast<double>(number), 1e-9);
              }).ok());
  EXPECT_EQ(number, 2);
  const auto ignore = [](const TraceTick&) {};
  EXPECT_FALSE(decode_ticks(WireView(bytes).first(bytes.size() - 1), 3, 4'000'000'000, ignore).ok());
  EXPECT_FALSE(decode_ticks(bytes, 3, 1'500'000'000, ignore).ok());  // it has not ended yet
}

TEST(WorkerWire, SmallOnes) {
  WireBytes bytes;
  encode_move({.from = 1, .to = 2, .count = 3, .running = true}, &bytes);
  EXPECT_TRUE(decode_move(bytes, 3).value().running);
  EXPECT_FALSE(decode_move(bytes, 2).ok());
  expect_no_part_is_whole(bytes, [](WireView in) { return decode_move(in, 3).ok(); });
  bytes.clear();
  encode_u64(uint64_t{1} << 40, &bytes);
  EXPECT_EQ(decode_u64(bytes).value(), uint64_t{1} << 40);
  expect_no_part_is_whole(bytes, [](WireView in) { return decode_u64(in).ok(); });
  bytes.clear();
  encode_heartbeat({.turns = 7, .at_rest = true}, &bytes);
  EXPECT_EQ(decode_heartbeat(bytes).value().turns, 7u);
  expect_no_part_is_whole(bytes, [](WireView in) { return decode_heartbeat(in).ok(); });
  bytes.clear();
  encode_ready({.facts = {.num_threads = 2, .num_pages = 3, .activation_bytes = 4}, .load = {.free_places = 5}}, &bytes);
  EXPECT_EQ(decode_ready(bytes).value().load.free_places, 5);
  expect_no_part_is_whole(bytes, [](WireView in) { return decode_ready(in).ok(); });
  bytes.clear();
  encode_lend({.to = 2, .rung = 1, .most = 3, .leaps = true}, &bytes);
  EXPECT_TRUE(decode_lend(bytes, 3).value().leaps);
  EXPECT_FALSE(decode_lend(bytes, 2).ok());
  expect_no_part_is_whole(bytes, [](WireView in) { return decode_lend(in, 3).ok(); });
  bytes.clear();
  encode_roles({.decoupled = true, .setting = {.window = 4, .mode = DraftMode::kCoupled}}, &bytes);
  EXPECT_EQ(decode_roles(bytes).value().setting.window, 4);
  expect_no_part_is_whole(bytes, [](WireView in) { return decode_roles(in).ok(); });
  bytes.clear();
  encode_name({.group = 7, .sample = 3}, &bytes);
  EXPECT_EQ(decode_name(bytes).value().sample, 3u);
  expect_no_part_is_whole(bytes, [](WireView in) { return decode_name(in).ok(); });
  bytes.clear();
  const NetOrder order{.kind = NetOrder::Kind::kMove,
                       .generation = 3,
                       .id = {std::byte{7}},
                       .size = 4,
                       .rank = 2,
                       .pull = {.number = 5, .parcel = 6, .from = 1, .first = 7, .count = 8},
                       .peer = 3,
                       .sends = true};
  encode_net_order(order, &bytes);
  EXPECT_EQ(decode_net_order(bytes, 2).value().pull.count, 8);
  EXPECT_TRUE(decode_net_order(bytes, 2).value().sends);
  EXPECT_FALSE(decode_net_order(bytes, 1).ok());
  expect_no_part_is_whole(bytes, [](WireView in) { return decode_net_order(in, 2).ok(); });
  bytes.clear();
  encode_net_news({.kind = NetNews::Kind::kPull, .generation = 3, .why = "so", .pull = order.pull}, &bytes);
  EXPECT_EQ(decode_net_news(bytes, 2).value().why, "so");
  EXPECT_FALSE(decode_net_news(bytes, 1).ok());
  expect_no_part_is_whole(bytes, [](WireView in) { return decode_net_news(in, 2).ok(); });
  bytes.clear();
  encode_net_news({.kind = NetNews::Kind::kPull, .generation = 3, .why = "", .pull = {}}, &bytes);
  EXPECT_FALSE(decode_net_news(bytes, 2).ok());  // of nothing
  bytes.clear();
  encode_failed(Status(StatusCode::kOutOfMemory, "no room"), &bytes);
  EXPECT_EQ(decode_failed(bytes).code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(decode_failed(bytes).message(), "no room");
  EXPECT_EQ(decode_failed(WireView(bytes).first(6)).code(), StatusCode::kBadInput);
}

}  // namespace
}  // namespace otr
