// Which device an engine is asked for, and what is said where it is not there.
#include "runtime/device.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/runtime/abi_fixture.h"

namespace otr {
namespace {

TEST(Device, GpusAreParsed) {
  const auto gpus = [](const char* device) { return parse_gpus(device).value(); };
  EXPECT_TRUE(gpus("auto").empty());
  EXPECT_TRUE(gpus("cpu").empty());
  EXPECT_EQ(gpus("cuda"), std::vector<int32_t>({0}));
  EXPECT_EQ(gpus("cuda:3"), std::vector<int32_t>({3}));
  EXPECT_EQ(gpus("cuda:2,0,11"), std::vector<int32_t>({2, 0, 11}));
}

TEST(Device, AnythingElseIsRefusedWithTheReason) {
  for (const char* device :
       {"", "gpu", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cuda:1,", "cuda:1 2", "cuda:,1", "cuda:99999999999", "cpu,cuda"}) {
    const Result<std::vector<int32_t>> refused = parse_gpus(device);
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << device;
    EXPECT_NE(refused.status().message().find("device '" + std::string(device) + "': "), std::string::npos)
        << refused.status().message();
  }
  EXPECT_EQ(parse_gpus("cuda:1,2,1").status().message(), "device 'cuda:1,2,1': GPU 1 is named twice");
}

class DeviceOption : public AbiFixture {
 protected:
  otr_status create(const char* device, const char* isa) {
    options_.device = device;
    options_.isa = isa;
    otr_engine* engine = nullptr;
    const otr_status status = otr_engine_create(&options_, &engine);
    EXPECT_EQ(otr_engine_destroy(engine), OTR_OK);
    return status;
  }
};

TEST_F(DeviceOption, ADeviceHasItsOwnPaths) {
  for (const auto& [device, isa] :
       {std::pair("cpu", "cuda-sm90a"), std::pair("cuda", "cpu-scalar"), std::pair("cuda:0,1", "cpu-avx2")}) {
    EXPECT_EQ(create(device, isa), OTR_INVALID_ARGUMENT) << device;
    EXPECT_EQ(std::string(otr_last_error(nullptr)), "device '" + std::string(device) + "' has no path '" + isa + "'");
  }
  EXPECT_EQ(create("cpu", "cpu-scalar"), OTR_OK);
  EXPECT_EQ(create("auto", "auto"), OTR_OK);
}

#if !defined(OUTRIDER_CUDA)
TEST_F(DeviceOption, ABuildWithoutTheBackendSaysSo) {
  for (const auto& [device, isa] :
       {std::pair("cuda", "auto"), std::pair("auto", "cuda-sm90a"), std::pair("cuda:0", "cuda-sm90a")}) {
    EXPECT_EQ(create(device, isa), OTR_UNSUPPORTED) << device;
    EXPECT_EQ(std::string(otr_last_error(nullptr)), "device cuda:0: this build has no CUDA backend, path cuda-sm90a");
  }
}
#endif

}  // namespace
}  // namespace otr
