// The history: what an epoch said drafts the next, changes nothing but speed, and survives files that are torn.
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <system_error>
#include <thread>

#include "loader/xxh64.h"
#include "runtime/history_file.h"
#include "runtime/history_store.h"
#include "tests/runtime/mixed_requests.h"

namespace otr {
namespace {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "outrider-history-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make " + pattern);
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const char* name) const { return path_ + "/" + name; }
  size_t num_files() const {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
  }

 private:
  std::string path_;
};

std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_bytes(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

constexpr int32_t kVocab = 100;

HistoryIndex small_index(bool with_logprobs) {
  HistoryIndex index;
  for (int32_t p = 0; p < 4; ++p) {
    std::vector<HistoryResponse> responses;
    for (int32_t i = 0; i < 3; ++i) {
      HistoryResponse r{{p, p + 1, i, 99 - i}, {}, i == 2 ? kUnknownReward : static_cast<float>(i)};
      if (with_logprobs) r.logprobs = {-0.5f, -1.5f, 0.0f, -static_cast<float>(i)};
      responses.push_back(r);
    }
    const std::vector<int32_t> prompt = {10, 20, 30 + p};
    index.put(prompt, std::make_shared<const PromptHistory>(prompt, responses));
  }
  return index;
}

// Whether all that `part` holds is in `whole`, the same.
void expect_part_of(const HistoryIndex& part, const HistoryIndex& whole) {
  for (const auto& [prompt, history] : part.prompts()) {
    const auto other = whole.find(prompt);
    ASSERT_NE(other, nullptr);
    ASSERT_EQ(history->num_responses(), other->num_responses());
    for (size_t i = 0; i < history->num_responses(); ++i) {
      const HistoryResponse a = history->response(i), b = other->response(i);
      ASSERT_EQ(a.tokens, b.tokens);
      ASSERT_EQ(a.logprobs, b.logprobs);
      ASSERT_EQ(bits_of(&a.reward, 1), bits_of(&b.reward, 1));
    }
  }
}

TEST(HistoryFile, BringsBackWhatWasSaved) {
  const TempFolder folder;
  for (const bool with_logprobs : {false, true}) {
    const HistoryIndex index = small_index(with_logprobs);
    ASSERT_TRUE(save_history(folder.file("h"), index).ok());
    const Result<LoadedHistory> loaded = load_history(folder.file("h"), kVocab, with_logprobs);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_EQ(loaded.value().damage, "");
    EXPECT_EQ(loaded.value().index.prompts().size(), 4u);
    expect_part_of(loaded.value().index, index);
  }
  EXPECT_EQ(folder.num_files(), 1u);  // no temporary file stays
  const Result<LoadedHistory> without = load_history(folder.file("h"), kVocab, false);
  ASSERT_TRUE(without.ok());
  EXPECT_FALSE(without.value().index.prompts().begin()->second->has_logprobs());
}

TEST(HistoryFile, EveryTornLengthGivesTheWholeFramesAndSaysSo) {
  const TempFolder folder;
  const HistoryIndex index = small_index(true);
  ASSERT_TRUE(save_history(folder.file("h"), index).ok());
  const std::string bytes = read_bytes(folder.file("h"));
  std::set<size_t> numbers;
  for (size_t length = 0; length < bytes.size(); ++length) {
    write_bytes(folder.file("torn"), bytes.substr(0, length));
    const Result<LoadedHistory> loaded = load_history(folder.file("torn"), kVocab, true);
    if (!loaded.ok()) {
      ASSERT_LT(length, 32u);
      // What may be something else is not for whoever writes a history at its place.
      ASSERT_EQ(loaded.status().code(), length == 0 ? StatusCode::kBadInput : StatusCode::kInvalidArgument) << length;
      continue;
    }
    ASSERT_GE(length, 32u);
    ASSERT_NE(loaded.value().damage, "") << length;
    ASSERT_LT(loaded.value().index.prompts().size(), 4u);
    expect_part_of(loaded.value().index, index);
    numbers.insert(loaded.value().index.prompts().size());
  }
  EXPECT_EQ(numbers, (std::set<size_t>{0, 1, 2, 3}));
}

TEST(HistoryFile, EveryFlippedByteCostsOneFrameAtMost) {
  const TempFolder folder;
  const HistoryIndex index = small_index(true);
  ASSERT_TRUE(save_history(folder.file("h"), index).ok());
  const std::string bytes = read_bytes(folder.file("h"));
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      write_bytes(folder.file("damaged"), damaged);
      const Result<LoadedHistory> loaded = load_history(folder.file("damaged"), kVocab, true);
      ASSERT_EQ(loaded.ok(), at >= 32) << at;
      if (!loaded.ok()) {
        ASSERT_EQ(loaded.status().code(), StatusCode::kInvalidArgument) << at;
        continue;
      }
      ASSERT_NE(loaded.value().damage, "") << at;
      ASSERT_EQ(loaded.value().index.prompts().size(), 3u) << at;
      expect_part_of(loaded.value().index, index);
    }
  }
}

TEST(HistoryFile, RefusesWithTheReason) {
  const TempFolder folder;
  EXPECT_EQ(load_history(folder.file("none"), kVocab, true).status().code(), StatusCode::kIoError);
  write_bytes(folder.file("other"), std::string(100, 'x'));
  EXPECT_EQ(load_history(folder.file("other"), kVocab, true).status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(save_history(folder.file("h"), small_index(true)).ok());
  const Result<LoadedHistory> narrow = load_history(folder.file("h"), 33, true);  // the model has a smaller vocabulary now
  ASSERT_TRUE(narrow.ok());
  EXPECT_EQ(narrow.value().index.prompts().size(), 0u);
  EXPECT_NE(narrow.value().damage.find("outside the vocabulary of 33"), std::string::npos);
  std::string old = read_bytes(folder.file("h"));
  old[8] = 0;
  const uint64_t hash = xxh64(old.data(), 24);
  std::memcpy(old.data() + 24, &hash, sizeof hash);
  write_bytes(folder.file("old"), old);
  EXPECT_EQ(load_history(folder.file("old"), kVocab, true).status().message(),
            folder.file("old") + ": version 0 of the format; this library reads version 1");
  EXPECT_EQ(save_history(folder.file("no/such/folder"), small_index(true)).code(), StatusCode::kIoError);
}

Sequence finished_sample(uint64_t group_id, uint32_t sample, std::vector<int32_t> response) {
  Sequence s;
  s.group = std::make_shared<Group>();
  s.group->id = group_id;
  s.group->num_prompt = 3;
  s.sample = sample;
  s.tokens = {1, 2, 3};
  s.tokens.insert(s.tokens.end(), response.begin(), response.end());
  s.logprobs.assign(response.size(), -1.0f);
  s.finish_reason = OTR_FINISH_STOP;
  return s;
}

TEST(HistoryStore, RewardsReachTheIndex) {
  HistoryStore store(HistoryContent::kLogprobs, kVocab);
  store.collect(finished_sample(7, 0, {4, 5}));
  store.collect(finished_sample(7, 1, {4, 6}));
  EXPECT_TRUE(store.reward(7, 1, 2.0f).ok());
  EXPECT_TRUE(store.reward(7, 1, 3.0f).ok());
  EXPECT_FALSE(store.reward(7, 2, 1.0f).ok());
  EXPECT_FALSE(store.reward(8, 0, 1.0f).ok());
  EXPECT_FALSE(store.reward(7, 0, kUnknownReward).ok());
  EXPECT_EQ(store.index(), nullptr);
  const TempFolder folder;
  ASSERT_TRUE(store.save(folder.file("h")).ok());  // commits, and waits
  EXPECT_FALSE(store.reward(7, 0, 1.0f).ok());
  const auto history = store.index()->find(std::vector<int32_t>{1, 2, 3});
  ASSERT_NE(history, nullptr);
  EXPECT_TRUE(std::isnan(history->response(0).reward));
  EXPECT_EQ(history->response(1).reward, 3.0f);
}

// The prompt of a later turn ends in what was drawn and answered: it does not come again.
TEST(HistoryStore, LaterTurnsAreRewardedAndNotKept) {
  HistoryStore store(HistoryContent::kTokens, kVocab);
  store.collect(finished_sample(7, 0, {4, 5}));
  const Sequence turn = finished_sample(8, 0, {6, 7});
  turn.group->is_later_turn = true;
  store.collect(turn);
  EXPECT_TRUE(store.reward(8, 0, 1.0f).ok());
  const TempFolder folder;
  ASSERT_TRUE(store.save(folder.file("h")).ok());
  EXPECT_EQ(store.index()->prompts().size(), 1u);
  EXPECT_EQ(store.index()->num_tokens(), 2);
}

// A cancelled sample is a stub: it must not take the place of what was known.
TEST(HistoryStore, KeepsCompleteSamplesOnly) {
  HistoryStore store(HistoryContent::kTokens, kVocab);
  for (const otr_finish_reason reason : {OTR_FINISH_ABORT, OTR_FINISH_ERROR, OTR_FINISH_LENGTH}) {
    Sequence s = finished_sample(7, static_cast<uint32_t>(reason), {4, 5});
    s.finish_reason = reason;
    store.collect(s);
  }
  EXPECT_TRUE(store.reward(7, OTR_FINISH_LENGTH, 1.0f).ok());
  EXPECT_FALSE(store.reward(7, OTR_FINISH_ABORT, 1.0f).ok());
  EXPECT_FALSE(store.reward(7, OTR_FINISH_ERROR, 1.0f).ok());
}

// While it lives the system has no room for the stack of a new thread.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t endless = before_;
    pthread_attr_setstacksize(&endless, size_t{1} << 50);
    pthread_setattr_default_np(&endless);
  }
  ~NoMoreThreads() { pthread_setattr_default_np(&before_); }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  pthread_attr_t before_;
};

TEST(HistoryStore, IsBuiltHereWhereTheSystemRefusesAThread) {
  HistoryStore store(HistoryContent::kTokens, kVocab);
  store.collect(finished_sample(7, 0, {4, 5}));
  EXPECT_TRUE(store.reward(7, 0, 2.0f).ok());
  {
    const NoMoreThreads none;
    ASSERT_THROW(std::thread([] {}).join(), std::system_error);
    store.commit();
    const auto index = store.index();
    ASSERT_NE(index, nullptr);
    EXPECT_EQ(index->find(std::vector<int32_t>{1, 2, 3})->response(0).reward, 2.0f);
  }
  store.collect(finished_sample(8, 0, {4, 6}));
  store.commit();  // on a thread again
  EXPECT_FALSE(store.reward(8, 0, 1.0f).ok());
}

// Samples end, rewards come, sequences join and steps are committed, all at once.
TEST(HistoryStore, IsBuiltBesideEverythingElse) {
  HistoryStore store(HistoryContent::kTokens, kVocab);
  constexpr int kLookups = 500;
  constexpr uint64_t kMostSamples = 1'000'000;
  std::atomic<bool> done = false;
  std::thread reader([&] {
    for (int found = 0; found < kLookups && !done;) {
      const auto index = store.index();
      if (index == nullptr) continue;
      const auto history = index->find(std::vector<int32_t>{1, 2, 3});
      ASSERT_NE(history, nullptr);
      std::vector<PromptHistory::Place> places;
      ASSERT_EQ(history->find(std::vector<int32_t>{1, 2, 3}, &places), 3);
      ++found;
    }
    done = true;
  });
  std::thread committer([&] {
    while (!done) store.commit();
  });
  uint64_t i = 0;
  for (; i < kMostSamples && !done; ++i) {
    store.collect(finished_sample(i, 0, {static_cast<int32_t>(i % 50), 5, 6, 7}));
    (void)store.reward(i, 0, 1.0f);  // may come after its commit
  }
  EXPECT_LT(i, kMostSamples) << "the reader never found an index";
  done = true;
  committer.join();
  reader.join();
  const TempFolder folder;
  ASSERT_TRUE(store.save(folder.file("h")).ok());
  EXPECT_EQ(store.index()->prompts().size(), 1u);
}

// Two epochs through the C interface.
nlohmann::json stats_of(otr_engine* engine) {
  size_t size = 0;
  std::string text(1 << 16, '\0');
  EXPECT_EQ(otr_stats(engine, text.data(), text.size(), &size), OTR_OK);
  return nlohmann::json::parse(text.c_str());
}

class HistoryEngine {
 public:
  HistoryEngine(const TinyModel& model, const char* policy, int32_t history, bool processes = false) {
    otr_engine_options options;
    otr_engine_options_init(&options, sizeof options);
    options.model_path = model.path().c_str();
    options.num_threads = 1;
    options.max_batch = 16;
    options.kv_bytes = model.kv_bytes(1024);
    options.policy = policy;
    options.history = history;
    options.keep_checkpoints = 1;
    options.worker_processes = processes;
    options.worker_executable = OUTRIDER_WORKER;
    EXPECT_EQ(otr_engine_create(&options, &engine), OTR_OK) << otr_last_error(nullptr);
  }
  ~HistoryEngine() { otr_engine_destroy(engine); }

  uint64_t submit(const Request& request, uint64_t stream, uint64_t tag) const {
    const otr_sampling_params sampling = sampling_of(request);
    otr_group_request r = group_request(request, sampling, tag);
    r.stream = stream;
    uint64_t group = 0;
    EXPECT_EQ(otr_submit(engine, &r, &group), OTR_OK) << otr_last_error(engine);
    return group;
  }
  Outputs run(const std::vector<Request>& requests, uint64_t epoch) const {
    for (size_t i = 0; i < requests.size(); ++i) submit(requests[i], requests[i].stream + (epoch << 32), i);
    Outputs outputs;
    otr_result* result = nullptr;
    while (otr_wait(engine, 120'000, &result) == OTR_OK) {
      otr_result_view v;
      otr_result_get(result, &v, sizeof v);
      EXPECT_EQ(otr_reward(engine, v.group_id, v.sample, static_cast<float>(v.sample % 2)), OTR_OK) << otr_last_error(engine);
      outputs[{v.tag, v.sample}] = {{v.token_ids, v.token_ids + v.num_tokens},
                                    bits_of(v.logprobs, v.num_tokens),
                                    bits_of(v.raw_logprobs, v.num_tokens),
                                    v.finish_reason,
                                    v.error};
      otr_result_destroy(result);
    }
    return outputs;
  }
  nlohmann::json stats() const { return stats_of(engine); }

  otr_engine* engine = nullptr;
};

std::vector<Request> repetitive_requests(float temperature) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 6; ++i) {
    Request r(random_tokens(i, 4 + 3 * i, 97, 4));
    r.n = 4;
    r.stream = i;
    r.sampling.temperature = temperature;
    r.sampling.max_new_tokens = 60;
    r.sampling.top_k = 4;
    requests.push_back(r);
  }
  return requests;
}

TEST(HistoryEngine, TheSecondEpochIsTheSameAndFaster) {
  const TinyModel model({.num_layers = 2, .lm_head_scale = 4.0f});
  for (const float temperature : {0.5f, 0.0f}) {
    const std::vector<Request> requests = repetitive_requests(temperature);
    const Outputs plain = HistoryEngine(model, "off", 0).run(requests, 1);
    for (const char* policy : {"fixed:history:8", "fixed:history+ngram:6:3:24"}) {
      for (const int32_t content : {1, 2}) {
        const TempFolder folder;
        const std::string file = folder.file("h");
        {
          const HistoryEngine first(model, "off", content);  // collects without drafting
          first.run(requests, 0);
          EXPECT_EQ(otr_history_commit(first.engine), OTR_OK);
          EXPECT_EQ(otr_history_save(first.engine, file.c_str()), OTR_OK) << otr_last_error(first.engine);
          EXPECT_EQ(first.stats()["history"]["prompts"], 6);
        }
        const HistoryEngine second(model, policy, content);
        EXPECT_EQ(otr_history_load(second.engine, file.c_str()), OTR_OK) << otr_last_error(second.engine);
        EXPECT_EQ(difference(plain, second.run(requests, 1)), "") << policy << " " << content;
        const nlohmann::json counts = second.stats()["speculation"];
        EXPECT_GT(counts["drafters"]["history"]["accepted"], 100) << policy << " " << content << " " << temperature;
        EXPECT_LT(counts["decode_steps"], counts["decode_tokens"]);
      }
    }
  }
}

// A sample belongs to the step in which it was taken, whenever it ended: a trainer may be behind its engine. So too where it
// waits in a checkpoint for the engine that loads it.
TEST(HistoryEngine, ASampleIsOfTheStepInWhichItIsTaken) {
  const TinyModel model;
  const TempFolder folder;
  Request request({5, 6, 7, 8});
  request.n = 2;
  request.sampling.max_new_tokens = 6;
  request.sampling.ignore_eos = 1;
  for (const bool processes : {false, true}) {
    const HistoryEngine first(model, "off", 1, processes);
    const uint64_t group = first.submit(request, request.stream, 0);
    while (first.stats()["finished_samples"] < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_EQ(otr_checkpoint_save(first.engine, folder.file("state").c_str(), nullptr, 0), OTR_OK);
    const HistoryEngine second(model, "off", 1, processes);
    ASSERT_EQ(otr_checkpoint_load(second.engine, folder.file("state").c_str()), OTR_OK) << otr_last_error(second.engine);
    for (otr_engine* engine : {first.engine, second.engine}) {
      const auto history = [&] { return stats_of(engine)["history"]; };
      const auto take = [&](uint32_t* sample) {
        otr_result* result = nullptr;
        ASSERT_EQ(otr_wait(engine, 60'000, &result), OTR_OK);
        otr_result_view v;
        otr_result_get(result, &v, sizeof v);
        *sample = v.sample;
        EXPECT_EQ(v.group_id, group);
        otr_result_destroy(result);
      };
      uint32_t sample = 0;
      EXPECT_EQ(history()["pending_samples"], 0);
      EXPECT_EQ(otr_history_save(engine, folder.file("h").c_str()), OTR_OK);  // commits, and waits for what it makes
      EXPECT_EQ(history()["prompts"], 0);
      take(&sample);
      EXPECT_EQ(otr_reward(engine, group, sample, 1.0f), OTR_OK) << otr_last_error(engine);
      EXPECT_EQ(otr_reward(engine, group, 1 - sample, 1.0f), OTR_INVALID_ARGUMENT);
      EXPECT_EQ(history()["pending_samples"], 1);
      EXPECT_EQ(otr_history_save(engine, folder.file("h").c_str()), OTR_OK);
      EXPECT_EQ(history()["prompts"], 1);
      EXPECT_EQ(history()["tokens"], 6);
      EXPECT_EQ(otr_reward(engine, group, sample, 1.0f), OTR_INVALID_ARGUMENT);
      take(&sample);
      EXPECT_EQ(otr_reward(engine, group, sample, 1.0f), OTR_OK) << otr_last_error(engine);
    }
  }
}

TEST(HistoryEngine, ErrorsArePlain) {
  const TinyModel model;
  const HistoryEngine without(model, "off", 0);
  EXPECT_EQ(otr_history_commit(without.engine), OTR_OK);
  EXPECT_EQ(otr_reward(without.engine, 1, 0, 1.0f), OTR_OK);
  EXPECT_EQ(otr_history_save(without.engine, "x"), OTR_INVALID_ARGUMENT);
  const HistoryEngine with(model, "fixed:history:4", 0);  // the policy is enough
  EXPECT_EQ(otr_reward(with.engine, 1, 0, 1.0f), OTR_INVALID_ARGUMENT);
  EXPECT_STREQ(otr_last_error(with.engine),
               "group 1 has no sample 0 that ended with a stop or at its length since the last commit");
  EXPECT_EQ(otr_history_load(with.engine, "/nowhere/h"), OTR_IO_ERROR);
  EXPECT_EQ(otr_history_load(with.engine, nullptr), OTR_INVALID_ARGUMENT);
  EXPECT_EQ(otr_history_commit(nullptr), OTR_INVALID_HANDLE);
  const TempFolder folder;
  const std::string file = folder.file("h");
  ASSERT_TRUE(save_history(file, small_index(true)).ok());  // token 99 is beyond the model's 97
  EXPECT_EQ(otr_history_load(with.engine, file.c_str()), OTR_BAD_INPUT);
  EXPECT_NE(std::string(otr_last_error(with.engine)).find("0 of 4 prompts read"), std::string::npos);
  otr_engine_options options;
  otr_engine_options_init(&options, sizeof options);
  options.model_path = model.path().c_str();
  options.history = 3;
  otr_engine* engine = nullptr;
  EXPECT_EQ(otr_engine_create(&options, &engine), OTR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace otr
