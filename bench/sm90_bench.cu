// The sm_90a kernels on the shapes of Qwen2.5-7B, Qwen2.5-32B and Qwen3-8B, next to a copy's bandwidth and cuBLAS's products
// measured in the same run (cuBLAS is looked for at run time and left out where it is missing). Every case is compared with
// float64 at sampled places before it is timed; operands are random and rotate through 2 GB. Times are medians of CUDA events.
//
//     sm90_bench [linear|w4|attention|sample|candidates|experts]      (default: all)
//
// Exit codes: 0, 1 a case is wrong.
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "bench/sm90_arena.h"
#include "kernels/attention/attention_sm90.h"
#include "kernels/linear/linear_sm90.h"

namespace otr::bench {
namespace {

constexpr ModelShape kQwen32 = {"qwen2.5-32b", 5120, 27648, 64, 40, 8, 128, 152064, true, false};

__global__ void fill_kernel(Element* out, int64_t size) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += int64_t{gridDim.x} * blockDim.x)
    out[i] = arena_value(i);
}

// cuBLAS, if this machine has it: out[rows][n] = x[rows][k] w[n][k]^T in float32. Its C interface, with the numbers its header
// gives, so that neither the build nor the program needs it.
class Cublas {
 public:
  Cublas() {
    void* library = nullptr;
    for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"})
      library = library != nullptr ? library : dlopen(name, RTLD_NOW);
    if (library == nullptr) return;
    const auto create = reinterpret_cast<int (*)(void**)>(dlsym(library, "cublasCreate_v2"));
    gemm_ = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmEx"));
    if (create == nullptr || gemm_ == nullptr || create(&handle_) != 0) gemm_ = nullptr;
  }
  bool there() const { return gemm_ != nullptr; }
  void run(int rows, int n, int k, const Element* w, const Element* x, float* out) const {
    constexpr int kNotTransposed = 0, kTransposed = 1, kBf16 = 14, kFloat32 = 0, kCompute32 = 68, kDefault = -1;
    const float one = 1.0f, zero = 0.0f;
    const int status = gemm_(handle_, kTransposed, kNotTransposed, n, rows, k, &one, w, kBf16, k, x, kBf16, k, &zero, out,
                             kFloat32, n, kCompute32, kDefault);
    if (status != 0) std::fprintf(stderr, "cuBLAS: status %d\n", status), std::exit(1);
  }

 private:
  using Gemm = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*,
                       void*, int, int, int, int);
  void* handle_ = nullptr;
  Gemm gemm_ = nullptr;
};

// Whether sampled outputs are the float64 products of weight and x at the arena's start. Sums of k terms of deviation 1/3: the
// tensor cores may be off by k / 16 last bits of the largest partial sum.
bool linear_is_right(const std::vector<float>& out, int rows, int n, int k, int64_t w_at, int64_t x_at) {
  const double tolerance = 1e-6 * (k / 16 + 16) * std::sqrt(static_cast<double>(k));
  for (int sample = 0; sample < 64; ++sample) {
    const int64_t r = sample * 7919 % rows, o = sample == 0 ? n - 1 : sample * int64_t{104729} % n;
    double sum = 0.0;
    for (int i = 0; i < k; ++i)
      sum += static_cast<double>(to_float(arena_value(w_at + o * k + i))) *
             static_cast<double>(to_float(arena_value(x_at + r * k + i)));
    const double difference = std::fabs(static_cast<double>(out[static_cast<size_t>(r * n + o)]) - sum);
    if (!(difference <= tolerance)) {
      std::fprintf(stderr, "row %d, output %d: %g instead of %g\n", static_cast<int>(r), static_cast<int>(o),
                   static_cast<double>(out[static_cast<size_t>(r * n + o)]), sum);
      return false;
    }
  }
  return true;
}

bool bench_linear(const Arena& arena, const ModelShape& model) {
  const Cublas cublas;
  std::printf("| %s | rows | us | GB/s | of copy | TFLOP/s | cuBLAS us | speed |\n|---|---|---|---|---|---|---|---|\n",
              model.name);
  bool right = true;
  struct {
    const char* name;
    double log = 0.0, least = 1e9;
    int count = 0;
  } against[] = {{"1 to 64 rows"}, {"128 to 1024 rows"}, {"4096 rows"}};
  for (int which = 0; which < kNumProjections - 1; ++which) {
    const Projection w = projection(model, which);
    const int64_t elements = int64_t{w.out_features} * w.in_features, x_at = kArena - int64_t{4096} * w.in_features;
    const int places = static_cast<int>(std::max<int64_t>(1, x_at / elements));
    for (const int rows : {1, 4, 16, 64, 128, 256, 1024, 4096}) {
      const int count = rows <= 256 ? places : std::min(places, 4);
      DeviceBuffer<float> out(static_cast<size_t>(rows) * static_cast<size_t>(w.out_features));
      const Element* x = arena.elements.data() + x_at;
      const auto ours = [&](int i) {
        const LinearWeight weight = {w.in_features, w.out_features, arena.elements.data() + i * elements, nullptr};
        check_status(linear_sm90({rows, weight, x, w.in_features, nullptr, out.data(), w.out_features}, nullptr));
      };
      ours(0);
      if (!linear_is_right(out.read(), rows, w.out_features, w.in_features, 0, x_at)) {
        std::printf("| %s | %d | WRONG |\n", w.name, rows);
        right = false;
        continue;
      }
      const double us = time_us(count, ours), bytes = 2.0 * static_cast<double>(elements);
      std::printf("| %s | %d | %.1f | %.0f | %.0f %% | %.0f |", w.name, rows, us, bytes / us / 1e3,
                  100.0 * bytes / us / arena.copy_rate, 2.0 * rows * static_cast<double>(elements) / us / 1e6);
      if (cublas.there()) {
        const double theirs = time_us(count, [&](int i) {
          cublas.run(rows, w.out_features, w.in_features, arena.elements.data() + i * elements, x, out.data());
        });
        std::printf(" %.1f | %.2f |\n", theirs, theirs / us);
        auto& ratios = against[rows <= 64 ? 0 : rows < 4096 ? 1 : 2];
        ratios.log += std::log(theirs / us);
        ratios.least = std::min(ratios.least, theirs / us);
        ++ratios.count;
      } else {
        std::printf(" | |\n");
      }
    }
  }
  for (const auto& ratios : against) {
    if (ratios.count > 0)
      std::printf("\nagainst cuBLAS, %s: geometric mean %.3f, least %.3f\n", ratios.name, std::exp(ratios.log / ratios.count),
                  ratios.least);
  }
  std::printf("\n");
  return right;
}

// ---- Attention --------------------------------------------------------------------------------------------------------

// `batch` sequences of `context` keys, the last `rows` of each being queries; pages lie one after the other.
struct AttentionCase {
  std::vector<int32_t> positions;
  std::vector<RowSegment> segments;
  std::vector<RowTile> tiles;
  std::vector<TileBundle> bundles;
  std::vector<PageId> page_tables;

  AttentionCase(int batch, int context, int rows, int tile_rows) {
    for (int s = 0; s < batch; ++s) {
      segments.push_back({s * rows, rows, static_cast<int32_t>(page_tables.size())});
      for (int p = 0; p < (context + kPageTokens - 1) / kPageTokens; ++p)
        page_tables.push_back(static_cast<PageId>(page_tables.size()));
      for (int r = 0; r < rows; r += tile_rows) {
        bundles.push_back({static_cast<int32_t>(tiles.size()), 1, 0});
        tiles.push_back({s, s * rows + r, std::min(tile_rows, rows - r)});
      }
      for (int r = 0; r < rows; ++r) positions.push_back(context - rows + r);
    }
  }
};

bool attention_is_right(const std::vector<Element>& out, const ModelShape& m, const AttentionCase& c, const KvLayout& layout,
                        int64_t q_at) {
  const int hd = m.head_dim, group = m.num_heads / m.num_kv_heads;
  for (int sample = 0; sample < 4; ++sample) {
    const int64_t row = sample * int64_t{7919} % static_cast<int64_t>(c.positions.size()), head = sample * 5 % m.num_heads;
    int segment = 0;
    while (c.segments[static_cast<size_t>(segment)].first_row + c.segments[static_cast<size_t>(segment)].num_rows <= row)
      ++segment;
    const PageId* table = c.page_tables.data() + c.segments[static_cast<size_t>(segment)].first_page;
    const int keys = c.positions[static_cast<size_t>(row)] + 1;
    std::vector<double> s(static_cast<size_t>(keys)), o(static_cast<size_t>(hd), 0.0);
    double top = -1e300, l = 0.0;
    for (int j = 0; j < keys; ++j) {
      const int64_t k = table[j / kPageTokens] * layout.page_elements() + layout.k_offset(0, static_cast<int>(head) / group) +
                        j % kPageTokens * hd;
      double dot = 0.0;
      for (int d = 0; d < hd; ++d)
        dot += static_cast<double>(to_float(arena_value(q_at + (row * m.num_heads + head) * hd + d))) *
               static_cast<double>(to_float(arena_value(k + d)));
      top = std::max(top, s[static_cast<size_t>(j)] = dot / std::sqrt(static_cast<double>(hd)));
    }
    for (int j = 0; j < keys; ++j) {
      const int64_t v = table[j / kPageTokens] * layout.page_elements() + layout.v_offset(0, static_cast<int>(head) / group) +
                        j % kPageTokens;
      const double w = std::exp(s[static_cast<size_t>(j)] - top);
      l += w;
      for (int d = 0; d < hd; ++d)
        o[static_cast<size_t>(d)] += w * static_cast<double>(to_float(arena_value(v + int64_t{d} * kPageTokens)));
    }
    for (int d = 0; d < hd; ++d) {
      const double is = to_float(out[static_cast<size_t>((row * m.num_heads + head) * hd + d)]),
                   should = o[static_cast<size_t>(d)] / l;
      if (!(std::fabs(is - should) <= 4e-3)) {
        std::fprintf(stderr, "row %d, head %d, element %d: %g instead of %g\n", static_cast<int>(row), static_cast<int>(head),
                     d, is, should);
        return false;
      }
    }
  }
  return true;
}

bool bench_attention(const Arena& arena, const ModelShape& m) {
  constexpr struct {
    const char* name;
    int batch, context, rows;
  } kCases[] = {{"decode", 1, 8192, 1},  {"decode", 16, 8192, 1},    {"decode", 64, 2048, 1},   {"verify", 1, 8192, 8},
                {"verify", 16, 8192, 8}, {"prefill", 1, 2048, 2048}, {"prefill", 1, 8192, 8192}};
  std::printf(
      "| %s | batch | context | us | over its bytes' floor, us | of decode | GB/s | of copy | TFLOP/s "
      "|\n|---|---|---|---|---|---|---|---|---|\n",
      m.name);
  bool right = true;
  std::map<std::pair<int, int>, double> decode_us;  // by batch and context
  const KvLayout layout = {1, m.num_kv_heads, m.head_dim};
  for (const auto& c : kCases) {
    const AttentionCase work(c.batch, c.context, c.rows, attention_sm90_tile_rows(m.num_heads, m.num_kv_heads));
    const DeviceBuffer<int32_t> positions(work.positions);
    const DeviceBuffer<RowSegment> segments(work.segments);
    const DeviceBuffer<RowTile> tiles(work.tiles);
    const DeviceBuffer<TileBundle> bundles(work.bundles);
    const DeviceBuffer<PageId> page_tables(work.page_tables);
    RowBatch rows = {};
    rows.num_rows = static_cast<int32_t>(work.positions.size());
    rows.num_segments = static_cast<int32_t>(work.segments.size());
    rows.num_tiles = rows.num_bundles = static_cast<int32_t>(work.tiles.size());
    rows.positions = positions.data(), rows.segments = segments.data(), rows.tiles = tiles.data();
    rows.bundles = bundles.data(), rows.page_tables = page_tables.data();

    const int64_t width = int64_t{m.num_heads} * m.head_dim, q_at = kArena - rows.num_rows * width;
    const int64_t pool = static_cast<int64_t>(work.page_tables.size()) * layout.page_elements();
    const int places = static_cast<int>(std::max<int64_t>(1, q_at / pool));
    if (pool > q_at) continue;
    DeviceBuffer<Element> out(static_cast<size_t>(rows.num_rows * width));
    const int64_t floats = c.rows > 64 ? 0 : attention_sm90_workspace(rows.num_rows, m.num_heads, m.head_dim, c.context);
    const DeviceBuffer<float> partials(static_cast<size_t>(floats));
    const auto run = [&](int i) {
      const AttentionParams p = {&rows,
                                 0,
                                 m.num_heads,
                                 layout,
                                 1.0f / std::sqrt(static_cast<float>(m.head_dim)),
                                 arena.elements.data() + q_at,
                                 arena.elements.data() + i * pool,
                                 out.data(),
                                 width};
      check_status(attention_sm90(p, {partials.data(), floats, c.context}, nullptr));
    };
    run(0);
    if (!attention_is_right(out.read(), m, work, layout, q_at)) {
      std::printf("| %s | %d | %d | WRONG |\n", c.name, c.batch, c.context);
      right = false;
      continue;
    }
    const double us = time_us(c.rows > 64 ? 2 : places, run), bytes = 2.0 * static_cast<double>(pool);
    double pairs = 0.0;
    for (const int32_t position : work.positions) pairs += position + 1;
    if (c.rows == 1) decode_us[{c.batch, c.context}] = us;
    const auto decode = decode_us.find({c.batch, c.context});
    std::printf("| %s | %d | %d | %.1f | %.1f | %.2f | %.0f | %.0f %% | %.0f |\n", c.name, c.batch, c.context, us,
                us - bytes / arena.copy_rate, c.rows <= 64 && decode != decode_us.end() ? us / decode->second : 0.0,
                bytes / us / 1e3, 100.0 * bytes / us / arena.copy_rate, 4.0 * m.head_dim * m.num_heads * pairs / us / 1e6);
  }
  std::printf("\n");
  return right;
}

}  // namespace

Arena::Arena() {
  fill_kernel<<<2048, 256>>>(elements.data(), kArena);
  check_cuda(cudaDeviceSynchronize(), "fill");
  DeviceBuffer<Element> other(static_cast<size_t>(kArena));
  copy_rate = 4.0 * kArena /
              time_us(2, [&](int) { cudaMemcpyAsync(other.data(), elements.data(), 2 * kArena, cudaMemcpyDeviceToDevice); });
  std::printf("copy: %.0f GB/s read and written\n\n", copy_rate / 1e3);
}

}  // namespace otr::bench

int main(int argc, char** argv) {
  using namespace otr::bench;
  cudaDeviceProp device = {};
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess || device.major != 9) {
    std::fprintf(stderr, "sm90_bench: no device of compute capability 9.0\n");
    return 1;
  }
  std::printf("%s, %d multiprocessors\n", device.name, device.multiProcessorCount);
  const Arena arena;
  const char* only = argc > 1 ? argv[1] : "";
  bool right = true;
  for (const ModelShape& model : {kModels[2], kQwen32, kModels[3]}) {
    const auto wanted = [only](const char* part) { return *only == 0 || std::strcmp(only, part) == 0; };
    if (wanted("linear")) right = bench_linear(arena, model) && right;
    if (wanted("w4")) right = bench_w4(arena, model) && right;
    if (wanted("attention")) right = bench_attention(arena, model) && right;
    if (wanted("sample")) right = bench_sample(arena, model) && right;
    if (wanted("candidates")) right = bench_candidates(arena, model) && right;
  }
  if (*only == 0 || std::strcmp(only, "experts") == 0) right = bench_experts(arena) && right;
  return right ? 0 : 1;
}
