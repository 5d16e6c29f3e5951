// What structs of the C ABI become inside, once they are checked, and what samples become outside. They have this version's
// size (abi.cpp widens them).
//
// Thread safety: pure functions. Errors: kInvalidArgument with the field's name.
#pragma once

#include "graph/model_weights.h"
#include "runtime/engine_options.h"
#include "runtime/outrider.h"
#include "runtime/request.h"

namespace otr {

Result<EngineOptions> engine_options(const otr_engine_options& options);
// A borrow of the tensor's name, shape and data.
Result<HostTensor> host_tensor(const otr_tensor& tensor);
// Of a finished sample: both borrow its arrays.
otr_result_view result_view(const Sequence& sample);
otr_sampling_params sampling_params(const SamplingParams& sampling);

}  // namespace otr
