// How a command that links the internals turns their errors into failures.
#pragma once

#include <utility>

#include "kernels/base/status.h"
#include "tools/outrider/failure.h"

namespace otr::cli {

// What is wrong with the model is bad input, everything else a failure at run time.
inline void check(const Status& status) {
  if (status.ok()) return;
  const bool theirs = status.code() == StatusCode::kBadInput || status.code() == StatusCode::kUnsupported;
  throw Failure(theirs ? kExitBadInput : kExitFailure, status.message());
}

template <typename T>
T check(Result<T> result) {
  check(result.status());
  return std::move(result.value());
}

// Of opening a model: whatever is wrong, it is the input.
template <typename T>
T check_model(Result<T> result) {
  if (!result.ok()) throw Failure(kExitBadInput, result.status().message());
  return std::move(result.value());
}

}  // namespace otr::cli
