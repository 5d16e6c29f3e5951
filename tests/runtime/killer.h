// Killer: processes of a test die at random.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <random>
#include <thread>
#include <vector>

#include "tests/runtime/process_variant.h"

namespace otr {

// Kills one of this process's children again and again until it is destroyed, 40 times at most: then whoever comes back may
// finish.
class Killer {
 public:
  Killer(uint32_t seed, int32_t least_ms, int32_t most_ms)
      : thread_([this, seed, least_ms, most_ms] {
          std::mt19937 random(seed);
          for (int i = 0; i < 40 && !over_; ++i) {
            const auto more_ms = static_cast<uint32_t>(random()) % static_cast<uint32_t>(most_ms - least_ms + 1);
            std::this_thread::sleep_for(std::chrono::milliseconds(least_ms + static_cast<int32_t>(more_ms)));
            const std::vector<pid_t> pids = children();
            if (!pids.empty()) kill(pids[random() % pids.size()], SIGKILL);
          }
        }) {}
  ~Killer() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

}  // namespace otr
