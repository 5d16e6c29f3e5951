// Pages that leave and come back, on sm_90a: the bytes of the definition.
#include "kernels/page/page_sm90.h"

#include "tests/cuda/device_buffer.h"
#include "tests/kernels/kernel_test_util.h"

namespace otr::page_sm90_test {
namespace {

using namespace testing_util;

class PageSm90 : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (sm90_table(&why) == nullptr) GTEST_SKIP() << why;
  }
};

TEST_F(PageSm90, GatherAndScatterHaveTheBytesOfTheDefinition) {
  for (const int head_dim : {32, 64, 128}) {
    const KvLayout layout{.num_layers = 2, .num_kv_heads = 3, .head_dim = head_dim};
    const size_t page = static_cast<size_t>(layout.page_elements());
    const std::vector<Element> pages = random_elements(6 * page, 1.0f, 1);
    const std::vector<PageId> from = {5, 0, 2}, to = {1, 4, 3};
    std::vector<Element> transfer(3 * page), after = pages;
    ThreadPool pool(1);
    page_gather({layout, pages.data(), from.data(), 3, transfer.data()}, pool);
    page_scatter({layout, after.data(), to.data(), 3, transfer.data()}, pool);

    const DeviceBuffer<Element> device_pages(pages), device_transfer(transfer.size());
    const DeviceBuffer<PageId> device_from(from), device_to(to);
    check_status(page_gather_sm90({layout, device_pages.data(), device_from.data(), 3, device_transfer.data()}, side_stream()));
    wait_for(side_stream());
    EXPECT_TRUE(same_bits(device_transfer.read(), transfer)) << head_dim;
    check_status(page_scatter_sm90({layout, device_pages.data(), device_to.data(), 3, device_transfer.data()}, side_stream()));
    wait_for(side_stream());
    EXPECT_TRUE(same_bits(device_pages.read(), after)) << head_dim;
  }
}

}  // namespace
}  // namespace otr::page_sm90_test
