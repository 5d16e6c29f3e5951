// The law of drafting, in closed form: with which probability a draft made from q is what the target draws from p.
//
// Both draw with the same Gumbel noise: the target argmax(log p + G); the drafter's m-th candidate is the m-th of log q + G.
// With exponential variates E_v = e^-G_v, the target takes the least E_v / p_v, and the drafter orders by E_v / q_v:
//
//   P[both v] = 1 / sum_j max(p_j / p_v, q_j / q_v)                              no other is before v in either order
//   P[target v, m-th of the drafter] = int_0^inf e^{-x / p_v} PB_{m-1}({1 - e^{-x c_jv}}) dx,  c_jv = (q_j / q_v - p_j / p_v)^+
//
// Given that the target takes v with E_v = x, another j is before v at the drafter with probability 1 - e^{-x c_jv}, each for
// itself; PB_k is the probability that exactly k of them are (Poisson-binomial).
//
// Pure functions. REQUIRES: distributions of one length, each summing to 1; q_v > 0.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

namespace otr::law {

using Distribution = std::span<const double>;

// P[target and drafter choose v].
inline double both(Distribution p, Distribution q, size_t v) {
  if (p[v] == 0.0) return 0.0;
  double sum = 0.0;
  for (size_t j = 0; j < p.size(); ++j) sum += std::max(p[j] / p[v], q[j] / q[v]);
  return 1.0 / sum;
}

// P[the best candidate is what the target chose], given that it chose v.
inline double kept_if(Distribution p, Distribution q, size_t v) { return both(p, q, v) / p[v]; }

inline double match(Distribution p, Distribution q) {
  double sum = 0.0;
  for (size_t v = 0; v < p.size(); ++v) sum += both(p, q, v);
  return sum;
}

inline constexpr size_t kMostRanks = 4;

// P[the target's choice is the drafter's candidate number m + 1], m < kMostRanks. Tokens with p < `least` are left out: their
// sum is all that can be missing. x = p_v e^s turns the integral into one over s of a function that the trapezoid rule takes
// exactly enough at steps of 1/2 (it decays as e^s and e^{-e^s}).
inline std::array<double, kMostRanks> by_rank(Distribution p, Distribution q, double least = 1e-6) {
  constexpr double kStep = 0.5, kFrom = -20.0, kTo = 4.0;
  std::array<double, kMostRanks> chosen = {};
  std::vector<double> rates;
  for (size_t v = 0; v < p.size(); ++v) {
    if (p[v] < least) continue;
    rates.clear();
    for (size_t j = 0; j < p.size(); ++j) {
      const double rate = p[v] * q[j] / q[v] - p[j];
      if (rate > 1e-9) rates.push_back(rate);
    }
    for (double s = kFrom; s <= kTo; s += kStep) {
      const double y = std::exp(s), weight = kStep * p[v] * y * std::exp(-y);
      std::array<double, kMostRanks> exactly = {1.0};
      for (const double rate : rates) {
        const double not_before = std::exp(-y * rate), before = 1.0 - not_before;
        for (size_t k = kMostRanks; k-- > 0;) exactly[k] = exactly[k] * not_before + (k > 0 ? exactly[k - 1] * before : 0.0);
      }
      for (size_t k = 0; k < kMostRanks; ++k) chosen[k] += weight * exactly[k];
    }
  }
  return chosen;
}

// P[a draft drawn from q with noise of its own is what the target draws].
inline double independent(Distribution p, Distribution q) {
  double sum = 0.0;
  for (size_t v = 0; v < p.size(); ++v) sum += p[v] * q[v];
  return sum;
}

inline size_t likeliest(Distribution q) { return static_cast<size_t>(std::max_element(q.begin(), q.end()) - q.begin()); }

inline double total_variation(Distribution p, Distribution q) {
  double sum = 0.0;
  for (size_t v = 0; v < p.size(); ++v) sum += std::fabs(p[v] - q[v]);
  return sum / 2;
}

}  // namespace otr::law
