// linear_w4: the projections of every model in 4 bits, and quantize_w4: those weights re-quantised.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "bench/comparison.h"
#include "bench/projection_work.h"
#include "bench/suite.h"

namespace otr::bench {
namespace {

// A row as the op takes it: multiples of its groups' units, in 8 bits.
void round_inputs(const Element* x, int64_t num, double* to) {
  for (int64_t group = 0; group < num; group += kW4GroupK) {
    float greatest = 0x1p-94f;
    for (int64_t i = group; i < group + kW4GroupK; ++i) greatest = std::max(greatest, std::fabs(to_float(x[i])));
    const double unit = std::ldexp(1.0, std::ilogb(greatest) - 6);
    for (int64_t i = group; i < group + kW4GroupK; ++i)
      to[i] = std::clamp(std::nearbyint(double{to_float(x[i])} / unit), -128.0, 127.0) * unit;
  }
}

struct W4Value {
  double weight, scale;
};
W4Value w4_value(const uint8_t* packed, int64_t n, int64_t k, int64_t in_features) {
  uint32_t word;
  std::memcpy(&word, packed + w4_cpu_word_offset(n, k / kW4GroupK, in_features), sizeof word);
  const int64_t at = w4_cpu_nibble_index(n, k, in_features);
  const int q = packed[at / 2] >> (at % 2 * 4) & 15, zero = static_cast<int>(word & kW4ZeroPointMask);
  const double scale = double{float_from_bits(word)};
  return {scale * (q - zero), scale};
}

Work make_linear_w4(Suite& suite, const Projection& p, int rows) {
  const int64_t bytes = w4_cpu_packed_bytes(p.out_features, p.in_features), copies = copies_in_rotation(bytes);
  const uint8_t* weights = suite.arena().quantized(bytes * copies);
  Work work = projection_work<&KernelTable::linear_w4, LinearW4Params>(
      suite, p, rows, weights, bytes, copies,
      [weights, num = p.in_features](int64_t n, double* to) {
        for (int64_t k = 0; k < num; ++k) to[k] = w4_value(weights, n, k, num).weight;
      },
      round_inputs);
  work.products = Bound::kByteMatrix;
  return work;
}

Work make_quantize_w4(Suite& suite, const Projection& p) {
  const int64_t elements = linear_packed_elements(p.out_features, p.in_features);
  const int64_t in_bytes = elements * static_cast<int64_t>(sizeof(Element));
  const int64_t out_bytes = w4_cpu_packed_bytes(p.out_features, p.in_features),
                copies = copies_in_rotation(in_bytes + out_bytes);
  const Element* weights = suite.arena().elements(elements * copies);
  uint8_t* packed = static_cast<uint8_t*>(suite.arena().scratch(out_bytes * copies));

  Work work;
  work.memory = Bound::kCopy;  // it writes a byte for every four that it reads
  work.bytes = static_cast<double>(in_bytes + out_bytes);
  work.run = [=, &suite](int64_t call) {
    const int64_t i = call % copies;
    suite.kernels().quantize_w4({{p.in_features, p.out_features, weights + i * elements, nullptr}, packed + i * out_bytes},
                                suite.pool());
  };
  work.verify = [=, &suite] {  // whole blocks by the scalar path, whose bits every path writes; and against the weights
    Places places;
    Comparison comparison;
    const int64_t block_elements = linear_packed_elements(kLinearBlockN, p.in_features);
    const int64_t block_bytes = w4_cpu_block_bytes(p.in_features);
    Buffer<uint8_t> expected = make_buffer<uint8_t>(block_bytes, "a block");
    for (int i = 0; i < 8; ++i) {
      const int64_t block = places.below(p.out_features / kLinearBlockN);
      const LinearWeight weight = {p.in_features, kLinearBlockN, weights + block * block_elements, nullptr};
      quantize_w4_scalar({weight, expected.data()}, suite.pool());
      for (int64_t at = block * block_bytes, j = 0; j < block_bytes; ++j) {
        comparison.expect_equal(at + j, packed[at + j], expected.data()[j]);
      }
      for (int64_t n = block * kLinearBlockN; n < (block + 1) * kLinearBlockN; ++n) {
        for (int64_t k = 0; k < p.in_features; ++k) {
          const double w = double{to_float(weights[linear_packed_index(n, k, p.in_features)])};
          const W4Value value = w4_value(packed, n, k, p.in_features);
          comparison.expect(n * p.in_features + k, value.weight, w, value.scale * (0.5 + 0x1p-14));
        }
      }
    }
    return comparison.verdict();
  };
  work.spoil = [=] { std::memset(packed, 0xff, static_cast<size_t>(out_bytes)); };
  work.hash = [=] { return xxh64(packed, static_cast<size_t>(out_bytes)); };
  return work;
}

}  // namespace

void add_linear_w4_cases(Suite& suite) {
  for (const ModelShape& m : kModels) {
    for (int i = 0; i < kNumProjections; ++i) {
      const Projection p = projection(m, i);
      const std::string name = std::string(m.name) + "/" + p.name;
      suite.add("quantize_w4/" + name, [&suite, p] { return make_quantize_w4(suite, p); });
      for (const int rows : kLinearRows) {
        if (p.out_features == m.vocab_size && rows > kMaxLmHeadRows) continue;
        suite.add("linear_w4/" + name + "/rows:" + std::to_string(rows),
                  [&suite, p, rows] { return make_linear_w4(suite, p, rows); });
      }
    }
  }
}

}  // namespace otr::bench
