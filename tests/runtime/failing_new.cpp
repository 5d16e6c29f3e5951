#include "tests/runtime/failing_new.h"

#include <cstdlib>
#include <new>

namespace otr {

thread_local bool is_test_thread = false;
thread_local int64_t allocations_left = -1;
std::atomic<int64_t> engine_allocations{0};
std::atomic<int64_t> engine_allocations_left{-1};

}  // namespace otr

using namespace otr;

// Not inlined: the compiler would see one side of a pair and take it for a mismatch.
[[gnu::noinline]] void* operator new(size_t size) {
  if (!is_test_thread) {
    ++engine_allocations;
    if (engine_allocations_left >= 0 && engine_allocations_left-- == 0) throw std::bad_alloc();
  }
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
