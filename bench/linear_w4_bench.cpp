// linear_w4: the projections of every model in 4 bits, and quantize_w4: those weights re-quantised.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "bench/projection_operands.h"
#include "bench/suite.h"

namespace otr::bench {
namespace {

// x[i] of a row as the op takes it: a multiple of its group's unit, in 8 bits.
double rounded_input(const Element* x, int64_t i) {
  const Element* group = x + i / kW4GroupK * kW4GroupK;
  float greatest = 0x1p-94f;
  for (int j = 0; j < kW4GroupK; ++j) greatest = std::max(greatest, std::fabs(to_float(group[j])));
  const double unit = std::ldexp(1.0, std::ilogb(greatest) - 6);
  return std::clamp(std::nearbyint(double{to_float(x[i])} / unit), -128.0, 127.0) * unit;
}

Work make_linear_w4(Suite& suite, const Projection& p, int rows) {
  const int64_t bytes = w4_cpu_packed_bytes(p.out_features, p.in_features), copies = copies_in_rotation(bytes);
  const uint8_t* weights = suite.arena().quantized(bytes * copies);
  Work work = projection_work<&KernelTable::linear_w4, LinearW4Params>(
      suite, p, rows, weights, bytes, copies,
      [weights, k = p.in_features](int64_t n, int64_t i) {
        uint32_t word;
        std::memcpy(&word, weights + w4_cpu_word_offset(n, i / kW4GroupK, k), sizeof word);
        const int64_t at = w4_cpu_nibble_index(n, i, k);
        const int q = weights[at / 2] >> (at % 2 * 4) & 15, zero = static_cast<int>(word & kW4ZeroPointMask);
        return double{float_from_bits(word)} * (q - zero);
      },
      rounded_input);
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
  work.verify = [=, &suite] {  // whole blocks by the scalar path: every path writes its bits
    Places places;
    Comparison comparison;
    const int64_t block_elements = linear_packed_elements(kLinearBlockN, p.in_features);
    const int64_t block_bytes = w4_cpu_block_bytes(p.in_features);
    Buffer<uint8_t> expected = std::move(Buffer<uint8_t>::create(block_bytes, "a block").value());
    for (int i = 0; i < 8; ++i) {
      const int64_t block = places.below(p.out_features / kLinearBlockN);
      const LinearWeight weight = {p.in_features, kLinearBlockN, weights + block * block_elements, nullptr};
      quantize_w4_scalar({weight, expected.data()}, suite.pool());
      for (int64_t at = block * block_bytes, j = 0; j < block_bytes; ++j) {
        comparison.expect_equal(at + j, packed[at + j], expected.data()[j]);
      }
    }
    return comparison.verdict();
  };
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
