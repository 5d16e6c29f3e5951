// LengthHazard: how many tokens a response of a given length still has to come, from the lengths of those that have ended and
// of those that still run.
//
// Beyond a length l responses are taken to end at one rate, the most likely one given what was seen:
//
//   remaining(l) = (tokens seen beyond l, of ended and running responses + l) / (responses that ended beyond l + 1)
//
// The one more in the denominator, and its l tokens, are what is believed before anything is seen: as many again.
//
// Thread safety: single-threaded. Never allocates.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace otr {

class LengthHazard {
 public:
  LengthHazard();
  // A response ended with so many tokens.
  void note_end(int32_t length);
  // The lengths of those that run. Until the next call, remaining() counts them as they were.
  void see_running(std::span<const int32_t> lengths);
  double remaining(int32_t length) const;
  // The responses that have ended count half from here on.
  void end_step();

 private:
  // Buckets of an eighth of an octave, so that what lies within one does not matter.
  static constexpr size_t kBuckets = 8 * 24;
  static size_t bucket_of(double length);
  struct Tail {
    double ends = 0, tokens = 0;  // beyond the bucket's lower end
  };
  void add_up();

  std::array<double, kBuckets + 1> starts_;                 // the lengths at which buckets begin
  std::array<double, kBuckets> ended_ = {}, running_ = {};  // how many, by length
  std::array<Tail, kBuckets> tails_ = {};
};

}  // namespace otr
