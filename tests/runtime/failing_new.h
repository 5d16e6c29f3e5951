// operator new that counts and fails on demand (failing_new.cpp): for a program of its own.
//
// Thread safety: what is of a thread is its own; the rest may be read and written by any.
#pragma once

#include <atomic>
#include <cstdint>

namespace otr {

extern thread_local bool is_test_thread;              // whose allocations are not the engine's
extern thread_local int64_t allocations_left;         // of this thread before one fails; negative: no limit
extern std::atomic<int64_t> engine_allocations;       // of all threads that are not a test's
extern std::atomic<int64_t> engine_allocations_left;  // of these before one fails; negative: no limit

}  // namespace otr
