// Leapfrog: replicas of one request, with different drafters on different workers, exchange the tokens that their verifiers
// found.
//
// All replicas produce the same response, so whatever one of them has found is certain for the others: they take it over
// (VerifyWindow::grow), run it with their next verification for its keys and values, and draft on behind it. A race is won by
// the request; here each block of tokens is won by whoever's draft was kept longest.
//
//   replica a   |draft, verify: +7|adopts 0, draft …  |adopts 4 …
//   replica b   |draft, verify: +2|adopts 5, draft …  : +9|
//
// A replica with other tokens than the rest is an error: the outputs were not exact.
//
// Thread safety: single-threaded. Nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/status.h"

namespace otr {

class Leapfrog {
 public:
  // `begin`: tokens known at first, the prompt's; `limit`: of prompt and response.
  Leapfrog(int32_t begin, int32_t limit, int32_t num_replicas);

  // What a replica found, from position `begin` on; `ended`: the response is complete with it. What is known is compared, what
  // lies beyond a gap is left for later. kInternal: the tokens differ.
  Status publish(int32_t replica, int32_t begin, std::span<const int32_t> tokens, bool ended);
  // What is known behind the replica's length: certain drafts. They are its own from then on.
  std::span<const int32_t> take(int32_t replica);

  std::span<const int32_t> known() const { return tokens_; }  // from `begin` on
  int32_t length() const { return begin_ + static_cast<int32_t>(tokens_.size()); }
  int32_t length(int32_t replica) const { return lengths_[static_cast<size_t>(replica)]; }
  bool ended() const { return ended_; }
  // Tokens that this replica was the first to find.
  int64_t num_first(int32_t replica) const { return first_[static_cast<size_t>(replica)]; }

 private:
  const int32_t begin_;
  std::vector<int32_t> tokens_;   // known, from position begin_ on
  std::vector<int32_t> lengths_;  // by replica
  std::vector<int64_t> first_;
  bool ended_ = false;
};

// Tokens a verification of replicas that exchange after each: the longest kept draft, and one more. Replica i keeps a token
// with p[i], up to window[i]. `shared`: the chance that a place is as hard for all drafters, so that the best alone counts
// there; otherwise they err independently. REQUIRES: as many windows as p, at least one
double leapfrog_tokens(std::span<const double> p, std::span<const int32_t> window, double shared);

}  // namespace otr
