#include "tests/cuda/emulator.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "tests/cuda/emulated_ptx.h"
#include "tests/cuda/emulated_runtime.h"

dim3 threadIdx, blockIdx, gridDim;

namespace otr::emulator {
namespace {

constexpr size_t kStack = 256 * 1024;

struct Block;

struct Fiber {
  ucontext_t context;  // of its first turn
  jmp_buf place_left;  // of the later ones: a jump asks the system for nothing, where swapcontext makes two calls
  bool begun = false;
  Place place;
  Block* block = nullptr;
  const std::function<bool()>* waits_for = nullptr;  // null: can go on
  const char* what = "";
  uint32_t number = 0;
  bool done = false;
  std::vector<std::vector<ptx::PendingProduct>> products{1};
  int arrivals_under_way = 0;
  bool fenced = false;  // the proxies, since its last barrier
};

// A barrier's turn: `arrived` of this generation.
struct Meeting {
  unsigned arrived = 0, fenced = 0;
  uint64_t generation = 0;
};

struct Warp {
  uint64_t values[2][32];
  uint32_t wide[2][32][6];
  Meeting meeting;
};

struct Block {
  uint8_t *shared, *seen;
  Meeting meetings[16];
  int and_result[2] = {1, 1};
  std::vector<Warp> warps;
};

struct Cluster {
  std::vector<Block> blocks;
  Meeting meeting;
  std::deque<std::function<void()>> copies;
  ptx::BarrierFacts barriers;
  size_t shared_bytes = 0;
};

ucontext_t unused;
jmp_buf scheduler;
Fiber* running = nullptr;
Cluster* cluster = nullptr;
const std::function<void()>* body = nullptr;
std::mt19937 order(1);

void* map_memory(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) fail("no memory");
  return p;
}

void fiber_main() {
  (*body)();
  running->done = true;
  _longjmp(scheduler, 1);
}

// The scheduler's side: lets a fiber go on until it waits or is done.
void give_turn(Fiber* f) {
  if (_setjmp(scheduler) != 0) return;
  if (f->begun) _longjmp(f->place_left, 1);
  f->begun = true;
  swapcontext(&unused, &f->context);
}

// The fiber's side.
void end_turn(Fiber* f) {
  if (_setjmp(f->place_left) == 0) _longjmp(scheduler, 1);
}

void prepare(ucontext_t* context, void* stack) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = kStack;
  context->uc_link = nullptr;
  makecontext(context, fiber_main, 0);
}

bool meet(Meeting* m, unsigned count) {  // false: the last one has come
  if (++m->arrived > count) fail("more threads at a barrier than it is for");
  if (m->arrived < count) return true;
  m->arrived = 0;
  ++m->generation;
  return false;
}

void run_cluster(dim3 grid, dim3 size, unsigned count, unsigned first_x, unsigned y, size_t shared_bytes) {
  // Shared memory begins at 1,024, as on the device, and is poison: no kernel may count on zeros.
  static uint8_t* const memory = static_cast<uint8_t*>(map_memory(size_t{8} * kSharedWindow));
  static uint8_t* const seen = static_cast<uint8_t*>(map_memory(size_t{8} * kSharedWindow));
  static uint8_t* const stacks = static_cast<uint8_t*>(map_memory(size_t{8} * 1024 * kStack));
  Cluster state;
  cluster = &state;
  state.shared_bytes = shared_bytes;
  state.blocks.resize(count);
  std::vector<Fiber> fibers(size_t{count} * size.x);
  for (unsigned b = 0; b < count; ++b) {
    Block& block = state.blocks[b];
    block.shared = memory + size_t{b} * kSharedWindow;
    block.warps.resize((size.x + 31) / 32);
    std::memset(block.shared, 0x7f, kSharedWindow);
    block.seen = seen + size_t{b} * kSharedWindow;
    std::memset(block.seen + 1024, 0x7f, shared_bytes);
    for (unsigned t = 0; t < size.x; ++t) {
      Fiber& f = fibers[size_t{b} * size.x + t];
      f.place = {dim3(t), dim3(first_x + b, y), grid, size, b};
      f.block = &block;
      prepare(&f.context, stacks + (size_t{b} * size.x + t) * kStack);
    }
  }
  for (size_t left = fibers.size(); left > 0;) {
    bool moved = false;
    const size_t start = order() % fibers.size();  // another thread goes first each time
    for (size_t i = 0; i < fibers.size(); ++i) {
      Fiber& f = fibers[(start + i) % fibers.size()];
      if (f.done || (f.waits_for != nullptr && !(*f.waits_for)())) continue;
      moved = true;
      f.waits_for = nullptr;
      running = &f;
      threadIdx = f.place.thread;
      blockIdx = f.place.block;
      gridDim = f.place.grid;
      give_turn(&f);
      running = nullptr;
      left -= f.done ? 1 : 0;
    }
    // Some of the copies come in, in any order; all threads waiting, at least one does.
    while (!state.copies.empty() && (!moved || order() % 3 == 0)) {
      const size_t which = order() % state.copies.size();
      const std::function<void()> copy = state.copies[which];
      state.copies.erase(state.copies.begin() + static_cast<std::ptrdiff_t>(which));
      copy();
      moved = true;
    }
    if (!moved) {
      for (const Fiber& f : fibers) {
        if (!f.done && f.number != 16) {
          std::fprintf(stderr, "block %u, thread %u waits at %s %u\n", f.place.block.x, f.place.thread.x, f.what, f.number);
        }
      }
      fail("no thread can go on");
    }
  }
  if (!state.copies.empty()) fail("copies or arrivals outlive their cluster");
  cluster = nullptr;
}

}  // namespace

void fail(const char* what) {
  if (running != nullptr) {
    std::fprintf(stderr, "emulator: block %u, thread %u: ", running->place.block.x, running->place.thread.x);
  }
  std::fprintf(stderr, "emulator: %s\n", what);
  std::abort();
}

const Place& place() { return running->place; }
unsigned threads_of_block() { return running->place.block_size.x; }

void launch(dim3 grid, dim3 block, unsigned cluster_size, size_t shared_bytes, const std::function<void()>& kernel,
            cudaStream_t stream) {
  if (shared_bytes + 1024 > kSharedWindow) fail("too much shared memory");
  if (cluster_size == 0 || cluster_size > 8 || grid.x % cluster_size != 0) fail("a grid that is no multiple of its clusters");
  if (grid.x == 0 || grid.y == 0) fail("an empty grid");
  enqueue(stream, [=] {
    body = &kernel;
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; x += cluster_size) run_cluster(grid, block, cluster_size, x, y, shared_bytes);
    }
  });
}

uint8_t* dynamic_shared() { return running->block->shared + 1024; }

uint8_t* shared_at(uint32_t address, uint32_t rank) {
  if (rank >= cluster->blocks.size() || address < 1024 || address >= 1024 + cluster->shared_bytes)
    fail("an address outside shared memory");
  return cluster->blocks[rank].shared + address;
}

uint8_t* seen_at(uint32_t address, uint32_t rank) {
  return cluster->blocks[rank].seen + (shared_at(address, rank) - cluster->blocks[rank].shared);
}

void fence_async() { running->fenced = true; }

uint32_t address_of(const void* shared) {
  const std::ptrdiff_t offset = static_cast<const uint8_t*>(shared) - running->block->shared;
  if (offset < 1024 || offset > static_cast<std::ptrdiff_t>(1024 + cluster->shared_bytes))
    fail("a pointer that is not to shared memory");
  return static_cast<uint32_t>(offset);
}

void wait_until(const std::function<bool()>& ready, const char* what, uint32_t number) {
  Fiber* self = running;
  self->what = what;
  self->number = number;
  self->waits_for = &ready;
  end_turn(self);
}

void barrier(int number, unsigned count) {
  Meeting* m = number == 16 ? &cluster->meeting : &running->block->meetings[number];
  const uint64_t generation = m->generation;
  m->fenced += running->fenced ? 1 : 0;
  running->fenced = false;
  if (meet(m, count))
    return wait_until([m, generation] { return m->generation != generation; }, "barrier", static_cast<uint32_t>(number));
  const bool all_fenced = std::exchange(m->fenced, 0) == count;
  for (Block& block : cluster->blocks) {
    if (all_fenced && (number == 16 || &block == running->block))
      std::memcpy(block.seen + 1024, block.shared + 1024, cluster->shared_bytes);
  }
}

uint64_t exchange(uint64_t value, unsigned from) {
  Warp* warp = &running->block->warps[running->place.thread.x / 32];
  const uint64_t generation = warp->meeting.generation;
  warp->values[generation % 2][lane()] = value;
  if (meet(&warp->meeting, 32)) wait_until([warp, generation] { return warp->meeting.generation != generation; }, "warp", from);
  return warp->values[generation % 2][from];
}

void exchange_all(const uint32_t (&values)[6], uint32_t (&all)[32][6]) {
  Warp* warp = &running->block->warps[running->place.thread.x / 32];
  const uint64_t generation = warp->meeting.generation;
  std::memcpy(warp->wide[generation % 2][lane()], values, sizeof values);
  if (meet(&warp->meeting, 32))
    wait_until([warp, generation] { return warp->meeting.generation != generation; }, "warp", lane());
  std::memcpy(all, warp->wide[generation % 2], sizeof all);
}

void later(const std::function<void()>& copy) { cluster->copies.push_back(copy); }

}  // namespace otr::emulator

namespace otr::ptx {

uint32_t cluster_size() { return static_cast<uint32_t>(emulator::cluster->blocks.size()); }
std::vector<std::vector<PendingProduct>>& pending_products() { return emulator::running->products; }
BarrierFacts& barrier_facts() { return emulator::cluster->barriers; }
int* arrivals_under_way() { return &emulator::running->arrivals_under_way; }

}  // namespace otr::ptx

int __syncthreads_and(int value) {
  using namespace otr::emulator;
  int* results = running->block->and_result;
  const uint64_t turn = running->block->meetings[0].generation % 2;
  results[turn] &= value != 0 ? 1 : 0;
  __syncthreads();
  const int result = results[turn];
  __syncthreads();
  results[turn] = 1;  // two barriers: the next use, and the one after it, find 1
  __syncthreads();
  return result;
}
