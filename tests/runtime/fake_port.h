// A PagePort between the threads of one process, which can be told to hang.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/kv_lease.h"
#include "runtime/page_port.h"
#include "tests/runtime/sanitized.h"

namespace otr {

inline constexpr int32_t kPortPatienceMs = kSanitized ? 2000 : 300;

// What goes between the ports, of every generation apart.
struct Switchboard {
  struct Room {
    int32_t joined = 0;
    std::deque<std::vector<std::byte>> moved;  // pages and the word, a move each
  };
  std::mutex mutex;
  std::map<NetId, Room> rooms;
  std::atomic<int32_t> num_hanging = 0;   // sends to come that hang
  std::shared_ptr<const LentPages> read;  // by who hangs, until it has left; guarded by mutex
  std::atomic<int32_t> num_left = 0;      // of those that hung
  std::atomic<bool> may_leave = true;     // else they wait, as an abort may take a while
  std::atomic<bool> clings = false;       // whoever leaves then leaves in vain
};

class FakePort final : public PagePort {
 public:
  FakePort(Switchboard* board, int32_t patience_ms) : board_(*board), patience_(patience_ms) {}

  Status join(const NetId& id, int32_t size, int32_t, const GivenUp& given_up) override {
    {
      const std::lock_guard<std::mutex> lock(board_.mutex);
      room_ = &board_.rooms[id];
      ++room_->joined;
    }
    constexpr std::chrono::minutes kLong(1);  // all of them come, on a busy machine late
    return wait([&] { return room_->joined == size; }, given_up, kLong);
  }
  Status move(PageMove* move, const GivenUp& given_up) override {
    std::vector<std::byte> bytes;
    if (move->sends) {
      if (board_.num_hanging > 0 && board_.num_hanging-- > 0) {
        hangs_ = true;
        return wait([] { return false; }, given_up, patience_);
      }
      for (const std::byte* page : move->pages) bytes.insert(bytes.end(), page, page + move->page_bytes);
      const std::byte* const word = reinterpret_cast<const std::byte*>(&move->word);
      bytes.insert(bytes.end(), word, word + sizeof move->word);
      const std::lock_guard<std::mutex> lock(board_.mutex);
      room_->moved.push_back(std::move(bytes));
      return {};
    }
    OTR_RETURN_IF_ERROR(wait(
        [&] {
          if (room_->moved.empty()) return false;
          bytes = std::move(room_->moved.front());
          room_->moved.pop_front();
          return true;
        },
        given_up, patience_));
    for (size_t i = 0; i < move->pages.size(); ++i)
      std::memcpy(move->pages[i], bytes.data() + i * move->page_bytes, move->page_bytes);
    std::memcpy(&move->word, bytes.data() + move->pages.size() * move->page_bytes, sizeof move->word);
    return {};
  }
  Status leave() override {
    room_ = nullptr;
    if (!std::exchange(hangs_, false)) return {};
    if (board_.clings) return Status(StatusCode::kTimeout, "it clings");
    for (int i = 0; i < 10'000 && !board_.may_leave; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard<std::mutex> lock(board_.mutex);
    EXPECT_TRUE(board_.read == nullptr || !board_.read->over());
    ++board_.num_left;
    return {};
  }

 private:
  Status wait(const std::function<bool()>& done, const GivenUp& given_up, std::chrono::milliseconds patience) {
    const auto limit = std::chrono::steady_clock::now() + patience;
    while (std::chrono::steady_clock::now() < limit) {
      {
        const std::lock_guard<std::mutex> lock(board_.mutex);
        if (done()) return {};
      }
      if (given_up()) return Status(StatusCode::kLost, "given up");
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return Status(StatusCode::kTimeout, "nobody came");
  }
  Switchboard& board_;
  const std::chrono::milliseconds patience_;
  Switchboard::Room* room_ = nullptr;
  bool hangs_ = false;  // a move that it has not left yet
};

}  // namespace otr
