#include "tools/outrider/history_flags.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

namespace otr::cli {

const std::vector<Flag> kHistoryFlagTable = {
    {"history", "FILE", "what drafter history knows: read at the start if it is there, written at the end"},
    {"history-content", "WHAT", "tokens, or logprobs: the tokens and their log-probs, which draft better (default logprobs)"},
};

namespace {

// A history is written beside its place, and then renamed.
void check_place(const std::string& path) {
  std::string name = path + ".XXXXXX";
  const int fd = ::mkstemp(name.data());
  if (fd < 0)
    throw Failure(kExitFailure, "history: " + path + ": cannot create a temporary file beside it: " + std::strerror(errno));
  ::close(fd);
  ::unlink(name.c_str());
}

}  // namespace

HistoryFlags::HistoryFlags(const Flags& flags)
    : path_(flags.text("history", "")), content_(flags.text("history-content", "logprobs")) {
  choice_flag("history-content", content_, {"tokens", "logprobs"});
  if (path_.empty()) {
    if (flags.given("history-content")) throw Failure(kExitUsage, "--history-content goes with --history");
    return;
  }
  struct stat info;
  if (::stat(path_.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
    throw Failure(kExitUsage, "--history " + path_ + ": not a regular file");
  check_place(path_);
}

void HistoryFlags::set(otr_engine_options* options) const {
  if (!path_.empty()) options->history = content_ == "tokens" ? 1 : 2;
}

void HistoryFlags::load(const Call& call) const {
  struct stat info;
  if (path_.empty() || (::stat(path_.c_str(), &info) != 0 && errno == ENOENT)) return;
  const Answer answer = call(path_);
  if (answer.status == OTR_OK) return;
  const bool theirs =
      answer.status == OTR_INVALID_ARGUMENT || answer.status == OTR_UNSUPPORTED || answer.status == OTR_IO_ERROR;
  if (answer.status != OTR_BAD_INPUT) throw Failure(theirs ? kExitBadInput : kExitFailure, "history: " + answer.error);
  std::fprintf(stderr, "outrider: history: %s\n", answer.error.c_str());
}

std::optional<Failure> HistoryFlags::save(const Call& call) const {
  if (path_.empty()) return std::nullopt;
  const Answer answer = call(path_);
  if (answer.status == OTR_OK) return std::nullopt;
  return Failure(kExitFailure, "history: " + answer.error);
}

void HistoryFlags::add_settings(nlohmann::ordered_json* settings) const {
  if (!path_.empty()) settings->update({{"history", path_}, {"history_content", content_}});
}

}  // namespace otr::cli
