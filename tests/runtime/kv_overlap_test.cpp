// A pass begins while its last pages come: it finds what it would have found later, or nothing of it is kept.
#include "runtime/kv_overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "graph/row_batch_builder.h"
#include "kernels/base/clock.h"
#include "runtime/engine.h"
#include "runtime/kv_file.h"
#include "runtime/kv_rebuild.h"
#include "tests/runtime/engine_runs.h"
#include "tests/runtime/every_path.h"
#include "tests/runtime/mixed_requests.h"
#include "tests/runtime/test_engine.h"

namespace otr {
namespace {

// ---- One sequence between two models -------------------------------------------------------------------------------------

// A lease of which a layer never comes, though it says so.
class ForgetfulLease final : public KvLease {
 public:
  ForgetfulLease(std::shared_ptr<KvLease> lease, int32_t forgotten) : lease_(std::move(lease)), forgotten_(forgotten) {}
  int32_t num_pages() const override { return lease_->num_pages(); }
  int32_t num_positions() const override { return lease_->num_positions(); }
  bool copy(int32_t first, std::span<const PageId> to, ModelRunner* target) override { return lease_->copy(first, to, target); }
  bool has_layers() const override { return true; }
  bool copy_layer(int32_t layer, int32_t first, std::span<const PageId> to, ModelRunner* target) override {
    return layer == forgotten_ || lease_->copy_layer(layer, first, to, target);
  }
  void end() override { lease_->end(); }
  bool over() const override { return lease_->over(); }
  TickSpeed speed() const override { return lease_->speed(); }

 private:
  const std::shared_ptr<KvLease> lease_;
  const int32_t forgotten_;
};

// Does something before a layer's turn.
class BeforeLayer final : public LayerGate {
 public:
  BeforeLayer(LayerGate* gate, int32_t layer, std::function<void()> act) : gate_(*gate), layer_(layer), act_(std::move(act)) {}
  void before_layer(int32_t layer) override {
    if (layer == layer_) act_();
    gate_.before_layer(layer);
  }

 private:
  LayerGate& gate_;
  const int32_t layer_;
  const std::function<void()> act_;
};

class Overlap : public testing::Test {
 protected:
  static constexpr int32_t kPages = 12, kLayers = 3, kTokens = 300, kHeld = 5;
  static constexpr double kTick = 0.1;  // seconds

  Overlap() {
    pace_.begin();
    s_.group = std::make_shared<Group>();
    s_.group->num_prompt = 70;
    s_.slot = 0;
    s_.tokens = random_tokens(1, kTokens, 97);
    s_.max_tokens = kTokens + 5;
    s_.pages.reserve(kPages);
    run(&from(), 0, kTokens - 1);
    run(&from(), kTokens - 1, kTokens);
    expected_ = logits(from());
    s_.num_computed = kTokens - 1;
  }
  ~Overlap() override { pace_.end(); }

  static std::unique_ptr<Device> device(const TinyModel& model, const ModelRunner* share) {
    DeviceOptions o;
    o.num_threads = 1;
    o.target = {.path = model.path(),
                .num_pages = kPages,
                .bucket = {.max_rows = kTokens, .max_logit_rows = 4},
                .share_weights = share};
    Result<std::unique_ptr<Device>> made = Device::create(o);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made.value());
  }

  // A link that carries all of the sequence's pages in so many seconds.
  RebuildOptions link(double seconds) const {
    return {.link_bytes_per_second = kHeld * static_cast<double>(to_->target().page_bytes()) / seconds};
  }
  // By the pace's clock, whose time passes in wait() alone.
  std::unique_ptr<KvRebuild> rebuild(ModelRunner* at, WorkerMailbox* box, const RebuildOptions& options) {
    auto made = std::make_unique<KvRebuild>(at, box, options, &pace_);
    made->end_tick(100, 1e6);  // computing takes forever
    made->end_tick(1, kTick);
    return made;
  }
  void wait(double seconds) { pace_.hold(1e3 * seconds); }

  // Gives the sequence to the borrower, whose link brings the last two pages, and then the first three within a tick.
  void give(const RebuildOptions& options) {
    lender_ = rebuild(&from(), &from_box_, options);
    borrower_ = rebuild(&to(), &to_box_, options);
    lender_->lend(&s_);
    s_.pages.release_all(&from().page_pool());
    s_.num_computed = 0;
  }
  void bring_two_pages(double link_seconds) {
    borrower_->begin_tick();
    EXPECT_EQ(borrower_->advance(&s_), 0);
    EXPECT_FALSE(borrower_->comes_in_pass(s_)) << "too much is left";
    wait(0.45 * link_seconds);
    borrower_->begin_tick();
    EXPECT_EQ(borrower_->advance(&s_), 0);
  }
  void expect_begun() {
    EXPECT_TRUE(borrower_->comes_in_pass(s_));
    EXPECT_EQ(s_.num_computed, kTokens - 1);
    EXPECT_EQ(s_.pages.num_pages(), kHeld);
    EXPECT_EQ(s_.num_copied_pages(), 0);
  }
  void expect_undone() {
    EXPECT_FALSE(borrower_->comes_in_pass(s_));
    EXPECT_EQ(s_.num_computed, 0);
    EXPECT_EQ(s_.runs_to, 0);
    EXPECT_EQ(s_.pages.num_pages(), 0);
    EXPECT_EQ(s_.num_copied_pages(), 2);
    EXPECT_EQ(to().page_pool().num_in_use(), 2);
  }

  // Rows of these positions; the last one's logits.
  void run(ModelRunner* at, int32_t begin, int32_t end, LayerGate* gate = nullptr) {
    PageWork work;
    s_.pages.prepare_write(&at->prefix_cache(), &at->page_pool(), begin, end, &work);
    at->prepare(work);
    RowBatchBuilder rows({.max_rows = kTokens, .max_segments = 1, .max_logit_rows = 4, .max_pages_per_sequence = kPages},
                         at->tile_rows());
    rows.add(std::span(s_.tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), begin,
             s_.pages.pages(), end - 1);
    at->run(rows.batch(), gate);
  }
  std::vector<uint32_t> logits(const ModelRunner& at) const {
    return bits_of(at.program().logits(), static_cast<size_t>(at.config().vocab_size));
  }
  int32_t end_pass() {
    int32_t copied = -1, none = -1;
    EXPECT_EQ(borrower_->end_pass(&copied), &s_);
    EXPECT_EQ(borrower_->end_pass(&none), nullptr);
    return copied;
  }
  // What is lost is computed, up to the pages that were copied before.
  void expect_computed_anew() {
    for (int tick = 0; s_.lease != nullptr && tick < 100; ++tick) {
      borrower_->begin_tick();
      borrower_->advance(&s_);
      if (s_.lease == nullptr) break;
      ASSERT_GT(s_.runs_to, s_.num_computed);
      run(&to(), s_.num_computed, s_.runs_to);
      s_.num_computed = s_.runs_to;
    }
    EXPECT_EQ(s_.num_computed, kTokens - 1);
    run(&to(), kTokens - 1, kTokens);
    EXPECT_EQ(logits(to()), expected_);
  }
  void expect_all_back() {
    s_.pages.release_all(&to().page_pool());
    if (lender_ != nullptr) lender_->take_back();
    EXPECT_EQ(to().page_pool().num_free(), kPages);
    EXPECT_EQ(from().page_pool().num_free(), kPages);
  }

  ModelRunner& from() { return from_->target(); }
  ModelRunner& to() { return to_->target(); }

  const TinyModel model_{{.num_layers = kLayers, .num_kv_heads = 2}};
  const std::unique_ptr<Device> from_ = device(model_, nullptr), to_ = device(model_, &from_->target());
  PaceClock clock_{0, 1};
  Pace pace_{&clock_};
  WorkerMailbox from_box_, to_box_;
  std::unique_ptr<KvRebuild> lender_, borrower_;
  Sequence s_;
  std::vector<uint32_t> expected_;
};

TEST_F(Overlap, APassFindsWhatItWouldHaveFoundLater) {
  give(link(0.15));
  bring_two_pages(0.15);
  expect_begun();
  run(&to(), kTokens - 1, kTokens, borrower_->gate());
  EXPECT_EQ(logits(to()), expected_);
  // 2.75 pages are left, of 30 ms each: the first layer comes after 0.75 / 3 of them … and the last one with all, before the
  // pass is over.
  const double first = 1e3 * (1.0 - 0.25) * 0.03;
  EXPECT_NEAR(borrower_->held_ms(1e3 * kTick), first + 1e3 * kTick, 1e-6);
  EXPECT_NEAR(borrower_->waited_seconds(), 1e-3 * first, 1e-9);
  EXPECT_EQ(end_pass(), kTokens - 1);
  EXPECT_EQ(s_.lease, nullptr);
  EXPECT_EQ(s_.runs_to, Sequence::kEverything);
  EXPECT_EQ(borrower_->gate(), nullptr);
  expect_all_back();
}

TEST_F(Overlap, ALayerThatDoesNotComeLosesThePass) {
  for (int32_t layer = 0; layer <= kLayers; ++layer) {
    SCOPED_TRACE(layer);
    run(&from(), 0, kTokens - 1);
    s_.num_computed = kTokens - 1;
    give(link(0.15));
    bring_two_pages(0.15);
    expect_begun();
    ASSERT_NE(borrower_->gate(), nullptr);
    // The lender takes its pages back, and writes on them.
    BeforeLayer gate(borrower_->gate(), layer, [&] {
      EXPECT_TRUE(lender_->reclaim());
      PageWork work;
      for (PageId page = 0; page < kPages; ++page) work.zero.push_back(page);
      from().prepare(work);
    });
    run(&to(), kTokens - 1, kTokens, &gate);
    const bool lost = layer < kLayers;
    EXPECT_EQ(logits(to()) == expected_, !lost);
    EXPECT_EQ(end_pass(), lost ? 0 : kTokens - 1);
    if (lost) {
      expect_undone();
      expect_computed_anew();
    }
    expect_all_back();
  }
}

// The inverse: what the lost layers would have brought is part of the result, so that keeping such rows would be found.
TEST_F(Overlap, ALayerThatIsForgottenIsSeen) {
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    run(&from(), 0, kTokens - 1);
    s_.num_computed = kTokens - 1;
    give(link(0.15));
    s_.lease = std::make_shared<ForgetfulLease>(s_.lease, layer);
    bring_two_pages(0.15);
    expect_begun();
    run(&to(), kTokens - 1, kTokens, borrower_->gate());
    EXPECT_EQ(end_pass(), kTokens - 1);
    EXPECT_NE(logits(to()), expected_) << layer;
    expect_all_back();
  }
}

TEST_F(Overlap, WhoHasNoRowsInThePassGoesOnAsBefore) {
  give(link(0.15));
  bring_two_pages(0.15);
  expect_begun();
  const RowRun other{.slot = 7, .begin = 0, .end = 1};
  borrower_->begin_pass({&other, 1});
  expect_undone();
  EXPECT_EQ(borrower_->gate(), nullptr);
  // The link's time is not lost: a quarter of a page was there, three quarters come.
  wait(0.76 * 0.03);
  borrower_->begin_tick();
  borrower_->advance(&s_);
  expect_begun();
  const RowRun own{.slot = 0, .begin = kTokens - 1, .end = kTokens};
  borrower_->begin_pass({&own, 1});
  run(&to(), kTokens - 1, kTokens, borrower_->gate());
  EXPECT_EQ(logits(to()), expected_);
  EXPECT_NEAR(borrower_->held_ms(1e3 * kTick), 1e3 * kTick + 0.66 * 30, 1);
  EXPECT_EQ(end_pass(), kTokens - 1);
  expect_all_back();
}

TEST_F(Overlap, WhoIsDroppedInBetweenGivesEverythingBack) {
  give(link(0.15));
  bring_two_pages(0.15);
  expect_begun();
  borrower_->drop(&s_);
  EXPECT_EQ(borrower_->gate(), nullptr);
  EXPECT_EQ(s_.lease, nullptr);
  expect_all_back();
}

// The first layer takes 22 ms, and a tick 100: it is worth it among three samples, and not among 300.
TEST_F(Overlap, OthersAreNotHeldUpForMoreThanIsGained) {
  give(link(0.15));
  bring_two_pages(0.15);
  expect_begun();
  borrower_->begin_pass({});
  borrower_->begin_tick();
  borrower_->advance(&s_, 300);
  EXPECT_FALSE(borrower_->comes_in_pass(s_));
  EXPECT_EQ(s_.num_computed, 0);
  borrower_->advance(&s_, 3);
  EXPECT_TRUE(borrower_->comes_in_pass(s_));
  borrower_->drop(&s_);
  expect_all_back();
}

TEST_F(Overlap, PagesComeWholeWhereThatIsAsked) {
  RebuildOptions options = link(0.15);
  options.whole_pages = true;
  give(options);
  bring_two_pages(0.15);
  EXPECT_FALSE(borrower_->comes_in_pass(s_));
  borrower_->drop(&s_);
  expect_all_back();
}

TEST_F(Overlap, AFileHasLayersToo) {
  OwnedFd file = write_kv_file(5, s_.pages.pages(), kTokens - 1, &from());
  ASSERT_GE(file.get(), 0);
  s_.pages.release_all(&from().page_pool());
  s_.num_computed = 0;
  auto opened = KvFile::open(std::move(file), 5, kTokens - 1, to().kv_layout());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  borrower_ = rebuild(&to(), &to_box_, link(0.15));
  ASSERT_TRUE(KvRebuild::take(std::move(opened.value()), &s_));
  bring_two_pages(0.15);
  expect_begun();
  run(&to(), kTokens - 1, kTokens, borrower_->gate());
  EXPECT_EQ(logits(to()), expected_);
  EXPECT_EQ(end_pass(), kTokens - 1);
  expect_all_back();
}

// By the wall's clock the pass itself waits; but where this thread is as late as the link is slow, over a slower one.
TEST_F(Overlap, APassWaitsForItsLayers) {
  double waited = 0;
  for (double seconds = kSanitized ? 0.5 : 0.06; waited == 0 && seconds < 10; seconds *= 2) {
    run(&from(), 0, kTokens - 1);
    s_.num_computed = kTokens - 1;
    const RebuildOptions options = link(seconds);
    lender_ = std::make_unique<KvRebuild>(&from(), &from_box_, options);
    borrower_ = std::make_unique<KvRebuild>(&to(), &to_box_, options);
    for (KvRebuild* end : {lender_.get(), borrower_.get()}) {
      end->end_tick(100, 1e6);
      end->end_tick(1, 20.0);  // whatever is left comes within a tick
    }
    lender_->lend(&s_);
    s_.pages.release_all(&from().page_pool());
    s_.num_computed = 0;
    const Stopwatch clock;
    borrower_->begin_tick();
    EXPECT_EQ(borrower_->advance(&s_), 0);
    expect_begun();
    run(&to(), kTokens - 1, kTokens, borrower_->gate());
    EXPECT_GT(clock.seconds(), 0.99 * seconds);
    waited = borrower_->waited_seconds();
    EXPECT_EQ(logits(to()), expected_);
    EXPECT_EQ(end_pass(), kTokens - 1);
    expect_all_back();
  }
  EXPECT_GT(waited, 0);
}

// ---- Engines -------------------------------------------------------------------------------------------------------------

class OverlapRolls : public EveryPath {
 protected:
  void SetUp() override {
    EveryPath::SetUp();
    for (uint32_t i = 0; i < (kSanitized ? 3u : 6u); ++i) {
      Request r(random_tokens(i / 2, 150 + 83 * i, model_.shape().vocab_size));
      r.n = 1 + static_cast<int32_t>(i % 3);
      r.stream = 5 + i;
      r.sampling.max_new_tokens = 30 + static_cast<int32_t>(i * 41 % 60);
      r.sampling.ignore_eos = 1;
      if (i % 3 == 1) r.sampling.repetition_penalty = 1.2f;
      requests_.push_back(r);
    }
  }

  Outputs run(int32_t num_workers, const std::string& policy, const WorkerProofs& proofs) {
    EngineOptions o;
    o.device.isa = GetParam();
    o.device.num_threads = num_workers;
    o.device.target.path = model_.path();
    o.device.target.kv_bytes = model_.kv_bytes(2048 * num_workers);
    o.num_workers = num_workers;
    o.max_batch = 32;
    o.prefill_chunk = 128;
    o.policy = policy;
    o.proofs = proofs;
    Result<std::unique_ptr<Engine>> created = Engine::create(o);
    if (!created.ok()) throw std::runtime_error(created.status().message());
    const std::unique_ptr<Engine>& e = created.value();
    for (size_t i = 0; i < requests_.size(); ++i) {
      otr_group_request g;
      otr_group_request_init(&g, sizeof g);
      g.prompt_token_ids = requests_[i].prompt.data();
      g.num_prompt_tokens = requests_[i].prompt.size();
      g.n = requests_[i].n;
      g.stream = requests_[i].stream;
      g.tag = i;
      g.sampling = &requests_[i].sampling;
      EXPECT_TRUE(e->submit(g).ok());
    }
    Outputs outputs;
    for (;;) {
      const Result<std::unique_ptr<Sequence>> finished = e->wait(120'000);
      if (!finished.ok()) break;
      const Sequence& s = *finished.value();
      const size_t n = s.raw_logprobs.size();
      outputs[{s.group->tag, s.sample}] = {{s.tokens.begin() + s.num_prompt(), s.tokens.end()},
                                           bits_of(s.logprobs.data(), n),
                                           bits_of(s.raw_logprobs.data(), n),
                                           s.finish_reason,
                                           s.error};
    }
    const auto stats = nlohmann::json::parse(e->stats_json());
    EXPECT_EQ(stats["kv_pages_in_use"], 0);
    overlaps_ = stats["kv_overlaps"].get<int64_t>();
    lost_ = stats["kv_overlaps_lost"].get<int64_t>();
    return outputs;
  }

  static constexpr int32_t kLayers = 3;
  const TinyModel model_{{.num_layers = kLayers}};
  std::vector<Request> requests_;
  int64_t overlaps_ = 0, lost_ = 0;
};

// At links of several rates, and with the copies lost before every layer of every pass, beside drafts and with pages that
// lenders take back.
TEST_P(OverlapRolls, ChangeNothing) {
  const Outputs plain = run(1, "off", {});
  int64_t overlaps = 0, lost = 0;
  const bool few = kSanitized || std::string(GetParam()) == "cpu-scalar";
  for (const double pages_per_second : few ? std::vector<double>{5e4} : std::vector<double>{2e3, 5e4}) {
    for (int32_t layer = -1; layer < kLayers; layer += kSanitized ? 2 : 1) {
      const RebuildOptions rebuild{
          .link_bytes_per_second = pages_per_second * static_cast<double>(model_.layout().page_bytes()),
          .revoke_every = layer == 1 ? 7 : 0,
          .revoke_at_layer = layer};
      const WorkerProofs proofs{.migrate_every = 4, .migration_seed = 1, .rebuild = rebuild};
      EXPECT_EQ(difference(plain, run(3, layer == 2 ? "fixed:self:3" : "off", proofs)), "")
          << pages_per_second << " pages a second, layer " << layer;
      EXPECT_EQ(layer < 0 ? lost_ : overlaps_, 0);
      overlaps += overlaps_;
      lost += lost_;
    }
  }
  EXPECT_GT(overlaps, 0);
  EXPECT_GT(lost, 0);
}

OTR_INSTANTIATE_EVERY_PATH(OverlapRolls);

}  // namespace
}  // namespace otr
