// Rotary frequencies against those of transformers 5.23 (float32), within one unit in the last place: its pow and ours round
// alike but for that.
#include "graph/rope_frequencies.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace otr {
namespace {

void expect_frequencies(const ModelConfig& config, float scale, const std::vector<float>& expected) {
  std::vector<float> found(static_cast<size_t>(config.head_dim / 2));
  EXPECT_FLOAT_EQ(rope_frequencies(config, found), scale);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_LE(std::abs(found[i] - expected[i]), 1.2e-7f * expected[i]) << "frequency " << i;
  }
}

TEST(RopeFrequencies, Plain) {
  ModelConfig config;
  config.head_dim = 32;
  config.rope_theta = 1e6;
  expect_frequencies(config, 1.0f,
                     {1.0f, 0.421696514f, 0.177827939f, 0.0749894157f, 0.0316227786f, 0.0133352149f, 0.00562341325f,
                      0.00237137382f, 0.00100000005f, 0.000421696488f, 0.00017782794f, 7.49894243e-05f, 3.16227743e-05f,
                      1.33352141e-05f, 5.62341347e-06f, 2.37137374e-06f});
}

TEST(RopeFrequencies, YarnWithARoundedRamp) {
  ModelConfig config;
  config.head_dim = 32;
  config.rope_theta = 1e6;
  config.yarn = YarnScaling{.factor = 4, .original_max_positions = 1024, .attention_factor = 1.138629436111989};
  expect_frequencies(config, 1.138629436111989f,
                     {1.0f, 0.421696514f, 0.151153743f, 0.0524925925f, 0.0173925273f, 0.00533408578f, 0.00140585331f,
                      0.000592843455f, 0.000250000012f, 0.000105424122f, 4.44569851e-05f, 1.87473561e-05f, 7.90569356e-06f,
                      3.33380353e-06f, 1.40585337e-06f, 5.92843435e-07f});
}

TEST(RopeFrequencies, YarnWithAnUnroundedRamp) {
  ModelConfig config;
  config.head_dim = 64;
  config.rope_theta = 1e4;
  config.yarn = YarnScaling{
      .factor = 2, .original_max_positions = 4096, .beta_fast = 16, .attention_factor = 1.0693147180559945, .truncate = false};
  expect_frequencies(config, 1.0693147180559945f,
                     {1.0f,
                      0.749894202f,
                      0.562341332f,
                      0.421696514f,
                      0.316227764f,
                      0.237137362f,
                      0.177827939f,
                      0.133352146f,
                      0.100000001f,
                      0.0749894157f,
                      0.0562341288f,
                      0.0421696492f,
                      0.0316227786f,
                      0.0235666241f,
                      0.0167494565f,
                      0.0118681565f,
                      0.0083808098f,
                      0.00589548703f,
                      0.00412910758f,
                      0.00287751178f,
                      0.00199369108f,
                      0.00137197098f,
                      0.000936531287f,
                      0.000666760723f,
                      0.000500000024f,
                      0.000374947092f,
                      0.000281170651f,
                      0.000210848244f,
                      0.000158113893f,
                      0.000118568692f,
                      8.89139701e-05f,
                      6.66760752e-05f});
}

}  // namespace
}  // namespace otr
