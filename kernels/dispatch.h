// The dispatch table: which function computes each op on each instruction-set path. Built once, from what the machine has; a
// path is never mixed with another inside an engine, and a forced path that is missing is an error.
//
// Thread safety: the tables are constants.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/base/status.h"
#include "kernels/embed/embed.h"
#include "kernels/linear/linear.h"
#include "kernels/linear_w4/linear_w4.h"
#include "kernels/page/page.h"
#include "kernels/page/page_transfer.h"
#include "kernels/quantize_w4/quantize_w4.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/sample/sample.h"

namespace otr {

struct KernelTable {
  const char* path;  // "cpu-amx", "cpu-avx512", "cpu-avx2", "cpu-scalar"
  void (*embed)(const EmbedParams&, ThreadPool&);
  void (*rmsnorm)(const RmsNormParams&, ThreadPool&);
  void (*linear)(const LinearParams&, ThreadPool&);
  void (*linear_w4)(const LinearW4Params&, ThreadPool&);
  void (*quantize_w4)(const QuantizeW4Params&, ThreadPool&);
  void (*rope_table)(const RopeTableParams&, ThreadPool&);
  void (*rope_append)(const RopeAppendParams&, ThreadPool&);
  void (*attention)(const AttentionParams&, ThreadPool&);
  void (*sample)(const SampleParams&, ThreadPool&);
  void (*candidates)(const CandidateParams&, ThreadPool&);
  void (*page_copy)(const PageCopyParams&, ThreadPool&);
  void (*page_zero)(const PageZeroParams&, ThreadPool&);
  void (*page_gather)(const PageGatherParams&, ThreadPool&);
  void (*page_scatter)(const PageScatterParams&, ThreadPool&);
};

// `name`: "auto" for the best path this machine has, or a path's name. Unknown name: kInvalidArgument. A path that the build,
// the processor or the operating system does not offer: kUnsupported, with the reason.
Result<const KernelTable*> select_kernels(std::string_view name);

// Every path of this build, best first, with whether it runs here and, if not, why.
struct PathInfo {
  const KernelTable* table;
  bool available;
  std::string reason;  // empty if available
};
std::vector<PathInfo> list_paths();

}  // namespace otr
