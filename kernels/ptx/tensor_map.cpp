#include "kernels/ptx/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <string>

namespace otr::ptx {
namespace {

// The function's version with these parameters is that of CUDA 12.0. Asked for once: the answer never changes.
PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  static const PFN_cuTensorMapEncodeTiled_v12000 encoder = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    const bool usable = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
    return usable ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry) : nullptr;
  }();
  return encoder;
}

}  // namespace

Status make_tensor_map(const void* base, const TensorBox& t, CUtensorMap* map) {
  if (const char* why = tensor_box_error(t, reinterpret_cast<uintptr_t>(base))) {
    return invalid_argument(std::string("tensor map: ") + why);
  }
  const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  if (encode == nullptr) return unsupported("tensor map: the CUDA driver is missing or older than 12.0");
  cuuint64_t dims[kMaxBoxRank], strides[kMaxBoxRank];
  cuuint32_t box[kMaxBoxRank], element_strides[kMaxBoxRank];
  for (int i = 0; i < t.rank; ++i) {
    dims[i] = t.dims[i];
    box[i] = t.box[i];
    element_strides[i] = 1;
    if (i > 0) strides[i - 1] = t.strides[i];  // the fastest stride is implied
  }
  const CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(t.rank),
                                 const_cast<void*>(base), dims, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 t.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) return invalid_argument("tensor map: the driver refuses it, error " + std::to_string(result));
  return {};
}

}  // namespace otr::ptx
