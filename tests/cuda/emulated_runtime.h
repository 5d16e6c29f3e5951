// Streams, captures and memory of the emulated device (emulator.h).
//
// Thread safety: enqueue and run may be called from any thread; what streams hold runs one piece at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace otr::emulator {

// `work` runs at once on the default stream; else when its stream is asked, or whenever the capture that is under way is
// launched.
void enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace otr::emulator

// A library's work is on the stream: +1; it is done: -1. The stream is not ready meanwhile. On the default stream (null):
// whatever waits for that one, as cudaMemcpy does, ends the program, for here nobody would wake it.
extern "C" void emulated_hold(cudaStream_t stream, int change);

// The next cuMemUnmap and cuMemRelease calls that fail.
extern "C" void emulated_refuse(int unmaps, int releases);

// The next captures that another thread ends, by waiting for the device; the next uploads for which there is no memory.
extern "C" void emulated_spoil(int captures, int uploads);

// Another thread begins, or ends, a capture for all threads: what may wait or take memory is refused, and breaks it, on those
// that mind it.
extern "C" void emulated_capture_elsewhere(bool begins);
extern "C" bool emulated_capture_is_broken();
