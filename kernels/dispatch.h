// The dispatch table: which function computes each op on each instruction-set path. Built once, from what the machine has; a
// path is never mixed with another inside an engine, and a forced path that is missing is an error.
//
// The table of cuda-sm90a is cuda/cuda_kernels.h's: there operands are on the device, launches are queued, and what fails is
// said by Accelerator::wait().
//
// Thread safety: the tables are constants.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/base/launch_context.h"
#include "kernels/base/status.h"
#include "kernels/embed/embed.h"
#include "kernels/linear/linear.h"
#include "kernels/linear_w4/linear_w4.h"
#include "kernels/page/page.h"
#include "kernels/page/page_transfer.h"
#include "kernels/quantize_w4/quantize_w4.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/route/expert_rows.h"
#include "kernels/route/route.h"
#include "kernels/sample/sample.h"

namespace otr {

// Weights of linear on a device lie row by row (linear_sm90.h), gates before ups.
struct DeviceLayouts {
  // Writes rows [weight.out_features][weight.in_features] from linear.h's tiles; `in_turns`: of gate and up.
  void (*rows_from_tiles)(const LinearWeight& weight, bool in_turns, Element* rows, const LaunchContext&);
  int64_t (*max_pages)(const KvLayout& layout);  // that attention can address
  // Floats that are worth having for launches of at most max_rows.
  int64_t (*attention_workspace)(const KvLayout& layout, int num_heads, int max_rows, int max_keys);
  int64_t (*sample_scratch_bytes)(int32_t vocab_size, int32_t num_draws);
  void (*take_tokens)(const TakeTokensParams&, const LaunchContext&);
  // A mixture of experts (expert_rows.h).
  void (*route)(const RouteParams&, const LaunchContext&) = nullptr;
  void (*gather_experts)(const GatherExpertsParams&, const LaunchContext&) = nullptr;
  void (*linear_experts)(const LinearExpertsParams&, const LaunchContext&) = nullptr;
  void (*linear_w4_experts)(const LinearW4ExpertsParams&, const LaunchContext&) = nullptr;
  void (*combine_experts)(const CombineExpertsParams&, const LaunchContext&) = nullptr;
  int32_t linear_tile_rows = 0, linear_w4_tile_rows = 0;  // the most of an expert's tile
};

struct KernelTable {
  const char* path;  // "cpu-amx", "cpu-avx512", "cpu-avx2", "cpu-scalar", "cuda-sm90a"
  void (*embed)(const EmbedParams&, const LaunchContext&);
  void (*rmsnorm)(const RmsNormParams&, const LaunchContext&);
  void (*linear)(const LinearParams&, const LaunchContext&);
  void (*linear_w4)(const LinearW4Params&, const LaunchContext&);
  void (*quantize_w4)(const QuantizeW4Params&, const LaunchContext&);
  void (*rope_table)(const RopeTableParams&, const LaunchContext&);
  void (*rope_append)(const RopeAppendParams&, const LaunchContext&);
  void (*attention)(const AttentionParams&, const LaunchContext&);
  void (*sample)(const SampleParams&, const LaunchContext&);
  void (*candidates)(const CandidateParams&, const LaunchContext&);
  void (*page_copy)(const PageCopyParams&, const LaunchContext&);
  void (*page_zero)(const PageZeroParams&, const LaunchContext&);
  void (*page_gather)(const PageGatherParams&, const LaunchContext&);
  void (*page_scatter)(const PageScatterParams&, const LaunchContext&);
  void (*clear)(void* data, size_t bytes, const LaunchContext&);

  // What the path wants of its operands.
  int (*attention_tile_rows)(int num_heads, int num_kv_heads);            // rows of a RowTile
  int64_t (*w4_packed_bytes)(int64_t out_features, int64_t in_features);  // of linear_w4's weight
  KvPacking kv_packing = KvPacking::kRows;                                // of KvLayout
  // Of a device's path alone; null on the CPU's.
  const DeviceLayouts* device = nullptr;
};

// Of the CPU's paths. `name`: "auto" for the best one this machine has, or a path's name. Unknown name: kInvalidArgument. A
// path that the build, the processor or the operating system does not offer: kUnsupported, with the reason.
Result<const KernelTable*> select_kernels(std::string_view name);

// Every CPU path of this build, best first, with whether it runs here and, if not, why.
struct PathInfo {
  const KernelTable* table;
  bool available;
  std::string reason;  // empty if available
};
std::vector<PathInfo> list_paths();

}  // namespace otr
