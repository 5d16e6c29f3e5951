// Reading flags. A command's flags are a table; everything wrong is a usage error that names the flag.
//
// "--name VALUE" or "--name=VALUE"; of a flag that is given twice the last counts.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/outrider.h"
#include "tools/outrider/request_line.h"

namespace otr::cli {

struct Flag {
  const char* name;   // without the dashes; "--n" and "-n" are the same
  const char* value;  // what --help calls its value, or null for a switch
  const char* help;
};

class Flags {
 public:
  // Throws Failure (usage) for an unknown flag, a missing value, a switch with one, or more than `max_positional` other
  // arguments.
  Flags(std::span<const Flag> table, int argc, char** argv, size_t max_positional = 0);

  bool given(const std::string& name) const { return values_.contains(name); }
  std::string text(const std::string& name, const std::string& fallback) const;
  std::string required(const std::string& name) const;
  // Every value of a flag that may be repeated, in order.
  std::vector<std::string> all(const std::string& name) const;
  const std::vector<std::string>& positional() const { return positional_; }

 private:
  std::map<std::string, std::string> values_;  // the last one; "" for a switch
  std::vector<std::pair<std::string, std::string>> given_;
  std::vector<std::string> positional_;
};

// Prints a command's help if the arguments ask for it.
bool printed_help(std::span<const Flag> table, int argc, char** argv, const char* usage, const char* notes);

int32_t int_flag(const std::string& name, const std::string& text, int32_t least);
double number_flag(const std::string& name, const std::string& text, double least, double most);
uint64_t u64_flag(const std::string& name, const std::string& text);
uint64_t size_flag(const std::string& name, const std::string& text);  // "1048576", "512M", "2G": powers of 1024

// `text` must be one of `allowed`.
void choice_flag(const std::string& name, const std::string& text, std::initializer_list<const char*> allowed);

// What rollout and emulate draw: each flag but the step is named after the parameter of a line that it sets (--top-k: top_k).
extern const std::vector<Flag> kSamplingFlagTable;
struct SamplingFlags {
  SamplingSettings defaults;
  uint64_t step = 0;
};
SamplingFlags sampling_flags(const Flags& flags);

// The flags that rollout and score have in common (but for two that a score has no use for), and what the engine makes of them.
extern const std::vector<Flag> kEngineFlagTable;
struct EngineFlags {
  std::string model, device, isa, policy, profile, trace, executable, nccl;
  std::vector<std::string> drafters;
  std::vector<const char*> drafter_pointers;
  otr_engine_options options;  // borrows the strings above
  EngineFlags(const EngineFlags&) = delete;
  // `default_policy`: without --policy.
  EngineFlags(const Flags& flags, const char* default_policy);

  nlohmann::ordered_json settings() const;  // for --stats
};

}  // namespace otr::cli
