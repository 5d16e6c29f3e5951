#include "kernels/embed/embed.h"

#include "tests/kernels/vector_test_util.h"

namespace otr::embed_test {
namespace {

using namespace testing_util;

class Embed : public PathTest {};
OTR_TEST_ALL_PATHS(Embed);

TEST_P(Embed, CopiesTheRowsOfTheTableExactly) {
  constexpr int kVocab = 75, kHidden = 101, kRows = 6;
  const std::vector<int32_t> ids = {74, 0, 33, 33, 15, 16};
  std::vector<Element> table;
  for (const float x : random_normal(kVocab * kHidden, 1.0f, 1)) table.push_back(to_element(x));
  std::vector<Element> packed(static_cast<size_t>(linear_packed_elements(kVocab, kHidden)));
  pack_linear(table.data(), kVocab, kHidden, packed.data());
  for (int c = 0; c < 6; ++c) {
    const bool from_packed = c % 2 == 1;
    ThreadPool pool(1 + c / 2);
    std::vector<float> out(kRows * kHidden + 1, -7.0f);
    kernels->embed(
        {kRows, kHidden, ids.data(), from_packed ? nullptr : table.data(), from_packed ? packed.data() : nullptr, out.data()},
        pool);
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
}  // namespace otr::embed_test
