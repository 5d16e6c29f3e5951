// Makes a CUtensorMap of a TensorBox through the driver, whose entry point is looked up at run time: nothing links against it.
//
// Errors: kUnsupported without a driver that knows tensor maps; kInvalidArgument for a box that the hardware refuses.
// Thread safety: any number of threads.
#pragma once

#include <cuda.h>

#include "kernels/base/status.h"
#include "kernels/layouts/tensor_box.h"

namespace otr::ptx {

Status make_tensor_map(const void* base, const TensorBox& box, CUtensorMap* map);

}  // namespace otr::ptx
