#include "kernels/sample/candidates_row.h"

namespace otr {
namespace {

struct ScalarOps {
  static bool finite_max(const float* x, int32_t n, float* maxima, float* max) {
    float m = x[0];
    bool finite = true;
    for (int32_t begin = 0; begin < n; begin += kSampleMaxBlock) {
      float block_max = x[begin];
      for (int32_t v = begin; v < n && v < begin + kSampleMaxBlock; ++v) {
        finite &= is_finite_bits(x[v]);
        block_max = x[v] > block_max ? x[v] : block_max;
      }
      maxima[begin / kSampleMaxBlock] = block_max;
      m = block_max > m ? block_max : m;
    }
    *max = m + 0.0f;  // lanes meet -0 and +0 in another order; -0 + 0 = +0
    return finite;
  }

  static double sum_exp(const float* x, float max, int32_t n, const float*) {
    constexpr int kLanes = 16;
    double total = 0.0;
    for (int32_t begin = 0; begin < n; begin += kSampleSumBlock) {
      const int32_t end = begin + kSampleSumBlock < n ? begin + kSampleSumBlock : n;
      float lanes[kLanes] = {};
      for (int32_t v = begin; v < end; ++v) lanes[v % kLanes] += exp32(x[v] - max);
      for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
      }
      total += static_cast<double>(lanes[0]);
    }
    return total;
  }

  static void divide(const float* x, float divisor, int32_t n, float* out) {
    for (int32_t v = 0; v < n; ++v) out[v] = x[v] / divisor;
  }

  static int32_t argmax_with_noise(const SampleDraw& d, const float* x, float, const float*, int32_t n, const float*) {
    int32_t best = 0;
    float best_score = -__builtin_inff();
    for (int32_t v = 0; v < n; v += 4) {
      const PhiloxBlock words = noise_words(d.noise, static_cast<uint32_t>(v) / 4, static_cast<uint32_t>(d.position));
      for (int32_t i = v; i < n && i < v + 4; ++i) {
        const float score = x[i] + gumbel_from_word(words.w[i - v]);
        if (score > best_score) {
          best_score = score;
          best = i;
        }
      }
    }
    return best;
  }

  static int32_t collect(const float* x, float bound, const float*, int32_t n, int32_t* ids) {
    int32_t count = 0;
    for (int32_t v = 0; v < n; ++v) {
      ids[count] = v;
      count += x[v] >= bound ? 1 : 0;
    }
    return count;
  }

  static int32_t collect_with_noise(const SampleDraw& d, const float* x, CandidateBound bound, const float*, int32_t n,
                                    float* scores, int32_t* ids) {
    int32_t count = 0;
    for (int32_t v = 0; v < n; v += 4) {
      const PhiloxBlock words = noise_words(d.noise, static_cast<uint32_t>(v) / 4, static_cast<uint32_t>(d.position));
      for (int32_t i = v; i < n && i < v + 4; ++i) {
        const float score = x[i] + gumbel_from_word(words.w[i - v]);
        if (score < candidate_bound_least(bound)) continue;
        candidate_bound_show(&bound, score);
        ids[count] = i;
        scores[count++] = score;
      }
    }
    return count;
  }

  static bool any_above(const float* x, int32_t n, float floor) {
    bool any = false;
    for (int32_t v = 0; v < n; ++v) any |= x[v] > floor;
    return any;
  }

  static void weigh(const float* x, float max, float inv_beta, int32_t n, float* total, float* mean) {
    *total = *mean = 0.0f;
    for (int32_t v = 0; v < n; ++v) {
      const float below = x[v] - max, w = exp32(below * inv_beta);
      *total += w;
      *mean += w * below;
    }
  }
};

}  // namespace

void sample_scalar(const SampleParams& params, ThreadPool& pool) { sample_rows<ScalarOps>(params, pool); }
void candidates_scalar(const CandidateParams& params, ThreadPool& pool) { candidates_rows<ScalarOps>(params, pool); }

}  // namespace otr
