#include "kernels/dispatch.h"

#include "kernels/base/cpu_features.h"

namespace otr {
namespace {

constexpr KernelTable kScalar = {
    .path = "cpu-scalar",
    .embed = embed,
    .rmsnorm = rmsnorm_scalar,
    .linear = linear_scalar,
    .linear_w4 = linear_w4_scalar,
    .quantize_w4 = quantize_w4_scalar,
    .rope_table = rope_table,
    .rope_append = rope_append_scalar,
    .attention = attention_scalar,
    .sample = sample_scalar,
    .candidates = candidates_scalar,
    .page_copy = page_copy,
    .page_zero = page_zero,
    .page_gather = page_gather,
    .page_scatter = page_scatter,
};

#if !defined(OUTRIDER_ELEMENT_F32)
constexpr KernelTable kAvx2 = {
    .path = "cpu-avx2",
    .embed = embed,
    .rmsnorm = rmsnorm_avx2,
    .linear = linear_avx2,
    .linear_w4 = linear_w4_avx2,
    .quantize_w4 = quantize_w4_avx2,
    .rope_table = rope_table,
    .rope_append = rope_append_avx2,
    .attention = attention_avx2,
    .sample = sample_avx2,
    .candidates = candidates_avx2,
    .page_copy = page_copy,
    .page_zero = page_zero,
    .page_gather = page_gather,
    .page_scatter = page_scatter,
};

constexpr KernelTable kAvx512 = {
    .path = "cpu-avx512",
    .embed = embed,
    .rmsnorm = rmsnorm_avx512,
    .linear = linear_avx512,
    .linear_w4 = linear_w4_avx512,
    .quantize_w4 = quantize_w4_avx512,
    .rope_table = rope_table,
    .rope_append = rope_append_avx512,
    .attention = attention_avx512,
    .sample = sample_avx512,
    .candidates = candidates_avx512,
    .page_copy = page_copy,
    .page_zero = page_zero,
    .page_gather = page_gather,
    .page_scatter = page_scatter,
};

// Every AMX machine has AVX-512: only the three matrix ops differ. With OUTRIDER_SOFT_TILES the path is software tiles: the same
// algorithm on TDPBF16PS computed by AVX-512, to the bit of its definition (kernels/amx/tile_soft.h).
constexpr KernelTable kAmx = {
    .path = "cpu-amx",
    .embed = embed,
    .rmsnorm = rmsnorm_avx512,
    .linear = linear_amx,
    .linear_w4 = linear_w4_amx,
    .quantize_w4 = quantize_w4_avx512,
    .rope_table = rope_table,
    .rope_append = rope_append_avx512,
    .attention = attention_amx,
    .sample = sample_avx512,
    .candidates = candidates_avx512,
    .page_copy = page_copy,
    .page_zero = page_zero,
    .page_gather = page_gather,
    .page_scatter = page_scatter,
};
#endif

struct Path {
  const KernelTable* table;
  bool (*available)(std::string* why);
};

constexpr Path kPaths[] = {  // best first
#if !defined(OUTRIDER_ELEMENT_F32)
#if defined(OUTRIDER_SOFT_TILES)
    {&kAmx, cpu_has_avx512},
#else
    {&kAmx, cpu_has_amx},
#endif
    {&kAvx512, cpu_has_avx512},
    {&kAvx2, cpu_has_avx2},
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
  std::string known;
  for (const PathInfo& p : list_paths()) {
    if (name == "auto" && p.available) return p.table;
    if (name == p.table->path) {
      if (p.available) return p.table;
      return unsupported("path " + std::string(name) + " is not available here: " + p.reason);
    }
    known += std::string(known.empty() ? "" : ", ") + p.table->path;
  }
  return invalid_argument("unknown path '" + std::string(name) + "': expected auto, " + known);
}

}  // namespace otr
