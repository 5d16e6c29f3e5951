#include "tools/outrider/engine_handle.h"

#include "tools/outrider/failure.h"

namespace otr::cli {
namespace {

std::string error_text(const otr_engine* engine, otr_status status) {
  const std::string text = otr_last_error(engine);
  return text.empty() ? otr_status_text(status) : text;
}

ExitCode exit_code_of_create(otr_status status, const std::string& text) {
  if (text.starts_with("cannot write the trace ")) return kExitFailure;  // what cannot be read is bad input
  switch (status) {
    case OTR_INVALID_ARGUMENT: return kExitUsage;
    case OTR_BAD_INPUT:
    case OTR_UNSUPPORTED:
    case OTR_NEVER_FITS:
    case OTR_IO_ERROR: return kExitBadInput;
    default: return kExitFailure;
  }
}

}  // namespace

EngineHandle::EngineHandle(const otr_engine_options& options) {
  const otr_status status = otr_engine_create(&options, &engine_);
  if (status != OTR_OK) throw_not_created(status, error_text(nullptr, status));
}

std::string EngineHandle::stats() const {
  size_t size = 0;
  otr_stats(engine_, nullptr, 0, &size);
  // The counters may gain a digit between two calls.
  std::string text(size + 256, '\0');
  const otr_status status = otr_stats(engine_, text.data(), text.size(), &size);
  if (status != OTR_OK) throw Failure(kExitFailure, "no statistics: " + error_text(engine_, status));
  text.resize(text.find('\0'));
  return text;
}

void throw_not_created(otr_status status, const std::string& text) {
  // These options are given as they are: their texts name the option, which is the flag.
  const bool is_flag = text.starts_with("policy '") || text.starts_with("drafter '");
  throw Failure(exit_code_of_create(status, text), (is_flag ? "--" : "") + text);
}

void throw_refused(const otr_engine* engine, otr_status status) { throw_refused(status, error_text(engine, status)); }

void throw_refused(otr_status status, const std::string& text) {
  if (status == OTR_INVALID_ARGUMENT || status == OTR_NEVER_FITS || status == OTR_UNSUPPORTED || status == OTR_BAD_INPUT) {
    throw BadLine(text);
  }
  throw Failure(kExitFailure, text);
}

}  // namespace otr::cli
