// Sequences that move take their keys and values along, from both ends, and nothing else changes.
#include "runtime/kv_rebuild.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "runtime/engine.h"
#include "runtime/kv_file.h"
#include "tests/runtime/every_path.h"
#include "tests/runtime/mixed_requests.h"

namespace otr {
namespace {

// ---- One sequence between two models -------------------------------------------------------------------------------------

class TwoPlaces : public testing::Test {
 protected:
  static constexpr int32_t kPages = 12;

  void SetUp() override { pace_.begin(); }

  static std::unique_ptr<Device> device(const TinyModel& model, const ModelRunner* share) {
    DeviceOptions o;
    o.num_threads = 1;
    o.target = {
        .path = model.path(), .num_pages = kPages, .bucket = {.max_rows = 64, .max_logit_rows = 4}, .share_weights = share};
    Result<std::unique_ptr<Device>> made = Device::create(o);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made.value());
  }

  // `num_pages` pages of random keys and values, of which the last one is begun.
  void compute(Sequence* s, int32_t num_pages) {
    s->group = std::make_shared<Group>();
    s->group->num_prompt = 70;
    s->tokens = random_tokens(1, static_cast<size_t>(num_pages * kPageTokens - 10), 97);
    s->max_tokens = s->num_tokens() + 5;
    s->pages.reserve(kPages);
    PageWork work;
    s->num_computed = s->num_tokens() - 1;
    s->pages.prepare_write(&from().prefix_cache(), &from().page_pool(), 0, s->num_computed, &work);
    std::mt19937 random(5);
    contents_.resize(static_cast<size_t>(num_pages * from().kv_layout().page_elements()));
    for (Element& x : contents_) x = to_element(static_cast<float>(random() % 1000) / 100.0f);
    EXPECT_TRUE(from().write_pages(s->pages.pages(), contents_.data()).ok());
  }
  // As Worker::give() does.
  void give(KvRebuild* lender, Sequence* s) {
    lender->lend(s);
    s->pages.release_all(&from().page_pool());
    s->num_computed = 0;
  }
  // The front computes up to its bound, with the right numbers.
  void compute_front(Sequence* s) {
    const int32_t end = std::min(s->runs_to, s->num_tokens() - 1);
    if (end <= s->num_computed) return;
    PageWork work;
    s->pages.prepare_write(&to().prefix_cache(), &to().page_pool(), s->num_computed, end, &work);
    computed_ += end - s->num_computed;
    s->num_computed = end;
    EXPECT_TRUE(to().write_pages(s->pages.pages(), contents_.data()).ok());
  }
  void expect_the_same(const Sequence& s) {
    std::vector<Element> found(contents_.size());
    ASSERT_EQ(s.pages.num_pages() * to().kv_layout().page_elements(), static_cast<int64_t>(contents_.size()));
    EXPECT_TRUE(to().read_pages(s.pages.pages(), found.data()).ok());
    EXPECT_EQ(std::memcmp(found.data(), contents_.data(), contents_.size() * sizeof(Element)), 0);
  }
  void expect_all_back(Sequence* s) {
    s->pages.release_all(&to().page_pool());
    EXPECT_EQ(to().page_pool().num_free(), kPages);
    EXPECT_EQ(from().page_pool().num_free(), kPages);
  }

  // Of a clock that stands still but for this, and a little more: what a link brings meanwhile does not depend on the machine.
  void pass(double seconds) { pace_.hold(1001 * seconds); }

  ModelRunner& from() { return from_->target(); }
  ModelRunner& to() { return to_->target(); }

  const TinyModel model_{{.num_layers = 2, .num_kv_heads = 2}};
  const std::unique_ptr<Device> from_ = device(model_, nullptr), to_ = device(model_, &from());
  PaceClock clock_{0, 1};
  Pace pace_{&clock_};
  WorkerMailbox from_box_, to_box_;
  std::vector<Element> contents_;
  int32_t computed_ = 0;
};

TEST_F(TwoPlaces, AllIsCopiedWhereThatIsQuicker) {
  KvRebuild lender(&from(), &from_box_, {}), borrower(&to(), &to_box_, {});
  Sequence s;
  compute(&s, 6);
  const int32_t positions = s.num_computed;
  give(&lender, &s);
  EXPECT_EQ(from().page_pool().num_leased(), 6);
  EXPECT_EQ(from().page_pool().num_in_use(), 0);
  EXPECT_FALSE(lender.take_back());
  int32_t copied = 0;
  for (int tick = 0; tick < 10 && s.lease != nullptr; ++tick) {
    borrower.begin_tick();
    copied += borrower.advance(&s);
  }
  EXPECT_EQ(copied, positions);
  EXPECT_EQ(s.num_computed, positions);
  EXPECT_EQ(s.runs_to, Sequence::kEverything);
  expect_the_same(s);
  EXPECT_TRUE(lender.take_back());
  expect_all_back(&s);
}

// At memory speed the copies come over several ticks, as pages are free, and nothing is computed meanwhile: that would take
// longer. What the link brings is waited for by the clock; where it has brought a page that finds no room, nobody knows how
// long that takes.
TEST_F(TwoPlaces, RoomIsNotWaitedForByTheClock) {
  const double page_seconds = 0.05;
  KvRebuild lender(&from(), &from_box_, {});
  KvRebuild borrower(
      &to(), &to_box_,
      {.mode = RebuildMode::kTransfer, .link_bytes_per_second = static_cast<double>(to().page_bytes()) / page_seconds});
  Sequence s;
  compute(&s, 6);
  give(&lender, &s);
  const auto advance = [&] {
    borrower.begin_tick();
    borrower.advance(&s);
    return borrower.seconds_to_wait();
  };
  const double next = advance();
  EXPECT_GT(next, 0);
  EXPECT_LE(next, page_seconds);
  std::vector<PageId> taken;
  while (to().prefix_cache().num_available() > 0) taken.push_back(to().prefix_cache().allocate());
  std::this_thread::sleep_for(std::chrono::duration<double>(2 * page_seconds));
  EXPECT_EQ(advance(), 0);
  EXPECT_EQ(s.num_copied_pages(), 0);
  for (const PageId page : taken) to().page_pool().release(page);
  for (int tick = 0; tick < 1000 && s.lease != nullptr; ++tick) {
    std::this_thread::sleep_for(std::chrono::duration<double>(std::max(advance(), 1e-3)));
    compute_front(&s);
  }
  EXPECT_EQ(s.lease, nullptr);
  lender.take_back();
  expect_all_back(&s);
}

TEST_F(TwoPlaces, NothingIsComputedWhileCopiesComeAtMemorySpeed) {
  KvRebuild lender(&from(), &from_box_, {}), borrower(&to(), &to_box_, {});
  Sequence s;
  compute(&s, 8);
  give(&lender, &s);
  int32_t ticks = 0;
  for (; s.lease != nullptr && ticks < 100; ++ticks) {
    borrower.begin_tick();
    EXPECT_FALSE(borrower.has_copied());
    borrower.advance(&s);
    EXPECT_TRUE(borrower.has_copied());  // its worker does not wait before the next tick
    compute_front(&s);
  }
  EXPECT_GT(ticks, 1);
  EXPECT_EQ(s.lease, nullptr);
  EXPECT_EQ(computed_, 0);
  borrower.begin_tick();
  EXPECT_FALSE(borrower.has_copied());
  expect_the_same(s);
  lender.take_back();
  expect_all_back(&s);
}

// A worker that has not computed anything yet computes a page to see how quick it is, and not half of all.
TEST_F(TwoPlaces, AnUnknownRateIsMeasuredWithAPage) {
  const RebuildOptions slow{.link_bytes_per_second = static_cast<double>(from().page_bytes()) * 200};
  KvRebuild lender(&from(), &from_box_, slow), borrower(&to(), &to_box_, slow);
  Sequence s;
  compute(&s, 8);
  give(&lender, &s);
  borrower.begin_tick();
  EXPECT_EQ(borrower.advance(&s), 0);
  EXPECT_EQ(s.runs_to, kPageTokens);
  borrower.drop(&s);
  lender.take_back();
  expect_all_back(&s);
}

TEST_F(TwoPlaces, TheEndsMeet) {
  // A page an iteration comes over the link, a page and a half is computed.
  const RebuildOptions slow{.link_bytes_per_second = static_cast<double>(from().page_bytes()) * 200};
  KvRebuild lender(&from(), &from_box_, slow, &pace_), borrower(&to(), &to_box_, slow, &pace_);
  Sequence s;
  compute(&s, 8);
  const int32_t positions = s.num_computed;
  give(&lender, &s);
  int32_t copied = 0, ticks = 0;
  for (; s.lease != nullptr && ticks < 1000; ++ticks) {
    borrower.begin_tick();
    copied += borrower.advance(&s);
    if (s.lease == nullptr) break;
    s.runs_to = std::min(s.runs_to, s.num_computed + 96);
    const int32_t before = computed_;
    compute_front(&s);
    pass(5e-3);
    borrower.end_tick(computed_ - before, 5e-3);
  }
  EXPECT_EQ(copied + computed_, positions);
  EXPECT_GT(copied, 64);
  EXPECT_GT(computed_, 64);
  expect_the_same(s);
  lender.take_back();
  expect_all_back(&s);
}

// Between processes they go in a file, and its giver needs its pages no more.
TEST_F(TwoPlaces, AllComesInAFile) {
  KvRebuild borrower(&to(), &to_box_, {});
  Sequence s;
  compute(&s, 6);
  const int32_t positions = s.num_computed;
  OwnedFd file = write_kv_file(5, s.pages.pages(), positions, &from());
  ASSERT_GE(file.get(), 0);
  s.pages.release_all(&from().page_pool());
  s.num_computed = 0;
  auto opened = KvFile::open(std::move(file), 5, positions, to().kv_layout());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  ASSERT_TRUE(KvRebuild::take(std::move(opened.value()), &s));
  int32_t copied = 0;
  for (int tick = 0; tick < 10 && s.lease != nullptr; ++tick) {
    borrower.begin_tick();
    copied += borrower.advance(&s);
  }
  EXPECT_EQ(copied, positions);
  expect_the_same(s);
  expect_all_back(&s);
}

// A file that is not sealed, whole, undamaged and this sequence's is not taken.
TEST_F(TwoPlaces, OnlyAWholeFileIsTaken) {
  Sequence s;
  compute(&s, 3);
  const int32_t positions = s.num_computed;
  const OwnedFd file = write_kv_file(5, s.pages.pages(), positions, &from());
  s.pages.release_all(&from().page_pool());
  const auto refusal = [&](OwnedFd f, uint64_t name, int32_t num_positions) {
    const auto opened = KvFile::open(std::move(f), name, num_positions, to().kv_layout());
    return opened.ok() ? std::string() : opened.status().message();
  };
  EXPECT_EQ(refusal(file.duplicate(), 5, positions), "");
  EXPECT_NE(refusal(file.duplicate(), 6, positions).find("another sequence's"), std::string::npos);
  EXPECT_NE(refusal(file.duplicate(), 5, positions - 1).find("another sequence's"), std::string::npos);
  EXPECT_NE(refusal(file.duplicate(), 5, positions - 64).find("another size"), std::string::npos);
  char byte = 1;
  EXPECT_EQ(pwrite(file.get(), &byte, 1, 100), -1);  // nobody can change it any more
  struct stat info;
  ASSERT_EQ(fstat(file.get(), &info), 0);
  std::vector<std::byte> bytes(static_cast<size_t>(info.st_size));
  ASSERT_EQ(pread(file.get(), bytes.data(), bytes.size(), 0), info.st_size);
  const auto copy = [&](size_t damaged, size_t size, bool sealed) {
    OwnedFd made(memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    std::vector<std::byte> other = bytes;
    if (damaged < other.size()) other[damaged] ^= std::byte{1};
    EXPECT_EQ(pwrite(made.get(), other.data(), size, 0), static_cast<ssize_t>(size));
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
    EXPECT_TRUE(!sealed || fcntl(made.get(), F_ADD_SEALS, seals) == 0);
    return made;
  };
  const size_t all = bytes.size();
  EXPECT_EQ(refusal(copy(all, all, true), 5, positions), "");
  EXPECT_NE(refusal(copy(all, all, false), 5, positions).find("not sealed"), std::string::npos);
  EXPECT_NE(refusal(copy(all, all - 1, true), 5, positions).find("another size"), std::string::npos);
  EXPECT_NE(refusal(copy(20, all, true), 5, positions).find("header"), std::string::npos);
  EXPECT_NE(refusal(copy(all - 1, all, true), 5, positions).find("pages are damaged"), std::string::npos);
  EXPECT_NE(refusal(OwnedFd(), 5, positions), "");
}

TEST_F(TwoPlaces, WhatIsTakenBackIsComputed) {
  const RebuildOptions slow{.link_bytes_per_second = static_cast<double>(from().page_bytes()) * 500};
  KvRebuild lender(&from(), &from_box_, slow, &pace_), borrower(&to(), &to_box_, slow, &pace_);
  Sequence s;
  compute(&s, 6);
  const int32_t positions = s.num_computed;
  give(&lender, &s);
  for (int tick = 0; s.num_copied_pages() == 0 && tick < 1000; ++tick) {
    borrower.begin_tick();
    borrower.advance(&s);
    pass(2e-3);
  }
  const int32_t had = s.num_copied_pages();
  ASSERT_GT(had, 0);
  ASSERT_LT(had, 6);
  EXPECT_TRUE(lender.reclaim());
  EXPECT_EQ(from().page_pool().num_free(), kPages);
  // The lender writes on its pages again.
  std::vector<Element> other(contents_.size());
  const std::vector<PageId> pages{0, 1, 2, 3, 4, 5};
  ASSERT_TRUE(from().write_pages(pages, other.data()).ok());
  int32_t copied = 0;
  for (int tick = 0; s.lease != nullptr && tick < 100; ++tick) {
    pass(2e-3);
    borrower.begin_tick();
    copied += borrower.advance(&s);
    compute_front(&s);
  }
  EXPECT_EQ(s.num_computed, positions);
  EXPECT_EQ(copied, positions - (6 - had) * kPageTokens);
  expect_the_same(s);
  EXPECT_FALSE(lender.take_back());
  expect_all_back(&s);
}

TEST_F(TwoPlaces, WhoIsDroppedGivesEverythingBack) {
  const RebuildOptions slow{.link_bytes_per_second = static_cast<double>(from().page_bytes()) * 500};
  KvRebuild lender(&from(), &from_box_, slow, &pace_), borrower(&to(), &to_box_, slow, &pace_);
  Sequence s;
  compute(&s, 6);
  give(&lender, &s);
  for (int tick = 0; s.num_copied_pages() == 0 && tick < 1000; ++tick) {
    borrower.begin_tick();
    borrower.advance(&s);
    pass(2e-3);
  }
  ASSERT_GT(s.num_copied_pages(), 0);
  ASSERT_NE(s.lease, nullptr);
  WorkerOrders orders;
  borrower.drop(&s);
  EXPECT_TRUE(from_box_.take(false, &orders, [] {}));
  EXPECT_TRUE(orders.lease_ended);
  EXPECT_TRUE(lender.take_back());
  EXPECT_EQ(s.runs_to, Sequence::kEverything);
  expect_all_back(&s);
}

TEST_F(TwoPlaces, TooLittleToLend) {
  KvRebuild lender(&from(), &from_box_, {}), off(&from(), &from_box_, {.mode = RebuildMode::kRecompute});
  Sequence s;
  compute(&s, 2);
  off.lend(&s);
  EXPECT_EQ(s.lease, nullptr);
  s.num_computed = kPageTokens - 1;
  lender.lend(&s);
  EXPECT_EQ(s.lease, nullptr);
  s.pages.release_all(&from().page_pool());
  EXPECT_EQ(from().page_pool().num_free(), kPages);
}

// ---- Engines -------------------------------------------------------------------------------------------------------------

struct RebuildVariant {
  int32_t num_workers = 1;
  std::string policy = "off";
  WorkerProofs proofs = {};
  int64_t num_pages = 2048;  // of a worker
  int32_t chunk = 128;
};

class Rebuilds : public EveryPath {
 protected:
  void SetUp() override {
    EveryPath::SetUp();
    const bool few = kSanitized || std::string(GetParam()) == "cpu-scalar";
    for (uint32_t i = 0; i < (few ? 4u : 8u); ++i) {
      Request r(random_tokens(i / 2, 150 + 53 * i, model_.shape().vocab_size));
      r.n = 1 + static_cast<int32_t>(i % 3);
      r.stream = 5 + i;
      r.sampling.max_new_tokens = 30 + static_cast<int32_t>(i * 41 % 90);
      r.sampling.ignore_eos = 1;
      if (i % 3 == 1) r.sampling.repetition_penalty = 1.2f;
      requests_.push_back(r);
    }
  }

  std::unique_ptr<Engine> engine(const RebuildVariant& v) const {
    EngineOptions o;
    o.device.isa = GetParam();
    o.device.num_threads = v.num_workers;
    o.device.target.path = model_.path();
    o.device.target.kv_bytes = model_.kv_bytes(v.num_pages * v.num_workers);
    o.num_workers = v.num_workers;
    o.max_batch = 32;
    o.prefill_chunk = v.chunk;
    o.policy = v.policy;
    o.proofs = v.proofs;
    Result<std::unique_ptr<Engine>> created = Engine::create(o);
    EXPECT_TRUE(created.ok()) << created.status().message();
    return created.ok() ? std::move(created.value()) : nullptr;
  }

  static void submit(Engine* e, const Request& request, uint64_t tag) {
    const Result<uint64_t> id = e->submit(group_request(request, request.sampling, tag));
    EXPECT_TRUE(id.ok()) << id.status().message();
  }

  Outputs run(const RebuildVariant& v) {
    const std::unique_ptr<Engine> e = engine(v);
    if (e == nullptr) return {};
    EXPECT_TRUE(e->pause().ok());
    for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
    e->resume();
    Outputs outputs;
    for (;;) {
      const Result<std::unique_ptr<Sequence>> finished = e->wait(120'000);
      if (!finished.ok()) {
        EXPECT_EQ(finished.status().code(), StatusCode::kIdle) << finished.status().message();
        break;
      }
      const Sequence& s = *finished.value();
      const size_t n = s.raw_logprobs.size();
      outputs[{s.group->tag, s.sample}] = {{s.tokens.begin() + s.num_prompt(), s.tokens.end()},
                                           bits_of(s.logprobs.data(), n),
                                           bits_of(s.raw_logprobs.data(), n),
                                           s.finish_reason,
                                           s.error};
    }
    // What was lent is back soon.
    for (int i = 0; i < 5000; ++i) {
      stats_ = nlohmann::json::parse(e->stats_json());
      if (stats_["kv_pages_leased"] == 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(stats_["kv_pages_leased"], 0);
    EXPECT_EQ(stats_["kv_pages_in_use"], 0);
    return outputs;
  }
  int64_t count(const char* key) const { return stats_.at(key).get<int64_t>(); }
  double page_bytes() const { return static_cast<double>(model_.layout().page_bytes()); }

  const TinyModel model_{{.num_layers = 2}};
  std::vector<Request> requests_;
  nlohmann::json stats_;
};

TEST_P(Rebuilds, ChangeNothing) {
  const Outputs plain = run({});
  int64_t copied = 0;
  for (const RebuildMode mode : {RebuildMode::kBothEnds, RebuildMode::kRecompute, RebuildMode::kTransfer}) {
    for (const double pages_per_second : {0.0, 1e3, 1e5}) {
      for (const int32_t revoke_every : {0, 5}) {
        if (mode == RebuildMode::kRecompute && (pages_per_second > 0 || revoke_every > 0)) continue;
        if (kSanitized && pages_per_second == 1e3 && revoke_every == 0) continue;
        const RebuildVariant v{.num_workers = 3,
                               .policy = revoke_every > 0 ? "fixed:self:3" : "off",
                               .proofs = {.migrate_every = 4,
                                          .migration_seed = 1,
                                          .rebuild = {.mode = mode,
                                                      .link_bytes_per_second = pages_per_second * page_bytes(),
                                                      .revoke_every = revoke_every}}};
        EXPECT_EQ(difference(plain, run(v)), "") << static_cast<int>(mode) << ", " << pages_per_second << " pages a second";
        EXPECT_GT(count("migrations"), 0);
        if (mode == RebuildMode::kRecompute) {
          EXPECT_EQ(count("kv_copied_tokens"), 0);
        }
        copied += count("kv_copied_tokens");
      }
    }
  }
  EXPECT_GT(copied, 1000);
}

// Pages that are lent come back when they are needed.
TEST_P(Rebuilds, ChangeNothingUnderPressure) {
  const Outputs plain = run({});
  int64_t pages = 1, preemptions = 0;  // what the largest request takes, and no more
  for (const Request& r : requests_)
    pages =
        std::max(pages, (static_cast<int64_t>(r.prompt.size()) + r.sampling.max_new_tokens + kPageTokens - 1) / kPageTokens);
  for (int round = 0; round < 5 && preemptions == 0; ++round) {  // who meets whom is as the machine likes
    for (const double pages_per_second : {0.0, 200.0}) {
      const RebuildVariant v{.num_workers = 2,
                             .proofs = {.migrate_every = 6,
                                        .migration_seed = 2,
                                        .rebuild = {.link_bytes_per_second = pages_per_second * page_bytes()}},
                             .num_pages = pages};
      EXPECT_EQ(difference(plain, run(v)), "");
      preemptions += count("preemptions");
    }
  }
  EXPECT_GT(preemptions, 0);
}

// A long sequence moves once: with a link as fast as memory hardly anything is computed again, without one everything.
TEST_P(Rebuilds, CopiesSaveComputing) {
  Request r(random_tokens(9, 900, model_.shape().vocab_size));
  r.sampling.max_new_tokens = 20;
  r.sampling.ignore_eos = 1;
  requests_ = {r};
  const Outputs plain = run({});
  const int64_t once = count("prefill_tokens");
  const auto moved = [&](RebuildMode mode) {
    EXPECT_EQ(difference(plain, run({.num_workers = 2, .proofs = {.migrate_at_tick = 12, .rebuild = {.mode = mode}}})), "");
    EXPECT_EQ(count("migrations"), 1);
    return count("prefill_tokens");
  };
  EXPECT_EQ(moved(RebuildMode::kRecompute), 2 * once + 5);  // and the tokens drawn so far
  EXPECT_LE(moved(RebuildMode::kTransfer), once + kPageTokens);
  EXPECT_LE(moved(RebuildMode::kBothEnds), 2 * once - 2 * kPageTokens);
}

// In the middle of its prompt a sequence moves, and loses its pages in the pass that was begun early: that pass's rows count
// when they run again.
TEST_P(Rebuilds, RowsOfALostPassCountOnce) {
  constexpr int32_t kShortChunk = 16,
                    kTicks = 30;  // fewer rows than rates are measured by: so the lender knows what a tick takes
  Request r(random_tokens(9, 900, model_.shape().vocab_size));
  r.sampling.max_new_tokens = 5;
  r.sampling.ignore_eos = 1;
  requests_ = {r};
  const Outputs plain = run({.chunk = kShortChunk});
  const int64_t once = count("prefill_tokens");
  const RebuildOptions lost{.mode = RebuildMode::kTransfer, .link_bytes_per_second = 1e9 * page_bytes(), .revoke_at_layer = 0};
  EXPECT_EQ(
      difference(plain, run({.num_workers = 2, .proofs = {.migrate_at_tick = kTicks, .rebuild = lost}, .chunk = kShortChunk})),
      "");
  EXPECT_EQ(count("migrations"), 1);
  EXPECT_EQ(count("kv_overlaps_lost"), 1);
  EXPECT_EQ(count("prefill_tokens"), once + kShortChunk * kTicks);
}

// Two of four siblings go to the worker that has nothing: there they make, or fetch, their prompt once.
TEST_P(Rebuilds, SiblingsShareThePrompt) {
  constexpr int32_t kNew = 120;
  Request r(random_tokens(9, 900, model_.shape().vocab_size));
  r.n = 4;
  r.sampling.max_new_tokens = kNew;
  r.sampling.ignore_eos = 1;
  requests_ = {r};
  const Outputs plain = run({});
  const int64_t once = count("prefill_tokens");
  for (const RebuildMode mode : {RebuildMode::kRecompute, RebuildMode::kBothEnds}) {
    EXPECT_EQ(difference(plain, run({.num_workers = 2, .proofs = {.rebuild = {.mode = mode}}, .chunk = 512})), "");
    EXPECT_GE(count("migrations"), 2);
    // The first one everything, the others what follows the prompt's last full page. Who is moved back finds the prompt.
    EXPECT_LE(count("prefill_tokens"), 2 * once + count("migrations") * (kPageTokens + kNew)) << static_cast<int>(mode);
  }
}

OTR_INSTANTIATE_EVERY_PATH(Rebuilds);

}  // namespace
}  // namespace otr
