// ModelRunner: one model ready to run rows: weights, KV pages, the forward program and the sampler, on a device's kernels and
// threads. The target is one; so is a drafter that is a model of its own.
//
// On an accelerator weights, pages and logits are the device's; page ids, rows and draws go down and results come up in a copy
// each, and draw() and candidates() wait for the device. There a failure of the device throws std::runtime_error with its text,
// from whatever asks next: nothing of the tick can be kept.
//
// Made once; nothing but create() and wake_pages() allocates. Single-threaded: used by one thread at a time. Runners on several
// devices may share weights, which change only while all of them are at rest.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "graph/attached_weights.h"
#include "graph/forward_program.h"
#include "graph/model_weights.h"
#include "kernels/base/thread_pool.h"
#include "kernels/dispatch.h"
#include "memory/page_table.h"
#include "memory/prefix_cache.h"
#include "runtime/device_chain.h"
#include "runtime/device_draws.h"
#include "runtime/model_options.h"

namespace otr {

class ModelRunner {
 public:
  // `kernels`, `pool` and `programs` outlive the runner. `accelerator` and `programs`: null on the host.
  static Result<std::unique_ptr<ModelRunner>> create(const ModelOptions& options, const KernelTable& kernels, ThreadPool& pool,
                                                     std::shared_ptr<Accelerator> accelerator = nullptr,
                                                     ProgramPool* programs = nullptr);

  const ModelConfig& config() const { return weights_->model.config(); }
  bool in_4_bits() const { return in_4_bits_; }
  int64_t weight_bytes() const { return weights_->model.bytes(); }
  int64_t converted_tensors() const { return weights_->converted_tensors; }
  Result<uint64_t> weights_digest() const { return weights_->model.digest(); }  // reads all of them
  bool on_device() const { return accelerator_ != nullptr; }
  // Whether put_weight() may read there: host memory, or its own device's.
  bool can_copy(const void* data) const { return accelerator_ == nullptr || accelerator_->can_copy(data); }
  const KvLayout& kv_layout() const { return layout_; }
  int64_t page_bytes() const { return layout_.page_bytes(); }
  PagePool& page_pool() { return *page_pool_; }
  const PagePool& page_pool() const { return *page_pool_; }
  PrefixCache& prefix_cache() { return *prefix_cache_; }
  const PrefixCache& prefix_cache() const { return *prefix_cache_; }
  const ForwardProgram& program() const { return *program_; }
  // Rows of a tile, for a RowBatchBuilder.
  int32_t tile_rows() const { return kernels_.attention_tile_rows(config().num_heads, config().num_kv_heads); }

  // For other processes. REQUIRES: shared_memory. The files stay the runner's.
  SharedModel share() const;
  bool in_shared_memory() const { return shared_memory_; }

  // Makes a second program over the same pages: the model in 4 bits. Errors: kOutOfMemory. REQUIRES: not done yet.
  Status add_quantized(ProgramBucket bucket);
  const ForwardProgram& quantized_program() const { return *quantized_program_; }
  // Buffers of all programs, and the sampler's on a device.
  int64_t activation_bytes() const {
    return program_->buffer_bytes() + (quantized_program_ != nullptr ? quantized_program_->buffer_bytes() : 0) +
           (device_draws_ != nullptr ? device_draws_->bytes() : 0);
  }
  int64_t quantized_bytes() const { return weights_->quantized != nullptr ? weights_->quantized->bytes() : 0; }

  // Replaces a tensor of the weights; to be followed by weights_changed() before rows run, of all that share them and of their
  // owner first. Errors: as ModelWeights::put.
  Status put_weight(const HostTensor& tensor);
  bool owns_weights() const { return owns_weights_; }
  void expect_all_weights() { weights_->model.expect_all(); }  // REQUIRES: owns_weights()
  // Since it was made, by it: what was loaded, copied to a device, put and quantised. Any thread. Nothing else moves weights.
  int64_t weight_bytes_written() const { return owns_weights_ ? weights_->written_bytes.load(std::memory_order_relaxed) : 0; }
  // What was made of the old weights is made again, or forgotten. A device's copy of another process' weights is one of those.
  void weights_changed();
  // Memory goes back at addresses that stay (Buffer::sleep); no rows run until it is awake. Weights that it owns are lost, to
  // be put again, and so are those in 4 bits, which weights_changed() makes. Pages and programs' buffers come back empty, and
  // so does the prefix cache.
  Status sleep_weights(), wake_weights(), sleep_pages(), wake_pages();
  const TensorNames& missing_weights() const { return weights_->model.missing(); }

  double quantize_seconds() const { return quantize_seconds_; }  // of the last time

  // Copies and zeroes pages as asked. To be done before rows run on them.
  void prepare(const PageWork& work);
  // Pages in their canonical form (page_transfer.h), [ids.size()][page_elements]. On a device they go through pinned memory
  // of the host. Errors: as Accelerator::wait. REQUIRES: a target's, awake.
  Status read_pages(std::span<const PageId> ids, Element* transfer);
  Status write_pages(std::span<const PageId> ids, const Element* transfer);
  std::byte* page_address(PageId page) { return reinterpret_cast<std::byte*>(pages_.data() + page * layout_.page_elements()); }
  // Copies `from`'s pages `source` into the pages `to` of this one: as many, of the same path and layout. `from` may run
  // meanwhile; nobody writes to those pages. On the host a layer of them can come alone, and while a pass is between two layers
  // (LayerGate).
  void copy_pages(const ModelRunner& from, std::span<const PageId> source, std::span<const PageId> to);
  void copy_layer(const ModelRunner& from, int32_t layer, std::span<const PageId> source, std::span<const PageId> to);
  void write_layer(int32_t layer, std::span<const PageId> ids,
                   const Element* transfer);  // of whole pages in their canonical form
  void run(const RowBatch& rows, LayerGate* gate = nullptr);
  // Draws from the logits of the last run.
  void draw(const SampleDraw* draws, int32_t num_draws, SampleResult* results);
  // For chains of drafts of at most `max_draws` tokens in all: null on the host. It is used while the runner is. Errors:
  // kOutOfMemory.
  Result<std::unique_ptr<DeviceChain>> make_chain(int32_t max_draws);
  // A drafter's candidates, from the logits of a program's last run.
  void candidates(const ForwardProgram& program, const CandidateDraw* draws, int32_t num_draws, int32_t m, Candidates* results);

 private:
  struct Weights {
    std::shared_ptr<Accelerator> accelerator;  // outlives what lies on it
    ModelWeights model;
    int64_t converted_tensors = 0;
    std::unique_ptr<QuantizedWeights> quantized;
    std::atomic<int64_t> written_bytes = 0;
    std::optional<AttachedWeights> source;  // what a device's are a copy of
  };
  ModelRunner(const KernelTable& kernels, ThreadPool& pool, std::shared_ptr<Accelerator> accelerator, ProgramPool* programs)
      : kernels_(kernels), pool_(pool), accelerator_(std::move(accelerator)), programs_(programs) {}
  LaunchContext context() const { return {pool_, accelerator_.get()}; }
  Status load_weights(const ModelOptions& options);
  Status attach_weights(const SharedModel& shared);
  Status make_quantized();
  Status create_pages(const ModelOptions& options);
  Status create_device_parts(bool moves_pages);
  Status make_page_transfer();
  ProgramOptions program_options(ProgramRole role) const;
  void quantize();
  void prepare_on_device(const PageWork& work);
  template <typename Visit>
  Status each_transfer(std::span<const PageId> ids, const Visit& visit);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  const std::shared_ptr<Accelerator> accelerator_;  // null: host
  ProgramPool* const programs_;
  std::shared_ptr<Weights> weights_;
  bool owns_weights_ = true, shared_memory_ = false, in_4_bits_ = false;
  KvLayout layout_;
  Buffer<Element> pages_;  // [num_pages][layout_.page_elements()]
  std::unique_ptr<PagePool> page_pool_;
  std::unique_ptr<PrefixCache> prefix_cache_;
  std::unique_ptr<ForwardProgram> program_;
  std::unique_ptr<ForwardProgram> quantized_program_;
  double quantize_seconds_ = 0;
  Buffer<float> sample_scaled_;   // on the host: [num_threads][sample_workspace_stride]
  Buffer<int32_t> sample_order_;  // likewise
  // On a device.
  std::unique_ptr<DeviceDraws> device_draws_;
  Mirror page_ids_;           // [kMaxPageIds]
  bool moves_pages_ = false;  // of a target: nobody asks for a drafter's
  Mirror page_transfer_;      // pages on their way, in their canonical form; none in a sleep of the pages
};

}  // namespace otr
