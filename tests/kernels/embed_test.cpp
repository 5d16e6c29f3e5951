#include "kernels/embed/embed.h"

#include "tests/kernels/vector_test_util.h"

namespace otr {
namespace {

using namespace testing_util;

TEST(Embed, CopiesTheRowsOfTheTableExactly) {
  constexpr int kVocab = 11, kHidden = 37, kRows = 6;
  const std::vector<int32_t> ids = {10, 0, 3, 3, 7, 1};
  std::vector<Element> table;
  for (const float x : random_normal(kVocab * kHidden, 1.0f, 1)) table.push_back(to_element(x));
  for (int threads = 1; threads <= 3; ++threads) {
    ThreadPool pool(threads);
    std::vector<float> out(kRows * kHidden + 1, -7.0f);
    embed({kRows, kHidden, ids.data(), table.data(), out.data()}, pool);
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kHidden; ++i) {
        ASSERT_EQ(out[static_cast<size_t>(r * kHidden + i)],
                  to_float(table[static_cast<size_t>(ids[static_cast<size_t>(r)] * kHidden + i)]));
      }
    }
    EXPECT_EQ(out.back(), -7.0f);
  }
}

}  // namespace
}  // namespace otr
