// Tests of engines on every instruction-set path.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "kernels/dispatch.h"
#include "tests/runtime/test_engine.h"

namespace otr {

// A fixture for every instruction-set path by name; a path that is not there is reported as skipped.
class EveryPath : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const Result<const KernelTable*> table = select_kernels(GetParam());
    if (!table.ok()) GTEST_SKIP() << table.status().message();
  }
  EngineSetup setup() const { return {.isa = GetParam()}; }
};

inline std::string path_name(const testing::TestParamInfo<const char*>& info) {
  return std::string(info.param).substr(std::strlen("cpu-"));
}

#define OTR_INSTANTIATE_EVERY_PATH(Suite) \
  INSTANTIATE_TEST_SUITE_P(Path, Suite, testing::Values("cpu-amx", "cpu-avx512", "cpu-avx2", "cpu-scalar"), path_name)

}  // namespace otr
