// How a command of the program fails: an exit code and one line of text.
//
// Failure ends the command; BadLine ends one line of the input only.
#pragma once

#include <stdexcept>
#include <string>

namespace otr::cli {

enum ExitCode : int {
  kExitOk = 0,
  kExitUsage = 2,     // the command line is wrong
  kExitBadInput = 3,  // the model or the input is wrong, at least one line of it
  kExitFailure = 4,   // something failed while running; beats 3
};

class Failure : public std::runtime_error {
 public:
  Failure(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

class BadLine : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace otr::cli
