// A checkpoint's tensors as a trainer holds them, and as the ABI takes them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "loader/checkpoint.h"
#include "runtime/outrider.h"
#include "tests/runtime/tiny_model.h"

namespace otr {

// A checkpoint's tensors as a trainer holds them.
struct TrainerTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;

  std::vector<std::byte> as(otr_dtype dtype) const {
    std::vector<std::byte> data(values.size() * (dtype == OTR_DTYPE_F32 ? 4 : 2));
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t bits = bf16_from_float(values[i]).bits;
      if (dtype == OTR_DTYPE_F32) std::memcpy(data.data() + 4 * i, &values[i], 4);
      else std::memcpy(data.data() + 2 * i, &bits, 2);
    }
    return data;
  }
};

inline std::vector<TrainerTensor> trainer_tensors(const TinyModel& model) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(model.path());
  std::vector<TrainerTensor> tensors;
  for (const std::string_view name : checkpoint.value().names()) {
    const TensorInfo& info = *checkpoint.value().find(name);
    TrainerTensor t{std::string(name), info.shape, std::vector<float>(static_cast<size_t>(info.num_elements()))};
    EXPECT_TRUE(checkpoint.value().read_as_float(name, info.shape, t.values.data()).ok());
    tensors.push_back(std::move(t));
  }
  return tensors;
}

inline otr_tensor tensor_of(const TrainerTensor& tensor, otr_dtype dtype, const void* data, size_t bytes) {
  otr_tensor t;
  otr_tensor_init(&t, sizeof t);
  t.name = tensor.name.c_str();
  t.dtype = dtype;
  t.shape = tensor.shape.data();
  t.num_dims = tensor.shape.size();
  t.data = data;
  t.data_bytes = bytes;
  return t;
}

inline otr_status put(otr_engine* engine, const TrainerTensor& tensor, otr_dtype dtype = OTR_DTYPE_BF16,
                      size_t misalignment = 0) {
  std::vector<std::byte> data = tensor.as(dtype);
  const size_t bytes = data.size();
  data.insert(data.begin(), misalignment, std::byte{0});
  const otr_tensor t = tensor_of(tensor, dtype, data.data() + misalignment, bytes);
  const otr_status status = otr_weights_put(engine, &t);
  std::fill(data.begin(), data.end(), std::byte{0xff});  // nothing refers to it any more
  return status;
}

inline void put_all(otr_engine* engine, const std::vector<TrainerTensor>& tensors, otr_dtype dtype = OTR_DTYPE_BF16,
                    size_t misalignment = 0) {
  for (const TrainerTensor& t : tensors) ASSERT_EQ(put(engine, t, dtype, misalignment), OTR_OK) << otr_last_error(engine);
}

}  // namespace otr
