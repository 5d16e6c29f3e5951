#include "kernels/page/page.h"

#include "tests/kernels/vector_test_util.h"

namespace otr::page_test {
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

TEST(KvLayout, PacksAsThePageHeaderSays) {
  constexpr KvLayout kRows{.num_layers = 1, .num_kv_heads = 1, .head_dim = 48};
  constexpr KvLayout kPairs{.num_layers = 1, .num_kv_heads = 1, .head_dim = 48, .packing = KvPacking::kPairs};
  std::vector<int> k_pairs(64 * 48), v_pairs(k_pairs);
  for (int slot = 0; slot < 64; ++slot) {
    for (int d = 0; d < 48; ++d) {
      EXPECT_EQ(kRows.k_index(slot, d), slot * 48 + d);
      EXPECT_EQ(kRows.v_index(slot, d), d * 64 + slot);
      EXPECT_EQ(kPairs.k_index(slot, d), ((slot / 16 * 24 + d / 2) * 16 + slot % 16) * 2 + d % 2);
      EXPECT_EQ(kPairs.v_index(slot, d), ((d / 16 * 32 + slot / 2) * 16 + d % 16) * 2 + slot % 2);
      ++k_pairs.at(static_cast<size_t>(kPairs.k_index(slot, d)));
      ++v_pairs.at(static_cast<size_t>(kPairs.v_index(slot, d)));
    }
  }
  EXPECT_EQ(k_pairs, std::vector<int>(64 * 48, 1));  // each place once
  EXPECT_EQ(v_pairs, std::vector<int>(64 * 48, 1));
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
}  // namespace otr::page_test
