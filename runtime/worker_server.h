// WorkerServer: the worker in a process of its own, as its engine's orders reach it and its reports leave it.
//
// The serving thread follows orders and sends heartbeats; the worker's thread ticks and sends reports, at once where a sample
// ends or goes, else every few milliseconds: what a report tells of all samples is the state between two ticks. Both send under
// one lock and wait for the socket no longer than the engine's limit. Nothing is allocated in a tick once the buffers have
// grown to a report's size.
//
// Errors: serve_worker() gives what kept the worker from its work; the engine has been told. It ends the process where that has
// to end: the engine is gone and the worker does not come to rest, or the worker is broken.
#pragma once

#include "kernels/base/status.h"

namespace otr {

// Serves the engine at the other end of socket `fd`, which it takes, until that says stop or is gone.
Status serve_worker(int fd);

}  // namespace otr
