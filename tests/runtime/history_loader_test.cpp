// Who takes a file waits for none, and the newest is what counts in the end.
#include "runtime/history_loader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <new>
#include <string>

namespace otr {
namespace {

class HistoryLoads : public testing::Test {
 protected:
  // A file that holds one letter: a pipe will do.
  static OwnedFd file(char letter) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    EXPECT_EQ(write(ends[1], &letter, 1), 1);
    close(ends[1]);
    return OwnedFd(ends[0]);
  }
  void load(int fd) {
    char letter = 0;
    EXPECT_EQ(read(fd, &letter, 1), 1);
    std::unique_lock<std::mutex> lock(mutex_);
    loaded_ += letter;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    if (letter == 'x') throw std::bad_alloc();
  }
  void wait_for(const std::string& loaded) {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::minutes(1), [&] { return loaded_ == loaded; })) << loaded_;
  }
  void let(bool pass) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = pass;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  std::string loaded_;
};

TEST_F(HistoryLoads, TheNewestIsNext) {
  HistoryLoader loader([this](int fd) { load(fd); });
  loader.take(file('a'));
  wait_for("a");
  for (const char letter : {'b', 'c', 'd'}) loader.take(file(letter));  // it reads the first all the while
  let(true);
  wait_for("ad");
  for (std::string all = "ad"; all.size() < 50;) {  // whether its thread has just ended or not
    const char letter = all.size() == 5 ? 'x' : 'e';
    loader.take(file(letter));
    wait_for(all += letter);
  }
}

TEST_F(HistoryLoads, WhatWaitsAtTheEndIsNotRead) {
  HistoryLoader loader([this](int fd) { load(fd); });
  loader.take(file('a'));
  wait_for("a");
  loader.take(file('b'));
  std::thread opens([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    let(true);
  });
  loader.stop();
  opens.join();
  EXPECT_EQ(loaded_, "a");
  loader.take(file('c'));
  wait_for("ac");
}

}  // namespace
}  // namespace otr
