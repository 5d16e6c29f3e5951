#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/suite.h"

namespace otr::bench {
namespace {

constexpr char kNameSuffix[] = "/manual_time";

struct Flags {
  std::string isa = "auto", model;
  int threads = 0;
};

void print_help() {
  std::fputs(
      "Usage: outrider_bench [--isa=PATH] [--threads=N] [--model=FOLDER] [--benchmark_…]\n\n"
      "  --isa=PATH      auto, cpu-amx, cpu-avx512, cpu-avx2 or cpu-scalar (auto)\n"
      "  --threads=N     0: one per CPU (0)\n"
      "  --model=FOLDER  a model for the end-to-end cases; without it they are left out\n\n"
      "Google Benchmark's own, among them:\n\n"
      "  --benchmark_list_tests  --benchmark_filter=REGEX  --benchmark_repetitions=N  --benchmark_min_time=SECONDS\n"
      "  --benchmark_out=FILE --benchmark_out_format=json  --benchmark_enable_random_interleaving=true\n\n"
      "Exit codes: 0, 1 a case is wrong or cannot run, 2 usage.\n",
      stdout);
}

// The text after "--NAME=", or null.
const char* value_of(const char* argument, const char* name) {
  const size_t size = std::strlen(name);
  return std::strncmp(argument, name, size) == 0 && argument[size] == '=' ? argument + size + 1 : nullptr;
}

bool parse(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    if (const char* isa = value_of(argv[i], "--isa")) {
      flags->isa = isa;
    } else if (const char* model = value_of(argv[i], "--model")) {
      flags->model = model;
    } else if (const char* threads = value_of(argv[i], "--threads")) {
      char* end = nullptr;
      const long n = std::strtol(threads, &end, 10);
      if (end == threads || *end != '\0' || n < 0 || n > 4096) return false;
      flags->threads = static_cast<int>(n);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

int bench_main(int argc, char** argv, void (*change)(KernelTable& table)) {
  std::vector<char*> arguments(argv, argv + argc);
  std::string min_time = "--benchmark_min_time=0.05";  // seconds of a repetition, ceilings not counted
  arguments.insert(arguments.begin() + 1, min_time.data());
  argc = static_cast<int>(arguments.size());
  argv = arguments.data();
  benchmark::Initialize(&argc, argv, print_help);
  // Names end in a suffix of the library's own, which nobody wants to write at the end of an expression.
  std::string filter = benchmark::GetBenchmarkFilter();
  for (size_t at = 0; (at = filter.find('$', at)) != std::string::npos; at += sizeof kNameSuffix)
    filter.insert(at, kNameSuffix);
  benchmark::SetBenchmarkFilter(filter);
  Flags flags;
  if (!parse(argc, argv, &flags)) {
    std::fputs("outrider_bench: a flag is unknown or wrong; see --help\n", stderr);
    return 2;
  }
  Result<const KernelTable*> selected = select_kernels(flags.isa);
  if (!selected.ok()) {
    std::fprintf(stderr, "outrider_bench: --isa: %s\n", selected.status().message().c_str());
    return 2;
  }
  KernelTable kernels = *selected.value();
  if (change != nullptr) change(kernels);

  Suite suite(kernels, flags.threads);
  benchmark::AddCustomContext("path", kernels.path);
  benchmark::AddCustomContext("threads", std::to_string(suite.pool().num_threads()));
  add_linear_cases(suite);
  add_linear_w4_cases(suite);
  add_attention_cases(suite);
  add_row_cases(suite);
  add_sample_cases(suite);
  if (!flags.model.empty()) add_engine_cases(suite, flags.model);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  if (suite.num_wrong() > 0) std::fprintf(stderr, "outrider_bench: %d cases are wrong or cannot run\n", suite.num_wrong());
  return suite.num_wrong() > 0 ? 1 : 0;
}

}  // namespace otr::bench
