// A test of worker processes on GPUs whose samples take pages along by NCCL.
#pragma once

#include <cstdlib>
#include <functional>
#include <thread>

#include "tests/cuda/gpu_processes.h"

namespace otr {

class NcclSm90 : public GpuProcessesSm90 {
 protected:
  void TearDown() override { unsetenv("OTR_FAKE_NCCL"); }

  static GpuVariant moving(NcclOptions nccl) {
    nccl.library = OUTRIDER_NCCL_LIBRARY;
    return {.migrate_every = 2, .rebuild = {.mode = RebuildMode::kTransfer}, .nccl = nccl};
  }
  // Once all have joined, or after a second.
  Outputs run_joined(const GpuVariant& v) {
    const Result<std::unique_ptr<Engine>> engine = create(v);
    if (!engine.ok()) ADD_FAILURE() << engine.status().message();
    if (!engine.ok()) return {};
    wait_until_joined(engine.value().get());
    Outputs outputs = roll(engine.value().get());
    wait_for(
        engine.value().get(), [](const nlohmann::json&) { return false; }, 20);
    return outputs;
  }
  void wait_until_joined(Engine* e) {
    wait_for(e, [](const nlohmann::json& stats) { return stats["nccl"]["up"].get<bool>(); });
  }
  void wait_for(Engine* e, const std::function<bool(const nlohmann::json&)>& condition, int tries = 1000) {
    do {
      stats_ = nlohmann::json::parse(e->stats_json());
      if (condition(stats_)) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } while (--tries > 0);
  }
  const nlohmann::json& nccl() { return stats_["nccl"]; }
};

}  // namespace otr
