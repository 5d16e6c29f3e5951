#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/suite.h"
#include "runtime/profile_file.h"

namespace otr::bench {
namespace {

constexpr std::string_view kNameSuffix = "/manual_time";

struct Flags {
  std::string isa = "auto", model;
  int threads = 0;
  bool about = false;
};

void print_help() {
  std::fputs(
      "Usage: outrider_bench [--isa=PATH] [--threads=N] [--model=FOLDER] [--benchmark_…]\n\n"
      "  --isa=PATH      auto, cpu-amx, cpu-avx512, cpu-avx2 or cpu-scalar (auto)\n"
      "  --threads=N     0: one per CPU that affinity and the container's quota allow (0)\n"
      "  --model=FOLDER  a model for the end-to-end cases; without it they are left out\n"
      "  --about         print path, threads, commit, compiler and flags, and run nothing\n\n"
      "Google Benchmark's own, among them:\n\n"
      "  --benchmark_list_tests  --benchmark_filter=REGEX  --benchmark_repetitions=N  --benchmark_min_time=SECONDS\n"
      "  --benchmark_out=FILE --benchmark_out_format=json  --benchmark_enable_random_interleaving=true\n\n"
      "Exit codes: 0, 1 a case is wrong or cannot run, 2 usage, also a filter that no case matches.\n",
      stdout);
}

// Changes where times or shares of an unchanged kernel would: results of another one are not compared. 1: before it was said.
constexpr const char* kMeasure = "2";

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
    } else if (std::strcmp(argv[i], "--about") == 0) {
      flags->about = true;
    } else {
      return false;
    }
  }
  return true;
}

// Names end in a suffix of the library's own, which nobody wants to write at the end of an expression.
std::string with_suffix(std::string filter) {
  for (size_t at = 0; (at = filter.find('$', at)) != std::string::npos; ++at) {
    if (std::string_view(filter).substr(0, at).ends_with(kNameSuffix)) continue;
    filter.insert(at, kNameSuffix);
    at += kNameSuffix.size();
  }
  return filter;
}

}  // namespace

int bench_main(int argc, char** argv, void (*change)(KernelTable& table)) {
  std::vector<char*> arguments(argv, argv + argc);
  std::string min_time = "--benchmark_min_time=0.05";  // seconds of a repetition, ceilings not counted
  arguments.insert(arguments.begin() + 1, min_time.data());
  argc = static_cast<int>(arguments.size());
  argv = arguments.data();
  benchmark::Initialize(&argc, argv, print_help);
  benchmark::SetBenchmarkFilter(with_suffix(benchmark::GetBenchmarkFilter()));
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
  const std::pair<const char*, std::string> about[] = {
      {"path", kernels.path},          {"threads", std::to_string(suite.pool().num_threads())},
      {"measure", kMeasure},           {"commit", build_commit()},
      {"compiler", OUTRIDER_COMPILER}, {"flags", OUTRIDER_COMPILE_FLAGS}};
  for (const auto& [key, value] : about) {
    benchmark::AddCustomContext(key, value);
    if (flags.about) std::printf("%s: %s\n", key, value.c_str());
  }
  if (flags.about) return 0;
  add_linear_cases(suite);
  add_linear_w4_cases(suite);
  add_attention_cases(suite);
  add_row_cases(suite);
  add_sample_cases(suite);
  if (!flags.model.empty()) add_engine_cases(suite, flags.model);
  const size_t num_matched = benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  if (num_matched == 0) {
    std::fputs("outrider_bench: no case has a name that --benchmark_filter matches\n", stderr);
    return 2;
  }
  if (suite.num_wrong() > 0) std::fprintf(stderr, "outrider_bench: %d cases are wrong or cannot run\n", suite.num_wrong());
  return suite.num_wrong() > 0 ? 1 : 0;
}

}  // namespace otr::bench
