// outrider_bench with a fault planted, to see whether tools/bench-compare finds it. No product code knows of it: the suite runs
// on a changed copy of the kernel table.
//
//     planted_bench slow [FLAGS of outrider_bench]     10 % more time in each call of linear
//     planted_bench bit …                              the lowest bit of one of its outputs flipped: far within the tolerance
//     planted_bench wrong[:SEED] …                     one output wrong, at a place that the seed draws, in each call of linear,
//                                                      linear_w4, attention, sample, candidates: not to be timed
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "bench/suite.h"
#include "kernels/base/clock.h"
#include "tests/bench/planted_faults.h"

namespace {

void (*original)(const otr::LinearParams&, const otr::LaunchContext&);

void slow_linear(const otr::LinearParams& params, const otr::LaunchContext& on) {
  const otr::Stopwatch watch;
  original(params, on);
  const double end = 1.1 * watch.seconds();
  while (watch.seconds() < end) {
  }
}

void bit_linear(const otr::LinearParams& params, const otr::LaunchContext& on) {
  original(params, on);
  uint32_t bits = otr::bits_from_float(params.out[3]) ^ 1;
  std::memcpy(&params.out[3], &bits, sizeof bits);
}

template <void (*kPlanted)(const otr::LinearParams&, const otr::LaunchContext&)>
void plant(otr::KernelTable& table) {
  original = table.linear;
  table.linear = kPlanted;
}

}  // namespace

int main(int argc, char** argv) {
  std::string_view fault = argc > 1 ? argv[1] : "";
  if (fault.starts_with("wrong:")) {
    otr::bench::plant_seed = static_cast<uint32_t>(std::atoi(fault.data() + 6));
    fault = "wrong";
  }
  void (*change)(otr::KernelTable&) = fault == "slow"    ? plant<slow_linear>
                                      : fault == "bit"   ? plant<bit_linear>
                                      : fault == "wrong" ? otr::bench::plant_wrong
                                                         : nullptr;
  if (change == nullptr) {
    std::fputs("planted_bench: the first argument is slow, bit or wrong\n", stderr);
    return 2;
  }
  argv[1] = argv[0];
  return otr::bench::bench_main(argc - 1, argv + 1, change);
}
