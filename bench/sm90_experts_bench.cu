// The part of sm90_bench about mixtures of experts: a layer's experts at the shape of Qwen3-30B-A3B, captured as a pass has
// them.
#include <cmath>
#include <set>

#include "bench/sm90_arena.h"
#include "kernels/linear/linear_sm90.h"
#include "kernels/route/route_sm90.h"

namespace otr::bench {
namespace {

constexpr int32_t kHidden = 2048, kInner = 768, kExperts = 128, kPerToken = 8, kMostRows = 4096;
constexpr int64_t kExpert = int64_t{3} * kInner * kHidden;  // elements: gates, ups, then down
constexpr int64_t kXAt = kArena - int64_t{kMostRows} * kHidden;
constexpr int kRoutings = 8;  // that take turns: others' experts than the one before
static_assert(kExperts * kExpert <= kXAt);

// A layer of so many rows; each routing has its own logits.
struct Layer {
  const Arena& arena;
  int32_t rows, taken;
  DeviceBuffer<float> logits, weights, made, residual;
  DeviceBuffer<int32_t> experts, places, count;
  DeviceBuffer<Element> gathered, activated;
  DeviceBuffer<ExpertTile> list;
  ExpertTiles tiles;

  Layer(const Arena& of, int32_t num_rows)
      : arena(of),
        rows(num_rows),
        taken(num_rows * kPerToken),
        logits(random_logits(num_rows)),
        weights(static_cast<size_t>(taken)),
        made(static_cast<size_t>(taken) * kHidden),
        residual(std::vector<float>(static_cast<size_t>(num_rows) * kHidden, 0.0f)),
        experts(static_cast<size_t>(taken)),
        places(static_cast<size_t>(taken)),
        count(1),
        gathered(static_cast<size_t>(taken) * kHidden),
        activated(static_cast<size_t>(taken) * kInner),
        list(static_cast<size_t>(taken)) {
    tiles.list = list.data(), tiles.count = count.data();
    tiles.tile_rows = expert_tile_rows(rows, kExperts, kPerToken, kLinearExpertsRows);
    tiles.max_tiles = max_expert_tiles(rows, kExperts, kPerToken, tiles.tile_rows);
  }
  static std::vector<float> random_logits(int32_t rows) {
    std::vector<float> values(static_cast<size_t>(kRoutings) * static_cast<size_t>(rows) * kExperts);
    for (size_t i = 0; i < values.size(); ++i) values[i] = to_float(arena_value(static_cast<int64_t>(i)));
    return values;
  }

  // With the products, or only what stands around them.
  void run(int routing, bool products, cudaStream_t stream) const {
    check_status(route_sm90(
        {rows, kExperts, kPerToken, true, logits.data() + int64_t{routing} * rows * kExperts, experts.data(), weights.data()},
        stream));
    check_status(gather_experts_sm90({rows, kExperts, kPerToken, nullptr, experts.data(), arena.elements.data() + kXAt, kHidden,
                                      kHidden, gathered.data(), kHidden, places.data(), tiles},
                                     stream));
    const Element* gate_up = arena.elements.data();
    const Element* down = gate_up + int64_t{2} * kInner * kHidden;
    if (products) {
      check_status(linear_experts_sm90({kExperts,
                                        {kHidden, 2 * kInner, gate_up, nullptr},
                                        kExpert,
                                        taken,
                                        gathered.data(),
                                        kHidden,
                                        nullptr,
                                        activated.data(),
                                        kInner,
                                        tiles},
                                       stream));
      check_status(linear_experts_sm90({kExperts,
                                        {kInner, kHidden, down, nullptr},
                                        kExpert,
                                        taken,
                                        activated.data(),
                                        kInner,
                                        made.data(),
                                        nullptr,
                                        0,
                                        tiles},
                                       stream));
    }
    check_status(combine_experts_sm90(
        {rows, kHidden, kPerToken, nullptr, places.data(), weights.data(), made.data(), residual.data()}, stream));
  }
};

double dot(int64_t w_at, int64_t x_at, int32_t k) {
  double sum = 0.0;
  for (int32_t i = 0; i < k; ++i)
    sum += static_cast<double>(to_float(arena_value(w_at + i))) * static_cast<double>(to_float(arena_value(x_at + i)));
  return sum;
}

// Whether sampled values of both products are float64's, of the routing that has run last: of down, on what gate_up made.
bool is_right(const Layer& layer) {
  const std::vector<int32_t> experts = layer.experts.read(), places = layer.places.read();
  const std::vector<Element> activated = layer.activated.read();
  const std::vector<float> made = layer.made.read();
  for (int64_t sample = 0; sample < 32; ++sample) {
    const int64_t entry = sample * 7919 % layer.taken, row = entry / kPerToken, n = sample * 104729 % kInner,
                  out = sample * 1299709 % kHidden;
    const int64_t at = places[static_cast<size_t>(entry)], expert = experts[static_cast<size_t>(entry)] * kExpert;
    const double gate = dot(expert + n * kHidden, kXAt + row * kHidden, kHidden),
                 up = dot(expert + (kInner + n) * kHidden, kXAt + row * kHidden, kHidden);
    const double y = gate / (1.0 + std::exp(-gate)) * up,
                 is = static_cast<double>(to_float(activated[static_cast<size_t>(at * kInner + n)]));
    double sum = 0.0, size = 0.0;
    for (int64_t i = 0; i < kInner; ++i) {
      const double x = static_cast<double>(to_float(activated[static_cast<size_t>(at * kInner + i)]));
      sum += x * static_cast<double>(to_float(arena_value(expert + (2 * int64_t{kInner}) * kHidden + out * kInner + i)));
      size += x * x;
    }
    const double found = static_cast<double>(made[static_cast<size_t>(at * kHidden + out)]);
    if (std::fabs(is - y) <= 0x1p-8 * std::fabs(y) + 0.02 * (std::fabs(up) + 1.0) &&
        std::fabs(found - sum) <= 1e-4 * std::sqrt(size) + 1e-4)
      continue;
    std::fprintf(stderr, "row %d: %g instead of %g, %g instead of %g\n", static_cast<int>(row), is, y, found, sum);
    return false;
  }
  return true;
}

// Launches as a graph, which asks nothing of the host.
template <typename Launches>
cudaGraphExec_t captured(cudaStream_t stream, const Launches& launches) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  launches();
  check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "capture");
  check_cuda(cudaGraphDestroy(graph), "capture");
  return executable;
}

}  // namespace

bool bench_experts(const Arena& arena) {
  std::printf(
      "| qwen3-30b-a3b: rows | experts read | us | without products | GB/s | of copy | TFLOP/s "
      "|\n|---|---|---|---|---|---|---|\n");
  const cudaStream_t stream = side_stream();
  bool right = true;
  for (const int32_t rows : {1, 4, 16, 64, 256, 1024, kMostRows}) {
    const Layer layer(arena, rows);
    double read = 0.0;  // experts, on average
    std::vector<cudaGraphExec_t> all, around;
    bool right_here = true;
    for (int i = 0; i < kRoutings; ++i) {
      layer.run(i, true, stream);
      wait_for(stream);
      right_here = right_here && is_right(layer);
      const std::vector<int32_t> experts = layer.experts.read();
      read += static_cast<double>(std::set<int32_t>(experts.begin(), experts.end()).size()) / kRoutings;
      all.push_back(captured(stream, [&] { layer.run(i, true, stream); }));
      around.push_back(captured(stream, [&] { layer.run(i, false, stream); }));
    }
    const auto time = [](const std::vector<cudaGraphExec_t>& graphs) {
      return time_us(kRoutings, [&](int i) { check_cuda(cudaGraphLaunch(graphs[static_cast<size_t>(i)], nullptr), "launch"); });
    };
    if (right_here) {
      const double us = time(all), bytes = 2.0 * static_cast<double>(kExpert) * read;
      std::printf("| %d | %.0f | %.1f | %.1f | %.0f | %.0f %% | %.0f |\n", rows, read, us, time(around), bytes / us / 1e3,
                  100.0 * bytes / us / arena.copy_rate, 2.0 * layer.taken * static_cast<double>(kExpert) / us / 1e6);
    } else {
      std::printf("| %d | WRONG |\n", rows);
    }
    for (const auto* graphs : {&all, &around}) {
      for (const cudaGraphExec_t graph : *graphs) check_cuda(cudaGraphExecDestroy(graph), "capture");
    }
    right = right && right_here;
  }
  std::printf("\n");
  return right;
}

}  // namespace otr::bench
