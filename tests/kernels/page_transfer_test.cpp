#include "kernels/page/page_transfer.h"

#include "tests/kernels/vector_test_util.h"

namespace otr::page_transfer_test {
namespace {

using namespace testing_util;

constexpr KvLayout kLayout{.num_layers = 3, .num_kv_heads = 2, .head_dim = 32};
constexpr int kPages = 5;

class PageTransfer : public ::testing::TestWithParam<KvPacking> {
 protected:
  KvLayout layout = [] {
    KvLayout packed = kLayout;
    packed.packing = GetParam();
    return packed;
  }();
};
INSTANTIATE_TEST_SUITE_P(Packing, PageTransfer, ::testing::Values(KvPacking::kRows, KvPacking::kPairs),
                         [](const auto& test) { return test.param == KvPacking::kRows ? "rows" : "pairs"; });

std::vector<Element> random_pages(uint32_t seed) {
  std::vector<Element> pages;
  for (const float x : random_normal(static_cast<size_t>(kPages * kLayout.page_elements()), 1.0f, seed))
    pages.push_back(to_element(x));
  return pages;
}

TEST_P(PageTransfer, GathersKeysAndValuesAsRows) {
  const std::vector<Element> pages = random_pages(1);
  const std::vector<PageId> ids = {4, 0, 4};
  for (int threads = 1; threads <= 3; ++threads) {
    std::vector<Element> transfer(ids.size() * static_cast<size_t>(kLayout.page_elements()));
    ThreadPool pool(threads);
    page_gather({layout, pages.data(), ids.data(), static_cast<int32_t>(ids.size()), transfer.data()}, pool);
    size_t at = 0;
    for (const PageId id : ids) {
      const Element* page = pages.data() + id * kLayout.page_elements();
      for (int layer = 0; layer < 3; ++layer) {
        for (int head = 0; head < 2; ++head) {
          for (const bool values : {false, true}) {
            for (int token = 0; token < kPageTokens; ++token) {
              for (int d = 0; d < 32; ++d, ++at) {
                const Element* from = values ? page + layout.v_offset(layer, head) + layout.v_index(token, d)
                                             : page + layout.k_offset(layer, head) + layout.k_index(token, d);
                ASSERT_EQ(bits_of(transfer[at]), bits_of(*from)) << layer << " " << head << " " << token << " " << d;
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(PageTransfer, ScatteringPutsPagesBackAndTouchesNoOther) {
  const std::vector<Element> pages = random_pages(1), others = random_pages(2);
  const std::vector<PageId> from = {3, 1}, to = {0, 4};
  std::vector<Element> transfer(2 * static_cast<size_t>(kLayout.page_elements())), after = others;
  ThreadPool pool(2);
  page_gather({layout, pages.data(), from.data(), 2, transfer.data()}, pool);
  page_scatter({layout, after.data(), to.data(), 2, transfer.data()}, pool);
  const auto page_of = [](const std::vector<Element>& all, int id) {
    const auto begin = all.begin() + id * kLayout.page_elements();
    return std::vector<Element>(begin, begin + kLayout.page_elements());
  };
  for (int id = 0; id < kPages; ++id)
    EXPECT_TRUE(same_bits(page_of(after, id), id == 0   ? page_of(pages, 3)
                                              : id == 4 ? page_of(pages, 1)
                                                        : page_of(others, id)))
        << id;
}

TEST_P(PageTransfer, LayersPutBackOneByOneAreThePages) {
  const std::vector<Element> pages = random_pages(1);
  const std::vector<PageId> from = {3, 1}, to = {0, 4};
  std::vector<Element> transfer(2 * static_cast<size_t>(kLayout.page_elements())), whole = random_pages(2), by_layers = whole;
  ThreadPool pool(2);
  page_gather({layout, pages.data(), from.data(), 2, transfer.data()}, pool);
  page_scatter({layout, whole.data(), to.data(), 2, transfer.data()}, pool);
  for (int32_t layer = 0; layer < kLayout.num_layers; ++layer) {
    EXPECT_FALSE(same_bits(by_layers, whole)) << layer;
    page_scatter_layer({layout, by_layers.data(), to.data(), 2, transfer.data()}, layer, pool);
  }
  EXPECT_TRUE(same_bits(by_layers, whole));
}

}  // namespace
}  // namespace otr::page_transfer_test
