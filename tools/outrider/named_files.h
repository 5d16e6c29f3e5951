// The files that a command's flags name. No two of them may be one, or what is written by one flag destroys what another one
// named.
//
// Thread safety: pure, but for asking the file system.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "tools/outrider/flags.h"

namespace otr::cli {

// A path that is a part of a flag's value, or of what it names.
struct ReadFile {
  std::string name, path;  // "--drafter"
};
std::vector<ReadFile> drafter_files(const Flags& flags);  // each --drafter NAME=KIND:PATH

// Throws Failure (usage) if a file that a flag of `written` names is also that of another flag, of `others`, or of an argument
// that is no flag. Two that are not there yet are told apart by their paths, and devices and pipes may be shared. "-" and an
// --out that is not given are the standard streams. To be called before anything is truncated.
void refuse_shared_files(const Flags& flags, std::initializer_list<const char*> read,
                         std::initializer_list<const char*> written, const std::vector<ReadFile>& others = {});

}  // namespace otr::cli
