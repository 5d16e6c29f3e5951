#include "tools/outrider/history_flags.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/outrider/failure.h"

namespace otr::cli {

const std::vector<Flag> kHistoryFlagTable = {
    {"history", "FILE", "what drafter history knows: read at the start if it is there, written at the end"},
    {"history-content", "WHAT", "tokens, or logprobs: the tokens and their log-probs, which draft better (default logprobs)"},
};

HistoryFlags::HistoryFlags(const Flags& flags) : path_(flags.text("history", "")), content_(flags.text("history-content", "logprobs")) {
  choice_flag("history-content", content_, {"tokens", "logprobs"});
}

void HistoryFlags::set(otr_engine_options* options) const {
  if (!path_.empty()) options->history = content_ == "tokens" ? 1 : 2;
}

void HistoryFlags::load(const Call& call) const {
  struct stat info;
  if (path_.empty() || (::stat(path_.c_str(), &info) != 0 && errno == ENOENT)) return;
  const Answer answer = call(path_);
  if (answer.status == OTR_INVALID_ARGUMENT) throw Failure(kExitBadInput, answer.error);
  if (answer.status != OTR_OK) std::fprintf(stderr, "outrider: history: %s\n", answer.error.c_str());
}

void HistoryFlags::save(const Call& call) const {
  if (path_.empty()) return;
  if (const Answer answer = call(path_); answer.status != OTR_OK) throw Failure(kExitFailure, "history: " + answer.error);
}

void HistoryFlags::add_settings(nlohmann::ordered_json* settings) const {
  if (!path_.empty()) settings->update({{"history", path_}, {"history_content", content_}});
}

}  // namespace otr::cli
