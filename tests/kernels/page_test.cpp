#include "kernels/page/page.h"

#include "tests/kernels/vector_test_util.h"

namespace otr {
namespace {

using namespace testing_util;

constexpr KvLayout kLayout{.num_layers = 3, .num_kv_heads = 2, .head_dim = 32};
constexpr int kPages = 7;

std::vector<Element> numbered_pages() {
  std::vector<Element> pages(static_cast<size_t>(kPages * kLayout.page_elements()));
  for (size_t i = 0; i < pages.size(); ++i)
    pages[i] = to_element(static_cast<float>(1 + i % 251));  // every page differs: 251 is prime
  return pages;
}

std::vector<Element> page_of(const std::vector<Element>& pages, int id) {
  const auto begin = pages.begin() + id * kLayout.page_elements();
  return {begin, begin + kLayout.page_elements()};
}

TEST(KvLayout, IsWhatThePageHeaderSays) {
  EXPECT_EQ(kLayout.page_elements(), 3 * 2 * 2 * 64 * 32);
  EXPECT_EQ(kLayout.page_bytes(), kLayout.page_elements() * static_cast<int64_t>(sizeof(Element)));
  EXPECT_EQ(kLayout.k_offset(0, 0), 0);
  EXPECT_EQ(kLayout.v_offset(0, 0), 64 * 32);
  EXPECT_EQ(kLayout.k_offset(0, 1), 2 * 64 * 32);
  EXPECT_EQ(kLayout.k_offset(2, 1), (2 * 2 + 1) * 2 * 64 * 32);
  EXPECT_EQ(kLayout.v_offset(2, 1) + 64 * 32, kLayout.page_elements());
}

class Page : public PathTest {};
OTR_TEST_ALL_PATHS(Page);

TEST_P(Page, CopyMovesWholePagesAndNothingElse) {
  const std::vector<Element> before = numbered_pages();
  const std::vector<PageId> from = {6, 0, 0}, to = {1, 2, 5};
  for (int threads = 1; threads <= 3; ++threads) {
    ThreadPool pool(threads);
    std::vector<Element> pages = before;
    kernels->page_copy({kLayout, pages.data(), from.data(), to.data(), 3}, pool);
    const int expected[kPages] = {0, 6, 0, 3, 4, 0, 6};
    for (int id = 0; id < kPages; ++id) EXPECT_TRUE(same_bits(page_of(pages, id), page_of(before, expected[id]))) << id;
  }
}

TEST_P(Page, ZeroClearsWholePagesAndNothingElse) {
  const std::vector<Element> before = numbered_pages();
  const std::vector<Element> zero(static_cast<size_t>(kLayout.page_elements()), Element{});
  const std::vector<PageId> ids = {0, 6, 3};
  ThreadPool pool(2);
  std::vector<Element> pages = before;
  kernels->page_zero({kLayout, pages.data(), ids.data(), 3}, pool);
  for (int id = 0; id < kPages; ++id) {
    const bool cleared = id == 0 || id == 6 || id == 3;
    EXPECT_TRUE(same_bits(page_of(pages, id), cleared ? zero : page_of(before, id))) << id;
  }
}

}  // namespace
}  // namespace otr
