// Pages that whoever gets another sample keeps to spare.
//
// Pure. Thread safety: functions of their arguments.
#pragma once

#include <cstdint>

namespace otr {

// So that joining does not itself cause preemption in the very next ticks: each running sequence asks for a page once in 64
// ticks.
inline int32_t spare_pages(int32_t num_running) {
  constexpr int32_t kRunningPerSparePage = 8;
  return num_running / kRunningPerSparePage;
}

}  // namespace otr
