// Status and Result: how errors travel inside the engine. The C ABI maps the codes one to one (runtime/outrider.h).
//
// Thread safety: values, no shared state.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <utility>

namespace otr {

// Pinned: these numbers are the C ABI's otr_status values.
enum class StatusCode : int {
  kOk = 0,
  kInvalidArgument = 1,  // the caller's argument is wrong; the call had no effect
  kInvalidHandle = 2,    // never created, or already destroyed
  kBadInput = 3,         // a file or its contents are wrong
  kUnsupported = 4,      // valid, but not something this build or machine can do
  kNeverFits = 5,        // larger than the engine's memory will ever allow
  kOutOfMemory = 6,      // memory or a thread was refused
  kTimeout = 7,          // nothing happened within the given time
  kIoError = 8,          // the operating system refused a read or write
  kFault = 9,            // NaN or Inf in a request's own numbers
  kInternal = 10,        // a bug in the library
  kIdle = 11,            // nothing is outstanding
  kBusy = 12,            // not while what is under way goes on
  kLost = 13,            // the process that would have done it is lost
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status invalid_argument(std::string m) { return {StatusCode::kInvalidArgument, std::move(m)}; }
inline Status bad_input(std::string m) { return {StatusCode::kBadInput, std::move(m)}; }
inline Status unsupported(std::string m) { return {StatusCode::kUnsupported, std::move(m)}; }
inline Status io_error(std::string m) { return {StatusCode::kIoError, std::move(m)}; }

// Either a value or the Status that explains its absence.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }
  Result(T value) : value_(std::move(value)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  // REQUIRES: ok()
  T& value() { return *value_; }
  const T& value() const { return *value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace otr

#define OTR_CONCAT_INNER(a, b) a##b
#define OTR_CONCAT(a, b) OTR_CONCAT_INNER(a, b)

// Returns the Status of `expr` from the enclosing function if it is an error.
#define OTR_RETURN_IF_ERROR(expr)              \
  do {                                         \
    ::otr::Status otr_status_ = (expr);        \
    if (!otr_status_.ok()) return otr_status_; \
  } while (0)

// Assigns the value of a Result to `lhs`, or returns its Status from the enclosing function.
#define OTR_ASSIGN_OR_RETURN(lhs, expr) OTR_ASSIGN_OR_RETURN_IMPL(OTR_CONCAT(otr_result_, __LINE__), lhs, expr)
#define OTR_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) return tmp.status();             \
  lhs = std::move(tmp.value())
