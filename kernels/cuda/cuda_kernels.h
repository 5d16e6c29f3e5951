// The path cuda-sm90a of the dispatch table (dispatch.h): the sm_90a kernels behind its signatures. A launch's context has a
// CudaDevice, in whose stream it runs; what fails is kept there.
//
// Thread safety: the table is a constant.
#pragma once

#include "kernels/dispatch.h"

namespace otr {

class CudaDevice;

inline constexpr const char* kCudaPath = "cuda-sm90a";

const KernelTable& cuda_kernels();

// Loads all of them on the device, before there is no memory left for it. Errors: as cuda_status says.
Status load_cuda_kernels(CudaDevice* device);

}  // namespace otr
