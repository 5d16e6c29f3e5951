// An engine that has no memory to order who joins whom: nobody is left in what the others have left.
#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <utility>
#include <vector>

#include "runtime/net_account.h"
#include "tests/runtime/failing_new.h"

namespace otr {
namespace {

class NetAccountMemory : public testing::Test {
 protected:
  static constexpr int32_t kWorkers = 3;
  struct Process {
    uint64_t joined = 0;
    int32_t rank = -1;
  };

  NetAccountMemory() { is_test_thread = true; }

  // An order that arrives has taken memory.
  void follow(int32_t worker, const NetOrder& order) {
    const std::vector<NetOrder> copy(1, order);
    Process& p = processes_[static_cast<size_t>(worker)];
    if (order.kind == NetOrder::Kind::kJoin) p = {.joined = order.generation, .rank = order.rank};
    if (order.kind == NetOrder::Kind::kLeave && order.generation >= p.joined) p = {};
  }
  // What the engine does where a call for a process runs out of memory: it ends that process, however often it has to try.
  template <typename What>
  void call(int32_t worker, const What& what) {
    try {
      what();
    } catch (const std::bad_alloc&) {
      there_is_memory_again();
      lose(worker);
      account_.ready(worker);
    }
  }
  void lose(int32_t worker) {
    try {
      account_.lost(worker, true);
    } catch (const std::bad_alloc&) {
      there_is_memory_again();
      account_.lost(worker, true);
    }
    processes_[static_cast<size_t>(worker)] = {};
  }
  void news(int32_t worker, NetNews::Kind kind) {
    const uint64_t generation = processes_[static_cast<size_t>(worker)].joined;
    const int64_t limit = std::exchange(allocations_left, -1);
    const NetNews said{.kind = kind, .generation = generation, .why = "a failure that takes some memory", .pull = {}};
    allocations_left = limit;
    call(worker, [&] { EXPECT_TRUE(account_.news(worker, said).ok()); });
  }

  void there_is_memory_again() {
    allocations_left = -1;
    ran_out_ = true;
  }

  bool ran_out_ = false;
  std::vector<Process> processes_ = std::vector<Process>(kWorkers);
  NetId id_ = {};
  NetAccount account_{kWorkers,
                      {.make_id = [this] { return Result<NetId>(id_); }},
                      [this](int32_t worker, const NetOrder& order) { follow(worker, order); }};
};

TEST_F(NetAccountMemory, AllAreInOneGenerationInTheEnd) {
  int failures = 0;
  const std::vector<std::function<void()>> events = {[this] { lose(1); }, [this] { call(1, [this] { account_.ready(1); }); },
                                                     [this] { news(2, NetNews::Kind::kFailed); }};
  for (int32_t worker = 0; worker < kWorkers; ++worker) account_.ready(worker);
  for (size_t event = 0; event < events.size(); ++event) {
    for (int64_t limit = 0;; ++limit) {
      if (event == 1) lose(1);
      ran_out_ = false;
      allocations_left = limit;
      events[event]();
      allocations_left = -1;
      if (event == 0) account_.ready(1);
      for (int32_t worker = 0; worker < kWorkers; ++worker) {
        const Process& p = processes_[static_cast<size_t>(worker)];
        EXPECT_EQ(p.rank, worker) << "event " << event << ", allocation " << limit;
        EXPECT_EQ(p.joined, processes_[0].joined) << "event " << event << ", allocation " << limit;
        news(worker, NetNews::Kind::kUp);
      }
      EXPECT_TRUE(account_.is_up()) << "event " << event << ", allocation " << limit;
      failures += ran_out_;
      if (!ran_out_) break;
      lose(0);  // a death: failures before it do not count
      account_.ready(0);
    }
  }
  EXPECT_GT(failures, 5);
}

}  // namespace
}  // namespace otr
