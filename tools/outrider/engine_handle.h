// EngineHandle: an engine of the C ABI that is destroyed with its scope, and errors turned into Failure.
#pragma once

#include <string>

#include "runtime/outrider.h"

namespace otr::cli {

class EngineHandle {
 public:
  // Throws Failure: usage for a refused option, bad input for a model that cannot be loaded, else failure (a trace that cannot
  // be written).
  explicit EngineHandle(const otr_engine_options& options);
  ~EngineHandle() { otr_engine_destroy(engine_); }
  EngineHandle(const EngineHandle&) = delete;
  EngineHandle& operator=(const EngineHandle&) = delete;

  otr_engine* get() const { return engine_; }
  std::string stats() const;  // the JSON text of otr_stats

 private:
  otr_engine* engine_ = nullptr;
};

// Of an engine that could not be created, and of a request that an engine did not take, with what it says: REQUIRES status !=
// OTR_OK.
[[noreturn]] void throw_not_created(otr_status status, const std::string& text);
// BadLine if the request is to blame, else Failure.
[[noreturn]] void throw_refused(otr_status status, const std::string& text);
[[noreturn]] void throw_refused(const otr_engine* engine, otr_status status);

}  // namespace otr::cli
