#include "tools/outrider/flags.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cxxopts.hpp>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/outrider/failure.h"
#include "tools/outrider/request_line.h"

namespace otr::cli {
namespace {

[[noreturn]] void bad_flag(const std::string& name, const std::string& text, const std::string& rule) {
  throw Failure(kExitUsage, "--" + name + " " + text + ": " + rule);
}

template <typename T>
bool parse_number(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

// The number as a line would give it, so that flag and key obey one rule.
nlohmann::json number_in(const std::string& name, const std::string& text) {
  uint64_t whole = 0;
  if (parse_number(text, &whole)) return whole;
  double number = 0;
  if (!parse_number(text, &number)) bad_flag(name, text, "not a number");
  return number;
}

bool is_device(const std::string& text) {
  constexpr std::string_view kCuda = "cuda:";
  if (text == "auto" || text == "cpu" || text == "cuda") return true;
  if (!text.starts_with(kCuda)) return false;
  for (std::string_view rest = std::string_view(text).substr(kCuda.size());;) {
    const size_t comma = std::min(rest.find(','), rest.size());
    int32_t index = 0;
    if (!parse_number(rest.substr(0, comma), &index) || index < 0) return false;
    if (comma == rest.size()) return true;
    rest.remove_prefix(comma + 1);
  }
}

// cxxopts would take what a switch is given for a yes.
void refuse_value_of_switch(std::span<const Flag> table, const std::string& argument) {
  for (const Flag& flag : table) {
    const std::string name = std::string("--") + flag.name;
    if (flag.value == nullptr && argument.starts_with(name + "=")) throw Failure(kExitUsage, name + " takes no value");
  }
}

// This very program, also where another one has taken its file's place meanwhile.
constexpr const char* kOwnExecutable = "/proc/self/exe";

}  // namespace

Flags::Flags(std::span<const Flag> table, int argc, char** argv, size_t max_positional) {
  cxxopts::Options options("outrider");
  for (const Flag& flag : table) {
    const auto value = flag.value ? cxxopts::value<std::string>() : cxxopts::value<bool>();
    options.add_options()(flag.name, flag.help, std::static_pointer_cast<cxxopts::Value>(value));
  }
  // cxxopts knows names of one letter with one dash only; "--n" and "-n" are the same here.
  std::vector<std::string> arguments;
  for (int i = 0; i < argc; ++i) {
    std::string argument = argv[i];
    refuse_value_of_switch(table, argument);
    if (argument.size() > 3 && argument.starts_with("--") && argument[3] == '=') {
      arguments.push_back({'-', argument[2]});
      argument.erase(0, 4);
    } else if (argument.size() == 3 && argument.starts_with("--")) {
      argument.erase(0, 1);
    }
    arguments.push_back(argument);
  }
  std::vector<const char*> pointers;
  for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
  try {
    const cxxopts::ParseResult parsed = options.parse(static_cast<int>(pointers.size()), pointers.data());
    for (const cxxopts::KeyValue& argument : parsed.arguments()) {
      values_[argument.key()] = argument.value();
      given_.emplace_back(argument.key(), argument.value());
    }
    positional_ = parsed.unmatched();
  } catch (const cxxopts::exceptions::exception& error) {
    throw Failure(kExitUsage, error.what());
  }
  if (positional_.size() > max_positional) throw Failure(kExitUsage, "unexpected argument '" + positional_.back() + "'");
}

std::string Flags::text(const std::string& name, const std::string& fallback) const {
  const auto found = values_.find(name);
  return found == values_.end() ? fallback : found->second;
}

std::vector<std::string> Flags::all(const std::string& name) const {
  std::vector<std::string> values;
  for (const auto& [key, value] : given_) {
    if (key == name) values.push_back(value);
  }
  return values;
}

std::string Flags::required(const std::string& name) const {
  if (!given(name)) throw Failure(kExitUsage, (name.size() == 1 ? "-" : "--") + name + " is required");
  return values_.at(name);
}

bool printed_help(std::span<const Flag> table, int argc, char** argv, const char* usage, const char* notes) {
  const bool asked = std::any_of(argv + 1, argv + argc, [](std::string_view a) { return a == "--help" || a == "-h"; });
  if (!asked) return false;
  std::printf("%s\n", usage);
  for (const Flag& flag : table) {
    std::string name = std::string(flag.name[1] == '\0' ? "-" : "--") + flag.name;
    if (flag.value) name.append(" ").append(flag.value);
    std::printf("  %-22s %s\n", name.c_str(), flag.help);
  }
  std::fputs(notes, stdout);
  return true;
}

int32_t int_flag(const std::string& name, const std::string& text, int32_t least) {
  int32_t value = 0;
  if (!parse_number(text, &value) || value < least)
    bad_flag(name, text, "must be an integer, at least " + std::to_string(least));
  return value;
}

double number_flag(const std::string& name, const std::string& text, double least, double most) {
  double value = 0;
  char range[96];
  std::snprintf(range, sizeof range, "must be a number from %g to %g", least, most);
  if (!parse_number(text, &value) || !(value >= least && value <= most)) bad_flag(name, text, range);
  return value;
}

uint64_t u64_flag(const std::string& name, const std::string& text) {
  uint64_t value = 0;
  if (!parse_number(text, &value)) bad_flag(name, text, "must be an integer from 0 to 18446744073709551615");
  return value;
}

uint64_t size_flag(const std::string& name, const std::string& text) {
  constexpr std::string_view kSuffixes = "KMGT";
  std::string_view digits = text;
  int shift = 0;
  if (!text.empty()) {
    const size_t suffix = kSuffixes.find(static_cast<char>(std::toupper(static_cast<unsigned char>(text.back()))));
    if (suffix != std::string_view::npos) {
      shift = 10 * static_cast<int>(suffix + 1);
      digits.remove_suffix(1);
    }
  }
  uint64_t value = 0;
  if (!parse_number(digits, &value) || value == 0 || value > std::numeric_limits<uint64_t>::max() >> shift) {
    bad_flag(name, text, "must be a size in bytes, like 1048576, 512M or 2G");
  }
  return value << shift;
}

void choice_flag(const std::string& name, const std::string& text, std::initializer_list<const char*> allowed) {
  std::string list;
  for (const char* choice : allowed) {
    if (text == choice) return;
    list += std::string(list.empty() ? "" : ", ") + choice;
  }
  bad_flag(name, text, "must be one of " + list);
}

const std::vector<Flag> kSamplingFlagTable = {
    {"n", "N", "samples a prompt (default 1)"},
    {"max-new-tokens", "N", "tokens a sample, at most (default 1024)"},
    {"temperature", "T", "0 takes the likeliest token (default 1)"},
    {"top-k", "K", "sample from the K likeliest tokens; 0 is off (default 0)"},
    {"top-p", "P", "sample from the likeliest tokens that together reach P; 1 is off (default 1)"},
    {"min-p", "P", "sample from tokens at least P times as likely as the likeliest; 0 is off (default 0)"},
    {"seed", "S", "default 0"},
    {"step", "K", "the RL step: another step, other noise (default 0)"},
};

SamplingFlags sampling_flags(const Flags& flags) {
  SamplingFlags sampling{.defaults = {}, .step = u64_flag("step", flags.text("step", "0"))};
  for (const Flag& flag : kSamplingFlagTable) {
    std::string key = flag.name;
    if (!flags.given(key) || key == "step") continue;
    const std::string text = flags.required(key);
    std::replace(key.begin(), key.end(), '-', '_');
    const std::string rule = set_sampling_key(key, number_in(flag.name, text), &sampling.defaults);
    if (!rule.empty()) bad_flag(flag.name, text, rule);
  }
  return sampling;
}

const std::vector<Flag> kEngineFlagTable = {
    {"model", "PATH", "a Hugging Face folder or an .otr file (required)"},
    {"out", "FILE|-", "default: standard output"},
    {"max-batch", "N", "samples that decode at the same time (default 256)"},
    {"kv-bytes", "SIZE", "memory of the KV pages, like 512M or 2G (default: a quarter of the free memory)"},
    {"chunk", "N", "prompt tokens run in one tick (default 512)"},
    {"threads", "N", "default: one per CPU that affinity and the container's quota allow"},
    {"pin-threads", nullptr, "keep each thread on one CPU"},
    {"workers", "N", "threads that decode on their own, with shares of batch, pages and threads (default 1)"},
    {"worker-processes", nullptr, "each worker is a process; one that dies or hangs is replaced, and its samples go on"},
    {"worker-timeout", "SECONDS", "a worker process that comes no further for so long has hung (default 300)"},
    {"nccl", "LIBRARY", "samples that move between processes on GPUs take pages along by it: libnccl.so.2, or a path"},
    {"draft-workers", "N", "of the workers, how many may draft for the others (default 0)"},
    {"device", "NAME", "auto, cpu, cuda or cuda:N,…: the GPUs that workers go round (default auto)"},
    {"isa", "NAME", "force a path: cpu-amx, cpu-avx512, cpu-avx2, cpu-scalar or cuda-sm90a (default auto: the device's best)"},
    {"profile", "FILE.json", "what passes cost on this machine, as 'outrider profile' measured it"},
    {"stats", "FILE.json", "write times and counts to this file"},
};

EngineFlags::EngineFlags(const Flags& flags, const char* default_policy)
    : model(flags.required("model")), device(flags.text("device", "auto")), isa(flags.text("isa", "auto")) {
  otr_engine_options_init(&options, sizeof options);
  const auto set_int = [&](const char* name, int32_t* field) {
    if (flags.given(name)) *field = int_flag(name, flags.required(name), 1);
  };
  set_int("max-batch", &options.max_batch);
  set_int("chunk", &options.prefill_chunk);
  set_int("threads", &options.num_threads);
  set_int("workers", &options.num_workers);
  if (flags.given("draft-workers")) options.num_draft_workers = int_flag("draft-workers", flags.required("draft-workers"), 0);
  options.pin_threads = flags.given("pin-threads");
  options.worker_processes = flags.given("worker-processes");
  if (options.worker_processes == 1) executable = kOwnExecutable;
  options.worker_executable = executable.c_str();
  if (flags.given("worker-timeout")) {
    if (!flags.given("worker-processes")) throw Failure(kExitUsage, "--worker-timeout goes with --worker-processes");
    constexpr int32_t kMostSeconds = 1'000'000;
    const std::string text = flags.required("worker-timeout");
    const int32_t seconds = int_flag("worker-timeout", text, 1);
    if (seconds > kMostSeconds) bad_flag("worker-timeout", text, "must be at most " + std::to_string(kMostSeconds));
    options.worker_timeout_ms = 1000 * seconds;
  }
  nccl = flags.text("nccl", "");
  options.nccl_library = nccl.c_str();
  policy = flags.text("policy", default_policy);
  drafters = flags.all("drafter");
  for (const std::string& drafter : drafters) drafter_pointers.push_back(drafter.c_str());
  trace = flags.text("trace", "");
  options.policy = policy.c_str();
  profile = flags.text("profile", "");
  options.profile_path = profile.c_str();
  options.trace_path = trace.c_str();
  options.drafters = drafter_pointers.data();
  options.num_drafters = drafter_pointers.size();
  if (flags.given("kv-bytes")) options.kv_bytes = size_flag("kv-bytes", flags.required("kv-bytes"));
  if (!is_device(device)) bad_flag("device", device, "must be auto, cpu, cuda or cuda:N,…");
  choice_flag("isa", isa, {"auto", "cpu-amx", "cpu-avx512", "cpu-avx2", "cpu-scalar", "cuda-sm90a"});
  options.model_path = model.c_str();
  options.device = device.c_str();
  options.isa = isa.c_str();
}

nlohmann::ordered_json EngineFlags::settings() const {
  nlohmann::ordered_json settings = {{"model", model},
                                     {"device", device},
                                     {"isa", isa},
                                     {"policy", policy},
                                     {"drafters", drafters},
                                     {"profile", profile},
                                     {"max_batch", options.max_batch},
                                     {"chunk", options.prefill_chunk},
                                     {"threads", options.num_threads},
                                     {"pin_threads", options.pin_threads == 1},
                                     {"workers", options.num_workers},
                                     {"worker_processes", options.worker_processes == 1},
                                     {"draft_workers", options.num_draft_workers},
                                     {"kv_bytes", options.kv_bytes}};
  if (!trace.empty()) settings["trace"] = trace;
  return settings;
}

}  // namespace otr::cli
