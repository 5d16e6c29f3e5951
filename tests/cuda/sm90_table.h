// The sm_90a kernels behind the interface of a CPU path, so that the tests of tests/kernels run on them as they are: every
// operand is copied to the device (poisoned where the kernel is to write), the kernel runs, and the results come back.
#pragma once

#include <string>

#include "kernels/dispatch.h"

namespace otr::testing_util {

// The table, path "cuda-sm90a"; null with the reason where there is no device of compute capability 9.0.
const KernelTable* sm90_table(std::string* why);

}  // namespace otr::testing_util
