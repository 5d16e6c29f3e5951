// The parts of sm90_bench about drafters and draws: quantize_w4, linear_w4, candidates and sample.
#include <cmath>
#include <cstring>

#include "bench/sm90_arena.h"
#include "kernels/base/thread_pool.h"
#include "kernels/linear_w4/linear_w4_sm90.h"
#include "kernels/quantize_w4/quantize_w4_group.h"
#include "kernels/quantize_w4/quantize_w4_sm90.h"
#include "kernels/sample/sample_sm90.h"

namespace otr::bench {
namespace {

// ---- 4 bits -----------------------------------------------------------------------------------------------------------

// The weight of `elements` elements at w_at in 4 bits, as the definition makes them of one group: scale word and codes.
struct W4Group {
  W4Scale scale;
  uint32_t codes[kW4GroupK];

  explicit W4Group(int64_t w_at) {
    float max = 0.0f, min = 0.0f;
    for (int i = 0; i < kW4GroupK; ++i) {
      max = std::max(max, to_float(arena_value(w_at + i)));
      min = std::min(min, to_float(arena_value(w_at + i)));
    }
    scale = w4_scale(max, min, true);
    for (int i = 0; i < kW4GroupK; ++i) codes[i] = w4_quantize(to_float(arena_value(w_at + i)), scale);
  }
};

// Whether sampled groups have the definition's bits. REQUIRES: in_features is a multiple of 128, as it is of every model.
bool quantize_is_right(const DeviceBuffer<uint8_t>& packed, const Projection& w) {
  for (int64_t sample = 0; sample < 64; ++sample) {
    const int64_t n = sample == 0 ? w.out_features - 1 : sample * 104729 % w.out_features,
                  g = sample * 31 % w4_sm90_groups(w.in_features), row = w4_sm90_row(n, w.out_features, w.gated);
    const W4Group expected(n * w.in_features + g * kW4GroupK);
    std::vector<uint8_t> bytes(kW4Sm90GroupBytes);
    check_cuda(cudaMemcpy(bytes.data(), packed.data() + w4_sm90_group_offset(row / kW4Sm90BlockM, g, w.in_features),
                          bytes.size(), cudaMemcpyDeviceToHost),
               "cudaMemcpy from the device");
    const int64_t inside = row % kW4Sm90BlockM;  // of a weight of one block and group
    uint32_t word;
    std::memcpy(&word, bytes.data() + w4_sm90_word_offset(inside, 0, kW4GroupK), sizeof word);
    bool right = word == expected.scale.word;
    for (int64_t k = 0; k < kW4GroupK; ++k) {
      const int64_t at = w4_sm90_nibble_index(inside, k, kW4GroupK);
      right = right && (bytes[static_cast<size_t>(at / 2)] >> (at % 2 * 4) & 15u) == expected.codes[k];
    }
    if (!right) {
      std::fprintf(stderr, "output %d, group %d is not quantised as it should be\n", static_cast<int>(n), static_cast<int>(g));
      return false;
    }
  }
  return true;
}

double w4_sum(int64_t w_at, int64_t x_at, int32_t k) {
  double sum = 0.0;
  for (int64_t g = 0; g < w4_sm90_groups(k); ++g) {
    const W4Group group(w_at + g * kW4GroupK);
    const double scale = static_cast<double>(float_from_bits(group.scale.word));
    const int zero = static_cast<int>(group.scale.word & kW4ZeroPointMask);
    for (int i = 0; i < kW4GroupK; ++i)
      sum += scale * (static_cast<int>(group.codes[i]) - zero) *
             static_cast<double>(to_float(arena_value(x_at + g * kW4GroupK + i)));
  }
  return sum;
}

// Whether sampled outputs are the float64 products of the quantised weight at the arena's start and x; of gate and up
// silu(gate) * up.
bool linear_w4_is_right(const std::vector<float>& out, const std::vector<Element>& gated, int rows, const Projection& w,
                        int64_t x_at) {
  const int32_t width = w.gated ? w.out_features / 2 : w.out_features;
  const double tolerance = 1e-6 * (w.in_features / 16 + 16) * std::sqrt(static_cast<double>(w.in_features));
  for (int64_t sample = 0; sample < 16; ++sample) {
    const int64_t r = sample * 7919 % rows, n = sample == 0 ? width - 1 : sample * 104729 % width, at = r * width + n;
    double expected = w4_sum(n * w.in_features, x_at + r * w.in_features, w.in_features), allowed = tolerance;
    if (w.gated) {
      const double up = w4_sum((width + n) * w.in_features, x_at + r * w.in_features, w.in_features);
      expected = expected / (1.0 + std::exp(-expected)) * up;
      allowed = 1.1 * tolerance * (std::fabs(up) + 1.0) + std::fabs(expected) * (tolerance + 0x1p-8);
    }
    const double is = static_cast<double>(w.gated ? to_float(gated[static_cast<size_t>(at)]) : out[static_cast<size_t>(at)]);
    if (!(std::fabs(is - expected) <= allowed)) {
      std::fprintf(stderr, "row %d, output %d: %g instead of %g\n", static_cast<int>(r), static_cast<int>(n), is, expected);
      return false;
    }
  }
  return true;
}

// linear_w4's form for these rows, and around the change from one to the other both: "narrow, wide".
bool bench_linear_w4(const Arena& arena, const Projection& w, int rows, const DeviceBuffer<uint8_t>& packed, int places) {
  const int32_t width = w.gated ? w.out_features / 2 : w.out_features;
  const int64_t x_at = kArena - int64_t{256} * w.in_features,
                packed_bytes = w4_sm90_packed_bytes(w.out_features, w.in_features);
  const size_t outputs = static_cast<size_t>(rows) * static_cast<size_t>(width);
  const DeviceBuffer<float> out(w.gated ? 0 : outputs);
  const DeviceBuffer<Element> gated(w.gated ? outputs : 0);
  bool right = true;
  for (const bool wide : {false, true}) {
    if (wide ? rows < 16 : rows > 64) continue;
    const auto run = [&](int i) {
      const LinearW4Weight weight = {w.in_features, w.out_features, packed.data() + i * packed_bytes, nullptr};
      const LinearW4Params p = {rows,       weight, arena.elements.data() + x_at,     w.in_features, nullptr,
                                out.data(), width,  w.gated ? gated.data() : nullptr, width};
      check_status(wide ? linear_w4_wide_sm90(p, nullptr) : linear_w4_narrow_sm90(p, nullptr));
    };
    run(0);
    const char* form = wide ? "wide" : "narrow";
    if (!linear_w4_is_right(out.read(), gated.read(), rows, w, x_at)) {
      std::printf("| %s | %d | %s | WRONG |\n", w.name, rows, form);
      right = false;
      continue;
    }
    const double took = time_us(places, run), bytes = static_cast<double>(packed_bytes);
    std::printf("| %s | %d | %s | %.1f | %.0f | %.0f %% | %.0f |\n", w.name, rows, form, took, bytes / took / 1e3,
                100.0 * bytes / took / arena.copy_rate, 2.0 * rows * w.out_features * w.in_features / took / 1e6);
  }
  return right;
}

}  // namespace

bool bench_w4(const Arena& arena, const ModelShape& model) {
  std::printf("| %s, 4 bits | rows | form | us | GB/s | of copy | TFLOP/s |\n|---|---|---|---|---|---|---|\n", model.name);
  bool right = true;
  double layers_us = 0.0;
  for (int which = 0; which < kNumProjections; ++which) {
    const Projection w = projection(model, which);
    const int64_t elements = int64_t{w.out_features} * w.in_features, x_at = kArena - int64_t{256} * w.in_features;
    const int64_t packed_bytes = w4_sm90_packed_bytes(w.out_features, w.in_features);
    const int places = static_cast<int>(std::min<int64_t>(x_at / elements, 64));
    if (places == 0) continue;
    const DeviceBuffer<uint8_t> packed(static_cast<size_t>(places * packed_bytes));
    const auto quantize = [&](int i) {
      const LinearWeight weight = {w.in_features, w.out_features, arena.elements.data() + i * elements, nullptr};
      check_status(quantize_w4_sm90({weight, packed.data() + i * packed_bytes}, w.gated, nullptr));
    };
    for (int i = 0; i < places; ++i) quantize(i);
    right = quantize_is_right(packed, w) && right;
    const double us = time_us(places, quantize),
                 moved = 2.0 * static_cast<double>(elements) + static_cast<double>(packed_bytes);
    std::printf("| %s, quantise | | | %.1f | %.0f | %.0f %% | |\n", w.name, us, moved / us / 1e3,
                100.0 * moved / us / arena.copy_rate);
    if (w.out_features != model.vocab_size) layers_us += us * model.num_layers;
    for (const int rows : {1, 2, 4, 8, 16, 32, 48, 64, 128, 256}) {
      if (rows > 64 && w.out_features == model.vocab_size) continue;
      right = bench_linear_w4(arena, w, rows, packed, places) && right;
    }
  }
  std::printf("\nall %d layers quantised, without the lm_head: %.2f ms\n\n", model.num_layers, layers_us / 1e3);
  return right;
}

// ---- Draws ------------------------------------------------------------------------------------------------------------

namespace {

// Draws of one kind, at most 64.
std::vector<SampleDraw> random_draws(int count, float top_p) {
  std::vector<SampleDraw> draws;
  for (int i = 0; i < count; ++i) {
    SampleDraw d = {};
    d.logits_row = i, d.position = 100 + i, d.noise = noise_stream({1, static_cast<uint64_t>(i), 0}), d.forced_token = -1;
    d.temperature = 1.0f, d.top_p = top_p, d.repetition_penalty = 1.0f;
    draws.push_back(d);
  }
  return draws;
}

std::vector<float> random_logits(int rows, int32_t vocab) {
  std::vector<float> start(static_cast<size_t>(vocab)), logits(static_cast<size_t>(rows) * static_cast<size_t>(vocab));
  for (int32_t v = 0; v < vocab; ++v) start[static_cast<size_t>(v)] = 8.0f * to_float(arena_value(v));
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = start[(i * 7 + i / static_cast<size_t>(vocab)) % start.size()];
  return logits;
}

}  // namespace

// The target's draws of random logits: the first rows have the scalar definition's bits.
bool bench_sample(const Arena& arena, const ModelShape& m) {
  const int32_t vocab = m.vocab_size;
  bool right = true;
  std::printf("| %s, sample | rows | us | GB/s | of copy |\n|---|---|---|---|---|\n", m.name);
  for (const int rows : {1, 16, 64}) {
    const std::vector<float> logits = random_logits(rows, vocab);
    const DeviceBuffer<float> on_device(logits);
    const size_t entries = static_cast<size_t>(rows) * static_cast<size_t>(sample_workspace_stride(vocab)),
                 chunks_size = static_cast<size_t>(rows) * static_cast<size_t>(sample_num_chunks(vocab));
    const DeviceBuffer<float> scaled(entries);
    const DeviceBuffer<int32_t> order(entries), spare(entries);
    const DeviceBuffer<SampleChunk> chunks(chunks_size);
    const DeviceBuffer<SampleResult> results(static_cast<size_t>(rows));
    for (const float top_p : {1.0f, 0.95f}) {
      const std::vector<SampleDraw> draws = random_draws(rows, top_p);
      const DeviceBuffer<SampleDraw> device_draws(draws);
      const auto run = [&](int) {
        check_status(sample_sm90(
            {rows, vocab, on_device.data(), vocab, device_draws.data(), results.data(), scaled.data(), order.data()},
            {chunks.data(), spare.data()}, nullptr));
      };
      run(0);
      const int compared = std::min(rows, 8);
      const std::vector<SampleResult> found = results.read();
      std::vector<SampleResult> expected(static_cast<size_t>(compared));
      std::vector<float> host_scaled(static_cast<size_t>(sample_workspace_stride(vocab)));
      std::vector<int32_t> host_order(host_scaled.size());
      ThreadPool pool(1);
      sample_scalar(
          {compared, vocab, logits.data(), vocab, draws.data(), expected.data(), host_scaled.data(), host_order.data()}, pool);
      bool same = true;
      for (size_t i = 0; i < expected.size(); ++i)
        same = same && found[i].token == expected[i].token && found[i].logprob == expected[i].logprob;
      right = right && same;
      const double us = time_us(4, run), bytes = 4.0 * static_cast<double>(logits.size());
      std::printf("| %s | %d | %s%.1f | %.0f | %.0f %% |\n", top_p == 1.0f ? "no filter" : "top-p 0.95", rows,
                  same ? "" : "WRONG ", us, bytes / us / 1e3, 100.0 * bytes / us / arena.copy_rate);
    }
  }
  std::printf("\n");
  return right;
}

// A drafter's candidates of random logits, compared with the scalar definition's.
bool bench_candidates(const Arena& arena, const ModelShape& m) {
  constexpr int kDraws = 64, kPerPlace = 4;
  const int32_t vocab = m.vocab_size;
  const std::vector<float> logits = random_logits(kDraws, vocab);
  const DeviceBuffer<float> on_device(logits);
  const size_t entries = kDraws * static_cast<size_t>(sample_workspace_stride(vocab)),
               lists = kDraws * static_cast<size_t>(sample_num_chunks(vocab));
  const DeviceBuffer<float> scaled(entries);
  const DeviceBuffer<int32_t> order(entries), spare(entries);
  const DeviceBuffer<SampleChunk> chunks(lists);
  const DeviceBuffer<CandidateList> best(lists);
  const DeviceBuffer<Candidates> results(kDraws);
  std::printf("| %s, %d draws | us | GB/s | of copy |\n|---|---|---|---|\n", m.name, kDraws);
  bool right = true;
  for (const float top_p : {1.0f, 0.95f}) {
    std::vector<CandidateDraw> draws;
    for (const SampleDraw& d : random_draws(kDraws, top_p)) draws.push_back({d, 1.0f});
    const DeviceBuffer<CandidateDraw> device_draws(draws);
    const auto run = [&](int) {
      check_status(candidates_sm90(
          {kDraws, vocab, kPerPlace, on_device.data(), vocab, device_draws.data(), results.data(), scaled.data(), order.data()},
          {chunks.data(), best.data(), spare.data()}, nullptr));
    };
    run(0);
    const std::vector<Candidates> found = results.read();
    std::vector<Candidates> expected(kDraws);
    std::vector<float> host_scaled(static_cast<size_t>(sample_workspace_stride(vocab)));
    std::vector<int32_t> host_order(host_scaled.size());
    ThreadPool pool(1);
    candidates_scalar(
        {8, vocab, kPerPlace, logits.data(), vocab, draws.data(), expected.data(), host_scaled.data(), host_order.data()},
        pool);
    bool same = true;
    for (size_t i = 0; i < 8; ++i) {
      for (int j = 0; j < kPerPlace; ++j) same = same && found[i].tokens[j] == expected[i].tokens[j];
    }
    right = right && same;
    const double us = time_us(4, run), bytes = 4.0 * static_cast<double>(logits.size());
    std::printf("| %d candidates, top-p %g | %s%.1f | %.0f | %.0f %% |\n", kPerPlace, static_cast<double>(top_p),
                same ? "" : "WRONG ", us, bytes / us / 1e3, 100.0 * bytes / us / arena.copy_rate);
  }
  std::printf("\n");
  return right;
}

}  // namespace otr::bench
