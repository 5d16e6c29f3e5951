#include "kernels/embed/embed.h"

#include "kernels/base/thread_pool.h"
#include "kernels/linear/linear.h"

namespace otr {
namespace {

void gather_packed(const Element* packed, int64_t row, int hidden_size, float* dst) {
  constexpr int kStep = kLinearStepK * kLinearBlockN, kPair = 2 * kLinearTileN;  // elements from one of a row to its next
  const Element* first = packed + linear_packed_index(row, 0, hidden_size);
  for (int k = 0; k < hidden_size; ++k) {
    dst[k] = to_float(first[k / kLinearStepK * kStep + k % kLinearStepK / 2 * kPair + k % 2]);
  }
}

}  // namespace

void embed(const EmbedParams& p, ThreadPool& pool) {
  pool.parallel_for(p.num_rows, [&](int row, int) {
    float* dst = p.out + int64_t{row} * p.hidden_size;
    if (p.packed != nullptr) return gather_packed(p.packed, p.token_ids[row], p.hidden_size, dst);
    const Element* src = p.table + int64_t{p.token_ids[row]} * p.hidden_size;
    for (int i = 0; i < p.hidden_size; ++i) dst[i] = to_float(src[i]);
  });
}

}  // namespace otr
