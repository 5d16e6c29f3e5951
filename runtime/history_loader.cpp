#include "runtime/history_loader.h"

#include <exception>
#include <system_error>

namespace otr {

void HistoryLoader::take(OwnedFd file) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    next_ = std::move(file);
    if (loading_) return;
  }
  if (thread_.joinable()) thread_.join();  // nothing is left for it but to return
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    thread_ = std::thread([this] { run(); });
    loading_ = true;
  } catch (const std::system_error&) {  // it drafts from what there was, until the next file comes
  }
}

void HistoryLoader::run() {
  for (;;) {
    OwnedFd file;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      file = std::move(next_);
      loading_ = file.get() >= 0;
      if (!loading_) return;
    }
    try {
      load_(file.get());
    } catch (const std::exception&) {  // no memory: it drafts from what there was
    }
  }
}

void HistoryLoader::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    next_.reset();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace otr
