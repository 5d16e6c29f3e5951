// outrider: the command line program. A table of commands; everything else is in their files.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>

#include "runtime/outrider.h"
#include "tools/outrider/commands.h"
#include "tools/outrider/failure.h"

namespace {

using namespace otr::cli;

struct Command {
  const char* name;
  const char* summary;  // null: not for users to call
  int (*run)(int argc, char** argv);
};

constexpr Command kCommands[] = {
    {"rollout", "draw samples for a file of prompts", rollout_command},
    {"score", "log-probabilities of given tokens", score_command},
    {"profile", "measure what passes cost here, for policies that choose by it", profile_command},
    {"inspect", "what a model holds", inspect_command},
    {"convert", "write a model folder as one .otr file", convert_command},
    {"inflate", "widen a small model to the shape of a large one", inflate_command},
    {"emulate", "how long a rollout would take by a profile's costs: real workers, paced", emulate_command},
    {"simulate", "how long a rollout would take on a cluster", simulate_command},
    {"worker", nullptr, worker_command},
    {"report", "a page about rollouts, from their traces and statistics", report_command},
};

void print_usage(std::FILE* file) {
  std::fputs("Usage: outrider COMMAND [FLAGS]\n\nCommands:\n", file);
  for (const Command& c : kCommands) {
    if (c.summary != nullptr) std::fprintf(file, "  %-10s %s\n", c.name, c.summary);
  }
  std::fputs("\n'outrider COMMAND --help' lists a command's flags; 'outrider --version' prints the version.\n", file);
}

int run_command(const Command& command, int argc, char** argv) {
  try {
    return command.run(argc, argv);
  } catch (const Failure& failure) {
    std::fprintf(stderr, "outrider %s: %s\n", command.name, failure.what());
    if (failure.code() == kExitUsage) std::fprintf(stderr, "See 'outrider %s --help'.\n", command.name);
    return failure.code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "outrider %s: %s\n", command.name, error.what());
    return kExitFailure;
  }
}

// The next file to be opened is not to take the place of a stream that the caller has closed. What does fails as that would.
void occupy_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

int run_program(int argc, char** argv) {
  if (argc < 2) {
    print_usage(stderr);
    return kExitUsage;
  }
  const char* name = argv[1];
  if (!std::strcmp(name, "--help") || !std::strcmp(name, "-h")) {
    print_usage(stdout);
    return kExitOk;
  }
  if (!std::strcmp(name, "--version")) {
    std::printf("outrider %s\n", otr_version());
    return kExitOk;
  }
  for (const Command& command : kCommands) {
    if (!std::strcmp(name, command.name)) return run_command(command, argc - 1, argv + 1);
  }
  std::fprintf(stderr, "outrider: there is no command '%s'\n", name);
  print_usage(stderr);
  return kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows beyond the limit is an error of its write
  const int code = run_program(argc, argv);
  // What was printed may be in a buffer still.
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "outrider: cannot write <stdout>: %s\n", flushed ? "not all of it" : std::strerror(errno));
  return kExitFailure;
}
