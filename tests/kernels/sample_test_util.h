// Draws for the tests of sample: one row of logits or many, workspaces sized as the header says, and the definition by brute
// force.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/sample/sample.h"
#include "tests/kernels/vector_test_util.h"

namespace otr::testing_util {

inline SampleDraw plain_draw(float temperature = 1.0f, uint32_t position = 0) {
  SampleDraw d{};
  d.position = static_cast<int32_t>(position);
  d.noise = noise_stream({11, 22, 33});
  d.forced_token = -1;
  d.temperature = temperature;
  d.top_p = 1.0f;
  d.repetition_penalty = 1.0f;
  return d;
}

inline std::vector<SampleResult> run_draws(const KernelTable& kernels, const std::vector<float>& logits, int32_t vocab,
                                           const std::vector<SampleDraw>& draws, ThreadPool& pool) {
  const size_t workspace = static_cast<size_t>(pool.num_threads() * sample_workspace_stride(vocab));
  std::vector<float> scaled(workspace);
  std::vector<int32_t> order(workspace);
  std::vector<SampleResult> results(draws.size());
  kernels.sample({static_cast<int32_t>(draws.size()), vocab, logits.data(), vocab, draws.data(), results.data(), scaled.data(),
                  order.data()},
                 pool);
  return results;
}

inline SampleResult run_draw(const KernelTable& kernels, const std::vector<float>& logits, const SampleDraw& draw) {
  ThreadPool pool(1);
  return run_draws(kernels, logits, static_cast<int32_t>(logits.size()), {draw}, pool)[0];
}

inline bool same_result(const SampleResult& a, const SampleResult& b) {
  if (a.fault != 0 || b.fault != 0) return a.fault == b.fault;
  return a.token == b.token && bits_of(a.logprob) == bits_of(b.logprob) && bits_of(a.raw_logprob) == bits_of(b.raw_logprob);
}

// The distribution a draw is sampled from, in float64, by sorting everything: the filters' definition written down once more.
// Token ids in the total order, and their probabilities; empty ones are left out.
struct Distribution {
  std::vector<int32_t> order;
  std::vector<double> p;  // [vocab]

  Distribution(std::vector<float> logits, const SampleDraw& d) : p(logits.size(), 0.0) {
    for (int32_t i = 0; i < d.num_penalties; ++i) {
      const PenaltyEntry& e = d.penalties[i];
      float& x = logits[static_cast<size_t>(e.token)];
      x = x > 0 ? x / d.repetition_penalty : x * d.repetition_penalty;
      if (e.output_count > 0) x -= d.frequency_penalty * static_cast<float>(e.output_count) + d.presence_penalty;
    }
    const auto logit = [&](int32_t v) { return logits[static_cast<size_t>(v)] / d.temperature; };
    order.resize(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
    const auto weight = [&](int32_t v) {
      return std::exp(static_cast<double>(logit(v)) - static_cast<double>(logit(order[0])));
    };

    if (d.top_k > 0 && d.top_k < static_cast<int32_t>(order.size())) order.resize(static_cast<size_t>(d.top_k));
    double total = 0.0;
    for (const int32_t v : order) total += weight(v);
    if (d.top_p < 1.0f) {
      double cumulative = 0.0;
      size_t kept = 0;
      while (kept < order.size() && cumulative < static_cast<double>(d.top_p) * total) cumulative += weight(order[kept++]);
      order.resize(std::max<size_t>(kept, 1));
    }
    while (order.size() > 1 && weight(order.back()) < static_cast<double>(d.min_p)) order.pop_back();
    total = 0.0;
    for (const int32_t v : order) total += weight(v);
    for (const int32_t v : order) p[static_cast<size_t>(v)] = weight(v) / total;
  }
};

}  // namespace otr::testing_util
