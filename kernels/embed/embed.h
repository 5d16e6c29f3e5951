// embed: out[r] = row token_ids[r] of the embedding, bf16 to float32: the residual stream starts here. Exact, the same on every
// CPU path and for both layouts.
//
// A tied model's embedding is its lm_head: rows are gathered from there, 4 bytes of a cache line each. A row-major copy would
// cost vocab_size * hidden_size elements (272 MB at the shape of Qwen2.5-0.5B); a row's 448 lines are nothing beside the sweep
// over the layers' weights that follows.
#pragma once

#include <cstdint>

#include "kernels/base/element.h"

namespace otr {

class ThreadPool;

struct EmbedParams {
  int32_t num_rows;
  int32_t hidden_size;
  const int32_t* token_ids;  // [num_rows], 0 <= id < vocab_size
  const Element* table;      // [vocab_size][hidden_size], null if `packed` is given
  const Element* packed;     // [linear_packed_elements(vocab_size, hidden_size)] as in linear.h, null if `table` is given
  float* out;                // [num_rows][hidden_size]
};

void embed(const EmbedParams& params, ThreadPool& pool);

}  // namespace otr
