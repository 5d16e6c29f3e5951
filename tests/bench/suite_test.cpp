// The suite on cases made for it: what stops a case, what is reported.
#include "bench/suite.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <stdexcept>
#include <thread>

#include "bench/slices.h"
#include "kernels/base/clock.h"

namespace otr::bench {
namespace {

struct Result {
  std::string error, label;
  double seconds = 0;
  std::map<std::string, double> counters;
};

// "" if there is none. Its name changed with Google Benchmark 1.8.
template <typename Run>
std::string error_of(const Run& run) {
  if constexpr (requires { run.error_occurred; }) return run.error_occurred ? run.error_message : "";
  else return run.skipped ? run.skip_message : "";
}

class Results : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type == Run::RT_Aggregate) continue;
      Result& result = by_name[run.run_name.function_name];
      result.error = error_of(run);
      if (!result.error.empty()) continue;
      result.label = run.report_label;
      result.seconds = run.real_accumulated_time / static_cast<double>(run.iterations);
      for (const auto& [name, counter] : run.counters) result.counters[name] = counter.value;
    }
  }
  std::map<std::string, Result> by_name;
};

class SuiteTest : public ::testing::Test {
 protected:
  SuiteTest() { repeat(1); }
  static void repeat(int times) {
    std::string program = "bench_test", time = "--benchmark_min_time=0.02";
    std::string repetitions = "--benchmark_repetitions=" + std::to_string(times);
    char* arguments[] = {program.data(), time.data(), repetitions.data(), nullptr};
    int count = 3;
    benchmark::Initialize(&count, arguments);
  }
  ~SuiteTest() override { benchmark::ClearRegisteredBenchmarks(); }

  // A call takes `seconds` and writes the number 42.
  Work work(double seconds = 2e-5) {
    Work made;
    made.bytes = 1e5;
    made.run = [this, seconds](int64_t) {
      ++calls;
      for (const Stopwatch watch; watch.seconds() < seconds;) {
      }
      output = 42;
    };
    made.spoil = [this] { output = 0; };
    made.hash = [this] { return output; };
    made.verify = [] { return std::string(); };
    return made;
  }
  // Registers it with a sound case behind it, runs both, and returns what came of the first one.
  Result run(const Work& first) {
    suite.add("first", [first] { return first; });
    suite.add("sound", [this] { return work(); });
    Results results;
    benchmark::RunSpecifiedBenchmarks(&results, ".");
    EXPECT_EQ(results.by_name["sound"].error, "");
    EXPECT_GT(results.by_name["sound"].seconds, 1.9e-5);
    return results.by_name["first"];
  }

  Suite suite{*select_kernels("cpu-scalar").value(), 1};
  int64_t calls = 0;
  uint64_t output = 0;
};

TEST_F(SuiteTest, ReportsTimesSlicesAndTheHash) {
  const Result result = run(work());
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(result.label, "hash=000000000000002a bound=read");
  const std::map<std::string, double>& counters = result.counters;
  EXPECT_GE(result.seconds, 2e-5);
  EXPECT_GE(counters.at("median_us"), 1e6 * result.seconds * 0.999);
  EXPECT_GT(counters.at("ceiling"), 0);
  EXPECT_GE(counters.at("slices"), counters.at("undisturbed"));
  EXPECT_GE(counters.at("undisturbed"), 1);
  EXPECT_GE(counters.at("ceiling_slices"), counters.at("ceiling_undisturbed"));
  EXPECT_EQ(suite.num_wrong(), 0);
}

// The other threads of the pool, which had a part in the ceilings, spin for a while and sleep then: that is not the case's.
TEST_F(SuiteTest, SlicesOfOneThreadAreJudgedByItsClock) {
  double undisturbed = 0, slices = 0;
  for (int attempt = 0; attempt < 5 && undisturbed < 0.5 * slices + 1; ++attempt) {  // others may have the cores
    benchmark::ClearRegisteredBenchmarks();
    Suite wide{*select_kernels("cpu-scalar").value(), 2};
    wide.add("one", [this] { return work(1e-6); });
    Results results;
    benchmark::RunSpecifiedBenchmarks(&results, ".");
    undisturbed = results.by_name["one"].counters.at("undisturbed");
    slices = results.by_name["one"].counters.at("slices");
  }
  EXPECT_GE(undisturbed, 0.5 * slices);
}

TEST_F(SuiteTest, AHashThatChangesIsAnError) {
  Work racing = work();
  racing.run = [this, sound = racing.run](int64_t call) {
    sound(call);
    if (calls > 60) output = 43;
  };
  EXPECT_EQ(run(racing).error, "wrong: hash differs between calls: 000000000000002a, then 000000000000002b");
  EXPECT_EQ(suite.num_wrong(), 1);
}

TEST_F(SuiteTest, AnOutputThatLaterCallsLeaveOutIsAnError) {
  Work lazy = work();
  lazy.run = [this, sound = lazy.run](int64_t call) {
    const uint64_t before = output;
    sound(call);
    if (calls > 60) output = before;  // the first call's, where nothing spoilt it
  };
  EXPECT_EQ(run(lazy).error, "wrong: hash differs between calls: 000000000000002a, then 0000000000000000");
}

TEST_F(SuiteTest, AWrongResultIsNotTimed) {
  Work wrong = work();
  wrong.verify = [] { return std::string("wrong: all of it"); };
  EXPECT_EQ(run(wrong).error, "wrong: all of it");
  EXPECT_EQ(suite.num_wrong(), 1);
}

TEST_F(SuiteTest, WhatIsThrownEndsOneCaseWhereverItIsThrown) {
  const auto fail = [] { throw std::runtime_error("no engine"); };
  Work verifies = work(), hashes = work(), runs = work();
  verifies.verify = [=] { return fail(), std::string(); };
  hashes.hash = [=] { return fail(), uint64_t{0}; };
  runs.run = [this, fail, sound = runs.run](int64_t call) {
    sound(call);
    if (calls > 60) fail();
  };
  int wrong = 0;
  for (const Work& work : {verifies, hashes, runs}) {
    calls = 0;
    EXPECT_EQ(run(work).error, "no engine");
    EXPECT_EQ(suite.num_wrong(), ++wrong);
    benchmark::ClearRegisteredBenchmarks();
  }
  suite.add("first", [fail]() -> Work { return fail(), Work(); });
  Results results;
  benchmark::RunSpecifiedBenchmarks(&results, ".");
  EXPECT_EQ(results.by_name["first"].error, "no engine");
}

// Counts the runs of a case: a hash that follows many calls is the first one at the end of a run.
struct Runs {
  int64_t count = 0, last_calls = 0;
  void note_hash(int64_t calls) {
    if (calls - last_calls > 4) ++count;
    last_calls = calls;
  }
};

// Some repetitions before it are sound, those behind it never begin.
TEST_F(SuiteTest, AnErrorOfALaterRepetitionEndsOneCaseAndNotTheProgram) {
  repeat(12);
  for (const bool in_a_slice : {false, true}) {
    Runs runs;
    Work racing = work();
    racing.hash = [this, &runs] { return runs.note_hash(calls), output; };
    racing.run = [this, &runs, in_a_slice, sound = racing.run](int64_t call) {
      sound(call);
      if (runs.count < 8) return;
      if (in_a_slice) throw std::runtime_error("no engine");
      output = 43;
    };
    const std::string error = run(racing).error;
    EXPECT_EQ(error, in_a_slice ? "no engine" : "wrong: hash differs between calls: 000000000000002a, then 000000000000002b");
    benchmark::ClearRegisteredBenchmarks();
  }
  EXPECT_EQ(suite.num_wrong(), 2);
}

TEST_F(SuiteTest, CallsMayGetQuickerBetweenRepetitions) {
  repeat(12);
  Runs runs;
  Work quicker = work();
  quicker.hash = [this, &runs] { return runs.note_hash(calls), output; };
  quicker.run = [&runs, quick = work(2e-5).run, slow = work(1e-4).run](int64_t call) { (runs.count < 8 ? slow : quick)(call); };
  const Result result = run(quicker);
  EXPECT_EQ(result.error, "");
  EXPECT_GE(result.counters.at("calls"), 8);
}

// The call behind every hash is put aside for longer than a slice: the first one of every ramp, too.
TEST_F(SuiteTest, APreemptedCallDoesNotMakeSlicesShort) {
  Work preempted = work();
  bool hashed = false;
  preempted.run = [&hashed, sound = preempted.run](int64_t call) {
    if (hashed && call > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      hashed = false;
    }
    sound(call);
  };
  preempted.hash = [&hashed, sound = preempted.hash] { return hashed = true, sound(); };
  EXPECT_GE(run(preempted).counters["calls"], 8);  // of 20 us in 500
}

// After the ceilings, which take the caches, a call is made that is not timed.
TEST_F(SuiteTest, TheFirstCallBehindTheCeilingsIsNotTimed) {
  Work cold = work();
  double last = -1;
  const Stopwatch clock;
  cold.run = [&, sound = cold.run](int64_t call) {
    const double start = clock.seconds();
    while (start - last > 1e-4 && clock.seconds() - start < 1e-3) {  // operands come from memory
    }
    sound(call);
    last = clock.seconds();
  };
  const Result result = run(cold);
  EXPECT_EQ(result.error, "");
  EXPECT_LT(result.seconds, 3e-5);
}

TEST(CeilingTest, ReadsAndWritesMemoryOfItsOwn) {
  const KernelTable& kernels = *select_kernels("cpu-scalar").value();
  ThreadPool pool(2);
  RandomArena arena(kernels, pool);
  const Element first = arena.elements(1)[0];
  Ceiling ceiling(kernels, pool, arena);
  const ThreadClocks threads;
  const char* const memory = ceiling.memory();
  const char copied = memory[100];
  EXPECT_GT(ceiling.measure(Bound::kRead, 0.001, threads).per_second, 0);
  EXPECT_LT(arena.num_elements() * 2, kRotationBytes / 8);  // cases' memory is not what it reads
  for (int i = 0; i < 2; ++i) ceiling.measure(Bound::kCopy, 0.5, threads);
  EXPECT_EQ(memory[kRotationBytes / 2 + 100], copied);
  EXPECT_EQ(memory[100], copied);
  for (int i = 0; i < 2; ++i) ceiling.measure(Bound::kWrite, 0.5, threads);
  EXPECT_LE(static_cast<unsigned char>(memory[kRotationBytes - 1]), 1);
  EXPECT_EQ(arena.elements(1)[0].bits, first.bits);
}

}  // namespace
}  // namespace otr::bench
