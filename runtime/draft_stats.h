// DraftStats: what a drafting worker has counted.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <string>

namespace otr {

struct DraftStats {
  int64_t ticks = 0;
  int64_t requests = 0, ended_requests = 0;
  int64_t drafted_tokens = 0;
  int64_t kept_tokens = 0;    // of them, the target's own
  int64_t wasted_tokens = 0;  // drafted behind a wrong token: at most 2 w - 1 for each rollback
  int64_t rollbacks = 0;
  int64_t closed_windows = 0;  // for want of room
  int64_t reconfigured = 0;    // settings looked at
  int64_t full_links = 0;      // times that a request's draft found no room
  int32_t kv_pages_in_use = 0;
  double busy_seconds = 0;

  void add(const DraftStats& other);
  // Of all tokens that were judged, those that were kept; with the weight of two tokens at one half.
  double keep_rate() const { return static_cast<double>(kept_tokens + 1) / static_cast<double>(kept_tokens + rollbacks + 2); }
  std::string json() const;  // {"ticks":…,…}
};

}  // namespace otr
