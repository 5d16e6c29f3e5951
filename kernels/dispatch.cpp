#include "kernels/dispatch.h"

#include <cstring>

#include "kernels/base/cpu_features.h"

namespace otr {
namespace {

template <auto kKernel>
struct OnThreads;
template <typename Params, void (*kKernel)(const Params&, ThreadPool&)>
struct OnThreads<kKernel> {
  static void launch(const Params& params, const LaunchContext& on) { kKernel(params, on.pool); }
};

void clear(void* data, size_t bytes, const LaunchContext&) { std::memset(data, 0, bytes); }

constexpr KernelTable kScalar = {
    .path = "cpu-scalar",
    .embed = OnThreads<embed>::launch,
    .rmsnorm = OnThreads<rmsnorm_scalar>::launch,
    .linear = OnThreads<linear_scalar>::launch,
    .linear_w4 = OnThreads<linear_w4_scalar>::launch,
    .quantize_w4 = OnThreads<quantize_w4_scalar>::launch,
    .rope_table = OnThreads<rope_table>::launch,
    .rope_append = OnThreads<rope_append_scalar>::launch,
    .attention = OnThreads<attention_scalar>::launch,
    .sample = OnThreads<sample_scalar>::launch,
    .candidates = OnThreads<candidates_scalar>::launch,
    .page_copy = OnThreads<page_copy>::launch,
    .page_zero = OnThreads<page_zero>::launch,
    .page_gather = OnThreads<page_gather>::launch,
    .page_scatter = OnThreads<page_scatter>::launch,
    .clear = clear,
    .attention_tile_rows = attention_tile_rows,
    .w4_packed_bytes = w4_cpu_packed_bytes,
};

#if !defined(OUTRIDER_ELEMENT_F32)
constexpr KernelTable kAvx2 = {
    .path = "cpu-avx2",
    .embed = OnThreads<embed>::launch,
    .rmsnorm = OnThreads<rmsnorm_avx2>::launch,
    .linear = OnThreads<linear_avx2>::launch,
    .linear_w4 = OnThreads<linear_w4_avx2>::launch,
    .quantize_w4 = OnThreads<quantize_w4_avx2>::launch,
    .rope_table = OnThreads<rope_table>::launch,
    .rope_append = OnThreads<rope_append_avx2>::launch,
    .attention = OnThreads<attention_avx2>::launch,
    .sample = OnThreads<sample_avx2>::launch,
    .candidates = OnThreads<candidates_avx2>::launch,
    .page_copy = OnThreads<page_copy>::launch,
    .page_zero = OnThreads<page_zero>::launch,
    .page_gather = OnThreads<page_gather>::launch,
    .page_scatter = OnThreads<page_scatter>::launch,
    .clear = clear,
    .attention_tile_rows = attention_tile_rows,
    .w4_packed_bytes = w4_cpu_packed_bytes,
    .kv_packing = KvPacking::kPairs,
};

constexpr KernelTable kAvx512 = {
    .path = "cpu-avx512",
    .embed = OnThreads<embed>::launch,
    .rmsnorm = OnThreads<rmsnorm_avx512>::launch,
    .linear = OnThreads<linear_avx512>::launch,
    .linear_w4 = OnThreads<linear_w4_avx512>::launch,
    .quantize_w4 = OnThreads<quantize_w4_avx512>::launch,
    .rope_table = OnThreads<rope_table>::launch,
    .rope_append = OnThreads<rope_append_avx512>::launch,
    .attention = OnThreads<attention_avx512>::launch,
    .sample = OnThreads<sample_avx512>::launch,
    .candidates = OnThreads<candidates_avx512>::launch,
    .page_copy = OnThreads<page_copy>::launch,
    .page_zero = OnThreads<page_zero>::launch,
    .page_gather = OnThreads<page_gather>::launch,
    .page_scatter = OnThreads<page_scatter>::launch,
    .clear = clear,
    .attention_tile_rows = attention_tile_rows,
    .w4_packed_bytes = w4_cpu_packed_bytes,
    .kv_packing = KvPacking::kPairs,
};

// Every AMX machine has AVX-512: only the three matrix ops differ. With OUTRIDER_SOFT_TILES the path is software tiles: the
// same algorithm on TDPBF16PS and TDPBSSD computed by AVX-512, to the bit of its definition (kernels/amx/tile_soft.h).
constexpr KernelTable kAmx = {
    .path = "cpu-amx",
    .embed = OnThreads<embed>::launch,
    .rmsnorm = OnThreads<rmsnorm_avx512>::launch,
    .linear = OnThreads<linear_amx>::launch,
    .linear_w4 = OnThreads<linear_w4_amx>::launch,
    .quantize_w4 = OnThreads<quantize_w4_avx512>::launch,
    .rope_table = OnThreads<rope_table>::launch,
    .rope_append = OnThreads<rope_append_avx512>::launch,
    .attention = OnThreads<attention_amx>::launch,
    .sample = OnThreads<sample_avx512>::launch,
    .candidates = OnThreads<candidates_avx512>::launch,
    .page_copy = OnThreads<page_copy>::launch,
    .page_zero = OnThreads<page_zero>::launch,
    .page_gather = OnThreads<page_gather>::launch,
    .page_scatter = OnThreads<page_scatter>::launch,
    .clear = clear,
    .attention_tile_rows = attention_amx_tile_rows,
    .w4_packed_bytes = w4_cpu_packed_bytes,
};
#endif

struct Path {
  const KernelTable* table;
  bool (*available)(std::string* why);
};

constexpr Path kPaths[] = {
// best first
#if !defined(OUTRIDER_ELEMENT_F32)
#if !defined(OUTRIDER_SOFT_TILES)
    {&kAmx, cpu_has_amx},
#endif
    {&kAvx512, cpu_has_avx512},
    {&kAvx2, cpu_has_avx2},
#if defined(OUTRIDER_SOFT_TILES)
    {&kAmx, cpu_has_avx512},  // for tests: no engine takes it of itself
#endif
#endif
    {&kScalar, [](std::string*) { return true; }},
};

}  // namespace

std::vector<PathInfo> list_paths() {
  std::vector<PathInfo> paths;
  for (const Path& p : kPaths) {
    std::string why;
    const bool available = p.available(&why);
    paths.push_back({p.table, available, available ? std::string() : why});
  }
  return paths;
}

Result<const KernelTable*> select_kernels(std::string_view name) {
  if (name == "cuda-sm90a") return unsupported("path cuda-sm90a is a device's, not the CPU's");
  std::string known, why;
  for (const Path& p : kPaths) {  // a path that is not wanted is not asked: AMX asks for the system's leave
    const bool named = name == p.table->path;
    if ((named || name == "auto") && p.available(&why)) return p.table;
    if (named) return unsupported("path " + std::string(name) + " is not available here: " + why);
    known += std::string(known.empty() ? "" : ", ") + p.table->path;
  }
  return invalid_argument("unknown path '" + std::string(name) + "': expected auto, " + known + ", cuda-sm90a");
}

}  // namespace otr
