// The suite: cases under Google Benchmark, each verified before it is timed.
//
// A case makes its operands when its turn comes (Work). Its first call is compared with the definition and its whole output
// hashed; a wrong one is an error and is not timed. Then slices of the case alternate with slices of its ceilings, and at the
// end of every repetition the first call is made again, for two milliseconds with others between: another hash is an error,
// too. What is thrown ends the case it is thrown in. Reported:
//
//   time              of a call, in the fastest tenth of a repetition's undisturbed slices (slices.h)
//   bytes_per_second  what a call must read and write at least, each byte once
//   flops             its multiplications and additions, per second
//   ceiling           the time that its bytes or its flops take at the rate measured next to it, whichever is longer, divided
//                     by its own; both in the fastest tenth of their slices. Of its bytes, those that come from memory. Flops of
//                     bytes (linear_w4's) against products of bytes, of which an instruction does twice as many
//   median_us         of a call, in half of the undisturbed slices
//   calls             of a slice
//   slices, undisturbed, ceiling_slices, ceiling_undisturbed
//                     of the repetition, and of the ceiling that counts. With fewer than Slices::kEnough undisturbed ones the
//                     fastest tenth is the fastest one; with none, that of all slices
//   label             "hash=…" of the output; "bound=…" which ceiling that was
//
// Single-threaded, but for the pool.
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/ceiling.h"
#include "bench/random_arena.h"
#include "bench/shapes.h"

namespace otr::bench {

// A case's operands, alive in the closures.
struct Work {
  double bytes = 0;                       // of one call
  double cached_bytes = 0;                // of these, what lies in caches and not in memory: the ceiling leaves it out
  double flops = 0;                       // of the path's matrix instructions in one call; 0: not bound by them
  double items = 0;                       // of one call, reported as items_per_second; 0: none
  Bound memory = Bound::kRead;            // what its bytes are compared with
  Bound products = Bound::kMatrix;        // and what its flops are
  std::function<void(int64_t call)> run;  // calls take copies of the operands in turn; call 0 always the first
  std::function<void()> spoil;            // before run(0): its outputs, so that it shows if one is not written. May be null
  std::function<uint64_t()> hash;         // after run(0): of its whole output
  std::function<std::string()> verify;    // after run(0): "", or what is wrong. May make calls of its own
};

struct Repetition;

class Suite {
 public:
  // `kernels` lives longer; `num_threads` as in ThreadPool.
  Suite(const KernelTable& kernels, int num_threads);

  const KernelTable& kernels() const { return kernels_; }
  ThreadPool& pool() { return pool_; }
  RandomArena& arena() { return arena_; }

  // Registers a case. One Work exists at a time.
  void add(const std::string& name, std::function<Work()> make);

  int num_wrong() const { return num_wrong_; }

  // The case's operands, for tests; null if there is no such case.
  std::function<Work()> work_of(const std::string& name) const;

 private:
  struct Case {
    std::string name;
    std::function<Work()> make;
    bool verified = false;
    std::string fault;
    uint64_t hash = 0;
    double best_share = 0;
    bool on_one_thread = false;
    int64_t calls = 0;  // of a slice: may grow
    int64_t batch = 0;  // what a slice counts for at the library: always the same
  };

  void run(Case& c, benchmark::State& state);
  void activate(Case& c);
  uint64_t first_call();
  void first_call_again(uint64_t hash);
  int64_t calls_of_a_slice(int64_t before);
  bool runs_on_one_thread();
  void measure(Case& c, benchmark::State& state);
  void report(const Repetition& r, const Case& c, benchmark::State& state) const;

  const KernelTable& kernels_;
  ThreadPool pool_;
  RandomArena arena_;
  Ceiling ceiling_;
  std::vector<std::shared_ptr<Case>> cases_;
  double best_shares_[kNumBounds] = {};
  const Case* active_ = nullptr;
  Work work_;  // of active_
  int64_t next_call_ = 0;
  bool counting_ = false;  // the library's loop is not over
  int num_wrong_ = 0;
};

// The families. `model`: a folder for the end-to-end cases.
void add_linear_cases(Suite& suite);
void add_linear_w4_cases(Suite& suite);  // and quantize_w4
void add_attention_cases(Suite& suite);
void add_row_cases(Suite& suite);   // embed, rmsnorm, rope_table, rope_append, route, and those of pages
void add_page_cases(Suite& suite);  // page_copy, page_zero, page_gather, page_scatter
void add_sample_cases(Suite& suite);
void add_engine_cases(Suite& suite, const std::string& model);

// The program. `change`, if not null, puts its own functions into a copy of the path's table: for tests of the suite.
int bench_main(int argc, char** argv, void (*change)(KernelTable& table));

}  // namespace otr::bench
