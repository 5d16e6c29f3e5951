// The commands of the program. Each reads its own flags (argv[0] is its name), returns an ExitCode and throws Failure.
#pragma once

namespace otr::cli {

int rollout_command(int argc, char** argv);
int score_command(int argc, char** argv);
int inspect_command(int argc, char** argv);
int convert_command(int argc, char** argv);
int inflate_command(int argc, char** argv);
int profile_command(int argc, char** argv);
int report_command(int argc, char** argv);
int emulate_command(int argc, char** argv);
int simulate_command(int argc, char** argv);
int worker_command(int argc, char** argv);

}  // namespace otr::cli
