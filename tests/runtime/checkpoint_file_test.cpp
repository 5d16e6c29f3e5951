// What an engine owes goes to a file and comes back in another engine: the same bits, however far it had come. What is not
// whole, or of another engine, is refused and nothing is taken.
#include "runtime/checkpoint_file.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <filesystem>
#include <fstream>

#include "loader/frame_sum.h"
#include "loader/xxh64.h"
#include "tests/runtime/engine_runs.h"
#include "tests/runtime/every_path.h"

namespace otr {
namespace {

class Checkpoints : public EveryPath {
 protected:
  static std::unique_ptr<Engine> engine(const TinyModel& model, const std::string& isa, int32_t num_workers = 1,
                                        const std::string& policy = "off", bool keeps = true, int32_t migrate_every = 0) {
    EngineOptions o;
    o.device.isa = isa;
    o.device.num_threads = num_workers;
    o.device.target.path = model.path();
    o.device.target.kv_bytes = model.kv_bytes(600 * num_workers);
    o.num_workers = num_workers;
    o.max_batch = 24;
    o.prefill_chunk = 64;
    o.policy = policy;
    o.keeps_checkpoints = keeps;
    o.proofs = {.migrate_every = migrate_every};
    Result<std::unique_ptr<Engine>> created = Engine::create(o);
    EXPECT_TRUE(created.ok()) << created.status().message();
    return created.ok() ? std::move(created.value()) : nullptr;
  }
  std::unique_ptr<Engine> engine(int32_t num_workers = 1, const std::string& policy = "off", int32_t migrate_every = 0) const {
    return engine(model_, GetParam(), num_workers, policy, true, migrate_every);
  }

  void submit_all(Engine* e) const {
    for (size_t i = 0; i < requests_.size(); ++i) submit(e, requests_[i], i);
    otr_score_request s;
    otr_score_request_init(&s, sizeof s);
    s.prompt_token_ids = requests_[5].prompt.data();
    s.num_prompt_tokens = 20;
    s.token_ids = requests_[5].prompt.data() + 20;
    s.num_tokens = requests_[5].prompt.size() - 20;
    s.tag = 1000;
    s.sampling = &requests_[1].sampling;
    EXPECT_TRUE(e->score(s).ok());
  }
  static void collect_into(Outputs* outputs, Engine* e, size_t most = SIZE_MAX) {
    Outputs more = collect(e, most);
    outputs->merge(more);
    EXPECT_TRUE(more.empty()) << "a sample came twice";
  }
  std::string path() const { return model_.path() + "/state"; }
  std::vector<std::byte> bytes() const {
    std::ifstream in(path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    std::vector<std::byte> bytes(text.size());
    std::memcpy(bytes.data(), text.data(), text.size());
    return bytes;
  }
  void write(const std::vector<std::byte>& bytes) const {
    std::ofstream(path(), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }

  const TinyModel model_{{.num_layers = 2}};
  const std::vector<Request> requests_ = mixed_requests(model_);
};

TEST_P(Checkpoints, GoOnWithTheSameBits) {
  Outputs plain;
  {
    const auto e = engine();
    submit_all(e.get());
    plain = collect(e.get());
  }
  int64_t gone_on = 0;
  const size_t moments[] = {0, 1, 5, 11, 17, 23};
  for (size_t i = 0; i < std::size(moments); ++i) {
    Outputs outputs;
    const std::byte user[] = {std::byte{1}, std::byte{2}};
    int64_t generated = 0;
    {
      const auto e = engine(i % 2 == 0 ? 1 : 3, i % 3 == 0 ? "fixed:ngram:3" : "off", i % 2 == 0 ? 0 : 3);
      submit_all(e.get());
      collect_into(&outputs, e.get(), moments[i]);
      ASSERT_TRUE(e->save_checkpoint(path(), user).ok());
    }
    const auto e = engine(i % 2 == 0 ? 2 : 1);
    const Status loaded = e->load_checkpoint(path());
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    collect_into(&outputs, e.get());
    EXPECT_EQ(difference(plain, outputs), "") << "after " << moments[i];
    for (const auto& [key, output] : plain)
      generated += output.reason == OTR_FINISH_SCORE ? 0 : static_cast<int64_t>(output.tokens.size());
    const nlohmann::json stats = nlohmann::json::parse(e->stats_json());
    EXPECT_EQ(stats["kv_pages_in_use"], 0);
    gone_on += generated - stats["generated_tokens"].get<int64_t>();
    const Result<CheckpointFile> file = CheckpointFile::read(path());
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(std::vector<std::byte>(file.value().user().begin(), file.value().user().end()),
              std::vector<std::byte>(user, user + 2));
  }
  EXPECT_GT(gone_on, 1000);  // what was accepted is not drawn again
}

// A checkpoint of what has gone on from a checkpoint.
TEST_P(Checkpoints, AgainAndAgain) {
  Outputs plain, outputs;
  const auto first = engine();
  submit_all(first.get());
  plain = collect(first.get());
  {
    const auto e = engine();
    submit_all(e.get());
    ASSERT_TRUE(e->save_checkpoint(path(), {}).ok());
  }
  for (int life = 0; life < 6; ++life) {
    const auto e = engine(1 + life % 3, "fixed:ngram:2", 4);
    ASSERT_TRUE(e->load_checkpoint(path()).ok());
    collect_into(&outputs, e.get(), 6);
    ASSERT_TRUE(e->save_checkpoint(path(), {}).ok());
  }
  ASSERT_TRUE(first->load_checkpoint(path()).ok());
  collect_into(&outputs, first.get());
  EXPECT_EQ(difference(plain, outputs), "");
}

TEST_P(Checkpoints, ACancelledGroupStaysSo) {
  const auto e = engine();
  ASSERT_TRUE(e->pause().ok());
  submit_all(e.get());
  ASSERT_TRUE(e->cancel(3).ok());
  ASSERT_TRUE(e->save_checkpoint(path(), {}).ok());
  const auto next = engine();
  ASSERT_TRUE(next->load_checkpoint(path()).ok());
  Outputs outputs;
  collect_into(&outputs, next.get());
  for (const auto& [key, output] : outputs) EXPECT_EQ(output.reason == OTR_FINISH_ABORT, key.first == 2) << key.first;
}

OTR_INSTANTIATE_EVERY_PATH(Checkpoints);

class CheckpointRefusals : public Checkpoints {
 protected:
  void SetUp() override {
    Checkpoints::SetUp();
    if (IsSkipped()) return;
    const auto e = engine();
    submit_all(e.get());
    Outputs outputs;
    collect_into(&outputs, e.get(), 12);
    ASSERT_TRUE(e->save_checkpoint(path(), {}).ok());
  }
  void expect_refused(Engine* e, StatusCode code, const std::string& reason) const {
    const Status status = e->load_checkpoint(path());
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
    EXPECT_EQ(nlohmann::json::parse(e->stats_json())["outstanding_samples"], 0);
  }
};

TEST_P(CheckpointRefusals, EveryByteCounts) {
  const std::vector<std::byte> good = bytes();
  const auto e = engine();
  for (size_t at = 0; at < good.size(); at += at < 110 ? 1 : good.size() / 40) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{0x20};
    write(bad);
    expect_refused(e.get(), at < 8 ? StatusCode::kInvalidArgument : StatusCode::kBadInput,
                   at < 8 ? "not a checkpoint" : "damaged");
  }
  for (const size_t size : {size_t{0}, size_t{40}, size_t{104}, good.size() / 2, good.size() - 1}) {
    write({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)});
    expect_refused(e.get(), StatusCode::kBadInput, "torn");
  }
  std::filesystem::remove(path());
  expect_refused(e.get(), StatusCode::kIoError, path());
}

// Checksums that fit, and one group more than the body has, which ends where that group's samples would begin.
TEST_P(CheckpointRefusals, AGroupThatIsNotThere) {
  constexpr size_t kHeaderBytes = 104, kNumGroupsAt = 72, kBodyBytesAt = 80, kSumAt = 88, kHashAt = 96, kGroupBytes = 104,
                   kNumSamplesAt = 40;
  std::vector<std::byte> crafted = bytes();
  uint64_t num_groups;
  std::memcpy(&num_groups, crafted.data() + kNumGroupsAt, sizeof num_groups);
  ++num_groups;
  std::vector<std::byte> group(kGroupBytes);
  const uint64_t num_samples = 1 << 20;  // more than the file has bytes for
  std::memcpy(group.data() + kNumSamplesAt, &num_samples, sizeof num_samples);
  crafted.insert(crafted.end(), group.begin(), group.end());
  const auto put = [&crafted](size_t at, uint64_t value) { std::memcpy(crafted.data() + at, &value, sizeof value); };
  put(kNumGroupsAt, num_groups);
  put(kBodyBytesAt, crafted.size() - kHeaderBytes);
  put(kSumAt, frame_sum(crafted.data() + kHeaderBytes, crafted.size() - kHeaderBytes));
  put(kHashAt, xxh64(crafted.data(), kHashAt));
  write(crafted);
  expect_refused(engine().get(), StatusCode::kBadInput, "its lengths do not add up");
}

// What is written is the ledger at the moment of the copy, whatever has come since.
TEST(CheckpointCopies, AreOfOneMoment) {
  Ledger ledger;
  const LedgerCopy before = copy_ledger(ledger, {});
  const RequestLimits limits{.vocab_size = 97, .context_limit = 512, .num_pages = 64, .eos_ids = {3}};
  const std::vector<int32_t> prompt = {1, 2, 3};
  otr_group_request request;
  otr_group_request_init(&request, sizeof request);
  request.prompt_token_ids = prompt.data();
  request.num_prompt_tokens = prompt.size();
  request.n = 2;
  auto made = make_group(request, limits);
  ASSERT_TRUE(made.ok()) << made.status().message();
  made.value().front()->group->id = 1;
  ledger.open(made.value(), 0);
  const CheckpointIdentity identity{.isa = "cpu-avx2", .library = "0.1.0"};
  for (const auto& [copy, groups] : {std::pair(before, size_t{0}), std::pair(copy_ledger(ledger, {}), size_t{1})}) {
    const auto file = CheckpointFile::parse("state", encode_checkpoint(identity, copy));
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto restored = file.value().restore(identity, limits);
    ASSERT_TRUE(restored.ok()) << restored.status().message();
    EXPECT_EQ(restored.value().size(), groups);
  }
}

// A worker's last word may be the tokens of a sample, without its end.
TEST(CheckpointCopies, WhatIsCompleteHasEnded) {
  const RequestLimits limits{.vocab_size = 97, .context_limit = 512, .num_pages = 64, .eos_ids = {3}};
  const std::vector<int32_t> prompt = {1, 2, 5};
  otr_sampling_params sampling;
  otr_sampling_params_init(&sampling, sizeof sampling);
  sampling.max_new_tokens = 2;
  otr_group_request request;
  otr_group_request_init(&request, sizeof request);
  request.prompt_token_ids = prompt.data();
  request.num_prompt_tokens = prompt.size();
  request.n = 3;
  request.sampling = &sampling;
  auto made = make_group(request, limits);
  ASSERT_TRUE(made.ok()) << made.status().message();
  made.value().front()->group->id = 1;
  Ledger ledger;
  ledger.open(made.value(), 0);
  Progress progress;
  progress.segments = {{.group = 1, .sample = 0, .first = 0, .count = 1},
                       {.group = 1, .sample = 1, .first = 0, .count = 2},
                       {.group = 1, .sample = 2, .first = 0, .count = 1}};
  progress.tokens = {3, 8, 9, 8};  // a stop, the most tokens, and one that goes on
  progress.logprobs = progress.raw_logprobs = {-1, -1, -1, -1};
  ASSERT_TRUE(ledger.append(0, progress, limits.vocab_size).ok());
  const CheckpointIdentity identity{.isa = "cpu-avx2", .library = "0.1.0"};
  const auto file = CheckpointFile::parse("state", encode_checkpoint(identity, copy_ledger(ledger, {})));
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto restored = file.value().restore(identity, limits);
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  const std::vector<CheckpointFile::Sample>& samples = restored.value().front();
  EXPECT_TRUE(samples[0].is_finished);
  EXPECT_EQ(samples[0].sequence->finish_reason, OTR_FINISH_STOP);
  EXPECT_TRUE(samples[1].is_finished);
  EXPECT_EQ(samples[1].sequence->finish_reason, OTR_FINISH_LENGTH);
  EXPECT_FALSE(samples[2].is_finished);
}

// What could not be read again is not written in place of what can.
TEST(CheckpointCopies, NoneIsLargerThanMayBeRead) {
  constexpr size_t kTooMany = (size_t{1} << 36) + 1;
  void* const room = mmap(nullptr, kTooMany, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) GTEST_SKIP() << "no addresses";
  const Status refused = write_checkpoint("/nonexistent/state", {static_cast<const std::byte*>(room), kTooMany});
  EXPECT_EQ(refused.code(), StatusCode::kIoError);
  EXPECT_NE(refused.message().find("larger than one may be"), std::string::npos) << refused.message();
  munmap(room, kTooMany);
}

TEST_P(CheckpointRefusals, OtherEngines) {
  const TinyModel other({.num_layers = 2, .seed = 5});
  const auto another = engine(other, GetParam());
  expect_refused(another.get(), StatusCode::kUnsupported, "another model");
  const std::string path_name = GetParam();
  if (path_name != "cpu-scalar")
    expect_refused(engine(model_, "cpu-scalar").get(), StatusCode::kUnsupported, "instruction-set path: " + path_name);
  const auto without = engine(model_, GetParam(), 1, "off", false);
  expect_refused(without.get(), StatusCode::kInvalidArgument, "keep_checkpoints");
  EXPECT_EQ(without->save_checkpoint(path(), {}).code(), StatusCode::kInvalidArgument);
  const auto e = engine();
  ASSERT_TRUE(e->begin_weights(2).ok());
  EXPECT_EQ(e->load_checkpoint(path()).code(), StatusCode::kBusy);
  ASSERT_TRUE(e->commit_weights().ok());
}

// A version is a name: the same weights under another one, as in a new process that loads step 17's, take the file's.
TEST_P(CheckpointRefusals, TheDigestOfTheWeightsDecidesNotTheirVersion) {
  {
    const auto e = engine();
    ASSERT_TRUE(e->begin_weights(17).ok());
    ASSERT_TRUE(e->commit_weights().ok());
    submit_all(e.get());
    ASSERT_TRUE(e->save_checkpoint(path(), {}).ok());
  }
  const auto e = engine();
  const auto version_here = [&e] { return nlohmann::json::parse(e->stats_json())["weight_version"]; };
  EXPECT_EQ(version_here(), 0);
  const Status loaded = e->load_checkpoint(path());
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  EXPECT_EQ(version_here(), 17);
  submit(e.get(), requests_[0], 2000);
  size_t taken = 0;
  for (auto finished = e->wait(-1); finished.ok(); finished = e->wait(-1), ++taken)
    EXPECT_EQ(finished.value()->weight_spans.back().weight_version, 17u);
  EXPECT_GT(taken, 10u);
}

// The ids are known without a result of theirs: so they can be cancelled at once.
TEST_P(CheckpointRefusals, GroupsGetIdsInTheirOldOrder) {
  {
    const auto e = engine();
    ASSERT_TRUE(e->pause().ok());
    for (uint64_t tag = 0; tag < 12; ++tag) submit(e.get(), requests_[tag % requests_.size()], tag);
    ASSERT_TRUE(e->save_checkpoint(path(), {}).ok());
  }
  for (const uint64_t before : {uint64_t{0}, uint64_t{11}}) {
    const auto e = engine();
    for (uint64_t i = 0; i < before; ++i) EXPECT_EQ(submit(e.get(), requests_[0], i), i + 1);
    collect(e.get());
    ASSERT_TRUE(e->pause().ok());
    ASSERT_TRUE(e->load_checkpoint(path()).ok());
    const uint64_t cancelled = before + 11;  // tag 10: as texts its id would come before tag 1's
    EXPECT_TRUE(e->cancel(cancelled).ok());
    EXPECT_EQ(submit(e.get(), requests_[0], 12), before + 13);
    e->resume();
    for (auto finished = e->wait(-1); finished.ok(); finished = e->wait(-1)) {
      const Sequence& s = *finished.value();
      EXPECT_EQ(s.group->id, before + 1 + s.group->tag);
      EXPECT_EQ(s.finish_reason == OTR_FINISH_ABORT, s.group->id == cancelled) << s.group->tag;
    }
  }
}

TEST_P(CheckpointRefusals, WhoOwesSomethingTakesNone) {
  const auto e = engine();
  ASSERT_TRUE(e->load_checkpoint(path()).ok());
  EXPECT_EQ(e->load_checkpoint(path()).code(), StatusCode::kBusy);
  Outputs outputs;
  collect_into(&outputs, e.get());
  EXPECT_FALSE(e->save_checkpoint(model_.path() + "/no/such/folder", {}).ok());
  EXPECT_TRUE(e->save_checkpoint(path(), {}).ok());
  EXPECT_TRUE(e->load_checkpoint(path()).ok());  // which is empty
}

INSTANTIATE_TEST_SUITE_P(Path, CheckpointRefusals, testing::Values("cpu-avx2"), path_name);

}  // namespace
}  // namespace otr
