#include "spec/acceptance_dial.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace otr {
namespace {

constexpr uint32_t kDomain = 2;             // of noise: none that samples are drawn with
constexpr uint32_t kRequest = 0xffffffffu;  // no position

double unit(uint32_t word) { return (word + 0.5) * 0x1p-32; }

PhiloxBlock words(const NoiseStream& request, uint32_t salt, uint32_t position) {
  NoiseStream s = request;
  s.r[3] ^= kDomain;
  return noise_words(s, salt, position);
}

}  // namespace

double AcceptanceDial::share(const NoiseStream& request) const {
  if (deviation == 0) return keep;
  const PhiloxBlock b = words(request, salt, kRequest);
  const double normal = std::sqrt(-2 * std::log(unit(b.w[0]))) * std::cos(6.283185307179586 * unit(b.w[1]));
  return std::clamp(keep + deviation * normal, 0.0, 1.0);
}

bool AcceptanceDial::spoils(const NoiseStream& request, int32_t position) const {
  return on() && unit(words(request, salt, static_cast<uint32_t>(position)).w[2]) > share(request);
}

void AcceptanceDial::spoil(const NoiseStream& request, int32_t position, int32_t vocab_size, Forest* forest) const {
  if (!on()) return;
  std::array<int32_t, kMaxDraftNodes> was;  // by node: what a sibling gives up stays wrong for the others
  for (int32_t node = 0; node < forest->size(); ++node) was[static_cast<size_t>(node)] = (*forest)[node].token;
  for (int32_t node = 0; node < forest->size(); ++node) {
    const DraftNode& n = (*forest)[node];
    if (!spoils(request, position + n.depth - 1)) continue;
    const auto is_taken = [&](int32_t token) {
      for (int32_t other = n.parent + 1; other < forest->size(); ++other) {
        const bool has = (*forest)[other].token == token || was[static_cast<size_t>(other)] == token;
        if ((*forest)[other].parent == n.parent && has) return true;
      }
      return false;
    };
    int32_t wrong = n.token;
    do wrong = (wrong + 1) % vocab_size;
    while (is_taken(wrong));
    forest->set_token(node, wrong);
  }
}

}  // namespace otr
