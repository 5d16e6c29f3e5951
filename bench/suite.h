// The suite: cases under Google Benchmark, each verified before it is timed.
//
// A case makes its operands when its turn comes (Work). Its first call is compared with the definition and its whole output
// hashed; a wrong one is an error and is not timed. Then slices of the case alternate with slices of its ceilings. Reported:
//
//   time              of a call, in the fastest tenth of a repetition's slices (suite.cpp says why)
//   bytes_per_second  what a call must read and write at least, each byte once
//   flops             its multiplications and additions, per second
//   ceiling           the time that its bytes or its flops take at the rate measured next to it, whichever is longer, divided
//                     by its own; both in the fastest tenth of their slices. Flops of bytes (linear_w4's) against products of
//                     bytes, of which an instruction does twice as many
//   label             "hash=…" of the output; "bound=…" which ceiling that was
//
// Single-threaded, but for the pool.
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <memory>
#include <string>

#include "bench/ceiling.h"
#include "bench/random_arena.h"
#include "bench/shapes.h"

namespace otr::bench {

// A case's operands, alive in the closures.
struct Work {
  double bytes = 0;                       // of one call
  double flops = 0;                       // of the path's matrix instructions in one call; 0: not bound by them
  double items = 0;                       // of one call, reported as items_per_second; 0: none
  Bound memory = Bound::kRead;            // what its bytes are compared with
  Bound products = Bound::kMatrix;        // and what its flops are
  std::function<void(int64_t call)> run;  // call i uses copy i % copies of the operands
  std::function<std::string()> verify;    // after run(0): "", or what is wrong
  std::function<uint64_t()> hash;         // after run(0): of its whole output
};

class Suite {
 public:
  // `isa` as in select_kernels, `num_threads` as in ThreadPool.
  Suite(const KernelTable& kernels, int num_threads);

  const KernelTable& kernels() const { return kernels_; }
  ThreadPool& pool() { return pool_; }
  RandomArena& arena() { return arena_; }

  // Registers a case. One Work exists at a time.
  void add(const std::string& name, std::function<Work()> make);

  int num_wrong() const { return num_wrong_; }

 private:
  struct Case {
    std::function<Work()> make;
    bool verified = false;
    std::string fault;
    uint64_t hash = 0;
    SliceClock clock;
    int64_t calls = 0;  // of a slice: the same in every repetition
  };

  void activate(Case& c);
  int64_t calls_of_a_slice();
  void time(Case& c, benchmark::State& state);

  const KernelTable& kernels_;
  ThreadPool pool_;
  RandomArena arena_;
  Ceiling ceiling_;
  const Case* active_ = nullptr;
  Work work_;  // of active_
  int64_t next_call_ = 0;
  int num_wrong_ = 0;
};

// The families. `model`: a folder for the end-to-end cases.
void add_linear_cases(Suite& suite);
void add_linear_w4_cases(Suite& suite);  // and quantize_w4
void add_attention_cases(Suite& suite);
void add_row_cases(Suite& suite);  // embed, rmsnorm, rope_table, rope_append, page_copy, page_zero
void add_sample_cases(Suite& suite);
void add_engine_cases(Suite& suite, const std::string& model);

// The program. `change`, if not null, puts its own functions into a copy of the path's table: for tests of the suite.
int bench_main(int argc, char** argv, void (*change)(KernelTable& table));

}  // namespace otr::bench
