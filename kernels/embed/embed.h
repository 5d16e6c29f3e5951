// embed: out[r] = table[token_ids[r]], bf16 to float32: the residual stream starts here. Exact, the same on every CPU path.
#pragma once

#include <cstdint>

#include "kernels/base/element.h"

namespace otr {

class ThreadPool;

struct EmbedParams {
  int32_t num_rows;
  int32_t hidden_size;
  const int32_t* token_ids;  // [num_rows], 0 <= id < vocab_size
  const Element* table;      // [vocab_size][hidden_size]
  float* out;                // [num_rows][hidden_size]
};

void embed(const EmbedParams& params, ThreadPool& pool);

}  // namespace otr
