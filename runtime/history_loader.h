// HistoryLoader: what a worker process drafts from, read beside everything else: a file may take a while. Of those that come
// meanwhile the newest is next, and the others are never read: each has all that was there before it.
//
// Thread safety: take() and stop() by one thread; `load` is called by the loader's own, one file at a time.
#pragma once

#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/worker_channel.h"

namespace otr {

class HistoryLoader {
 public:
  explicit HistoryLoader(std::function<void(int fd)> load) : load_(std::move(load)) {}
  ~HistoryLoader() { stop(); }
  HistoryLoader(const HistoryLoader&) = delete;
  HistoryLoader& operator=(const HistoryLoader&) = delete;

  // Waits for no file.
  void take(OwnedFd file);
  // Waits for the file that is being read.
  void stop();

 private:
  void run();

  const std::function<void(int fd)> load_;
  std::thread thread_;
  std::mutex mutex_;
  // Guarded by mutex_.
  OwnedFd next_;
  bool loading_ = false;  // the thread will look at next_ again
};

}  // namespace otr
