// ModelWeights: a checkpoint's tensors in the layouts the kernels read, at addresses that never change.
//
// q, k and v are one weight of (num_heads + 2 num_kv_heads) * head_dim outputs, gate and up one of 2 * intermediate_size. Norm
// weights and biases are float32. An untied embedding stays row-major for lookups; a tied one is the lm_head alone.
//
// On a device linear weights lie row by row, gates before ups, where the plan has their tiles. They are packed on the host as
// for the CPU and unpacked there: one piece at a time, so load() takes the largest one's memory more than the model's.
//
// Errors: load() passes on what the source says, or kOutOfMemory; kUnsupported for a shape that the device's kernels do not
// take. Thread safety: read only but for put().
#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/element.h"
#include "kernels/dispatch.h"
#include "loader/model_config.h"
#include "loader/safetensors.h"
#include "loader/weight_names.h"
#include "loader/weight_plan.h"
#include "loader/weight_source.h"
#include "memory/buffer.h"

namespace otr {

class ThreadPool;

struct ExpertWeights {
  LinearWeight gate_up;  // [2 linear_padded(experts' intermediate_size)][hidden_size], in turns
  LinearWeight down;     // [hidden_size][experts' intermediate_size]
};

struct LayerWeights {
  const float* input_norm = nullptr;  // [hidden_size]
  LinearWeight qkv;                   // [(num_heads + 2 num_kv_heads) head_dim][hidden_size]
  const float* q_norm = nullptr;      // [head_dim], null for Qwen2
  const float* k_norm = nullptr;      // [head_dim], null for Qwen2
  LinearWeight o;                     // [hidden_size][num_heads head_dim]
  const float* post_norm = nullptr;   // [hidden_size]
  LinearWeight gate_up;               // [2 linear_padded(intermediate_size)][hidden_size], in turns (linear.h)
  LinearWeight down;                  // [hidden_size][intermediate_size]
  // In place of gate_up and down, of a layer with experts:
  LinearWeight router;                 // [num_experts][hidden_size]
  std::vector<ExpertWeights> experts;  // [num_experts]
};

// A tensor in memory, dense and row-major, as a checkpoint would hold it.
struct HostTensor {  // its data may be on a device where the weights are on one
  std::string_view name;
  Dtype dtype;
  std::span<const int64_t> shape;
  const std::byte* data;  // any alignment
};

// The files in memory that hold shared weights; -1: there is none.
struct WeightFiles {
  int packed = -1, embedding = -1, vectors = -1;
};

using TensorNames = std::set<std::string, std::less<>>;

class ModelWeights {
 public:
  // `device`: of the accelerator's kernels; null on the host. The accelerator outlives the weights. `shared`: other processes
  // will attach() them; on the host alone.
  static Result<ModelWeights> load(const ModelConfig& config, WeightSource& source, const LaunchContext& on,
                                   const DeviceLayouts* device = nullptr, bool shared = false);
  // Weights of this config that another process has loaded: never to be put(). The files stay the caller's.
  static Result<ModelWeights> attach(const ModelConfig& config, const WeightFiles& files);

  // Their memory goes back, its addresses stay; norms, biases and frequencies, a thousandth of it, are kept. After wake() every
  // tensor of the checkpoint is missing until it was put(). Errors: as Buffer::sleep and wake. REQUIRES: neither shared nor
  // attached.
  Status sleep();
  Status wake();
  // Every tensor is missing until it was put().
  void expect_all() { missing_ = all_tensors(); }
  // Checkpoint names of those that are missing.
  const TensorNames& missing() const { return missing_; }

  // All of it once more, in place, from a source of the same model. Errors: as load(). REQUIRES: on a device.
  Status reload(WeightSource& source, const LaunchContext& on, const DeviceLayouts& device) {
    return load_to_device(source, on, device);
  }

  // Replaces one tensor, in place, or those of a layer's experts that are stacked in it (stacked_experts). One that the engine
  // never reads (is_never_read) changes nothing. Errors: kInvalidArgument:
  // the model has no such tensor, or it has another shape or a dtype that cannot be loaded; nothing is changed.
  Status put(const HostTensor& tensor, ThreadPool& pool);

  const ModelConfig& config() const { return config_; }
  WeightFiles files() const { return {packed_.fd(), embedding_.fd(), vectors_.fd()}; }  // of shared weights
  const Element* embedding() const { return embedding_.data(); }  // [vocab_size][hidden_size]; null if tied
  const std::vector<LayerWeights>& layers() const { return layers_; }
  const float* final_norm() const { return final_norm_; }   // [hidden_size]
  const LinearWeight& lm_head() const { return lm_head_; }  // [vocab_size][hidden_size]
  const float* inv_freq() const { return inv_freq_; }       // [head_dim / 2]
  float rope_scale() const { return rope_scale_; }          // of cosine and sine
  // A checksum of everything that a forward pass reads, whatever its layout, and of the config: equal digests, equal results on
  // a path. From a device all of it comes up, some of it at a time. Errors: as Accelerator::wait.
  Result<uint64_t> digest() const;
  const void* address(const WeightPiece& piece) const;  // of the plan
  int64_t bytes() const { return static_cast<int64_t>(embedding_.bytes() + packed_.bytes() + vectors_.bytes()); }

 private:
  void* address(const WeightPiece& piece) { return const_cast<void*>(std::as_const(*this).address(piece)); }
  Status load_to_device(WeightSource& source, const LaunchContext& on, const DeviceLayouts& device);
  Status unknown(const HostTensor& tensor) const;
  Status put_stacked(const HostTensor& tensor, const StackedTensor& stacked, ThreadPool& pool);
  Status put_on_host(const HostTensor& tensor, const WeightPlan::Place& at, ThreadPool& pool);
  Status put_on_device(const HostTensor& tensor, const WeightPlan::Place& at);
  TensorNames all_tensors() const;
  void bind();
  Status add_sums(const void* data, int64_t size, int64_t step, std::vector<uint64_t>* sums) const;
  Status add_sums(const WeightPiece& piece, std::vector<uint64_t>* sums) const;
  void put_rows(const WeightPlan::Place& at, int32_t first, int32_t num_rows, const Element* rows);

  ModelConfig config_;
  WeightPlan plan_;
  Accelerator* accelerator_ = nullptr;  // null: host
  TensorNames missing_;
  Buffer<Element> embedding_;
  Buffer<Element> packed_;  // the plan's linear pieces
  Buffer<float> vectors_;   // the plan's vectors, then inv_freq
  std::vector<LayerWeights> layers_;
  const float* final_norm_ = nullptr;
  LinearWeight lm_head_;
  const float* inv_freq_ = nullptr;
  float rope_scale_ = 1.0f;
};

}  // namespace otr
