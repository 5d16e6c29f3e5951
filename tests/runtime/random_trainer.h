// A trainer that calls whatever it pleases, in any order: submits, scores, turns, cancels, pauses, updates under way, sleeps,
// checkpoints into engines of other options, exports of pages, and kills worker processes. It knows what every call must
// return, and asks the oracle for every result. A seed gives its options and calls; what comes back when is the machine's.
//
// Thread safety: none. In some lives a thread of its own takes the results.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/runtime/random_trainer_options.h"
#include "tests/runtime/trainer_oracle.h"

namespace otr {

// What the trainers met, all together: a test asks whether they are worth their time.
struct TrainerFacts {
  int64_t spans = 0, aborts = 0, stops = 0, lengths = 0, turns = 0, scores = 0, lives = 0, sleeps = 0, restarts = 0,
          preemptions = 0, migrations = 0, accepted_drafts = 0, exported_tokens = 0, imported_tokens = 0, prefix_hit_tokens = 0,
          refused_sizes = 0;
};

class RandomTrainer {
 public:
  // `path`: of a folder for its files.
  RandomTrainer(const TrainedModel& model, TrainerHost host, uint32_t seed, std::string path)
      : model_(model), host_(std::move(host)), path_(std::move(path)), dice_(seed) {
    kind_of_[0] = 0;
    create(random_options(dice_, host_), 0);
    if (engine_ != nullptr && options_.waits_aside) wait_aside();
  }
  ~RandomTrainer() {
    stop_waiting();
    forget_results();
    otr_engine_destroy(engine_);
  }
  RandomTrainer(const RandomTrainer&) = delete;
  RandomTrainer& operator=(const RandomTrainer&) = delete;

  // So many calls, and then an end: everything that was asked for arrives.
  void live(int32_t num_calls) {
    for (int32_t i = 0; i < num_calls && !testing::Test::HasFailure(); ++i) call();
    if (!testing::Test::HasFailure()) finish();
  }
  // Every result against the oracle; returns how many there were.
  size_t judge(const TrainerOracle& oracle) const;
  const std::string& log() const { return log_; }
  const TrainerFacts& facts() const { return facts_; }

 private:
  struct Group {
    uint64_t id;
    std::set<uint32_t> samples;  // that have not come
    int64_t pages;               // that a sample of it takes
    bool cancelled = false;
  };
  struct Kept {  // a result that may get a turn
    otr_result* result;
    std::pair<uint64_t, uint32_t> key;
  };
  struct Export {
    std::vector<std::byte> bytes;
    int kind;
    size_t num_tokens;
  };

  void create(RandomOptions o, int kind);
  void call();
  void finish(), end_life();

  void submit(), score(), turn(), take_some(), cancel(), pause_or_resume(), kill_one(), check_numbers();
  void update(), begin_update(), put_some(size_t most), put_wrong(), commit();
  void sleep_or_wake(), wake_and_commit();
  void reward(), commit_history(), save_and_load_history();
  void export_pages(), import_pages();
  void save_and_go_on(), load(), refuse_other_weights();
  nlohmann::json stats();
  bool take(int64_t timeout_ms);  // whether a result came
  void wait_aside(), stop_waiting();
  void receive(otr_result*result), check_fields(const otr_result*result, const otr_result_view&v);
  void forget_results();

  bool can_submit() const { return !updating_ && !asleep_ && !lost_; }
  bool is_busy() const { return !groups_.empty(); }  // as far as is known: results may have come that nobody has taken
  bool stands() const { return paused_ || asleep_ || lost_; }
  int64_t pages_of(const Request& request, size_t num_scored) const;
  void owe(const std::string& what, otr_status status, uint64_t id, Request request, std::optional<Owed> score);
  // The call returned `status`; `also` where two are right, since the engine goes on meanwhile.
  void expect(const std::string& what, otr_status status, otr_status wanted, std::optional<otr_status> also = {});

  const TrainedModel& model_;
  const TrainerHost host_;
  const std::string path_;
  Dice dice_;
  std::string log_;

  otr_engine* engine_ = nullptr;
  RandomOptions options_;
  TrainerFacts facts_;
  std::thread waiter_;  // takes results in some lives
  std::atomic<bool> waiter_ends_ = false;
  std::mutex mutex_;
  std::deque<otr_result*> came_;       // guarded by mutex_
  otr_status waiter_status_ = OTR_OK;  // likewise: of a wait that should not have come
  bool paused_ = false, updating_ = false, expects_all_ = false, keeps_history_ = false;
  uint32_t asleep_ = 0;  // OTR_MEMORY_…
  bool lost_ = false;    // the weights, since a sleep
  int kind_ = 0, next_kind_ = 0;
  uint64_t version_ = 0, begun_version_ = 0, versions_ = 0, tags_ = 0;
  std::set<size_t> missing_;         // tensors of the update
  std::map<uint64_t, int> kind_of_;  // a version's weights

  std::map<uint64_t, Group> groups_;  // unfinished, by tag
  std::map<std::pair<uint64_t, uint32_t>, Owed> owed_;
  std::map<std::pair<uint64_t, uint32_t>, Delivered> delivered_;
  std::vector<Kept> kept_;
  std::set<std::pair<uint64_t, uint32_t>> rewardable_;  // (group id, sample), since the last commit of the history
  std::vector<Export> exports_;
};

}  // namespace otr
