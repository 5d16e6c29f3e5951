// Worker: everything one device needs to run rows: kernels, threads, weights, pages, the forward program and the sampler.
//
// Made once; run() and draw() allocate nothing. Single-threaded: used by the engine thread.
#pragma once

#include <memory>
#include <string>

#include "graph/forward_program.h"
#include "graph/model_weights.h"
#include "kernels/base/thread_pool.h"
#include "kernels/dispatch.h"
#include "memory/page_table.h"
#include "memory/prefix_cache.h"

namespace otr {

struct WorkerOptions {
  std::string model_path;
  std::string isa = "auto";
  int32_t num_threads = 0;
  uint64_t kv_bytes = 0;  // 0: a quarter of the free memory
  ProgramBucket bucket;
};

class Worker {
 public:
  static Result<std::unique_ptr<Worker>> create(const WorkerOptions& options);

  const ModelConfig& config() const { return weights_.config(); }
  const char* isa() const { return kernels_->path; }
  int32_t num_threads() const { return pool_->num_threads(); }
  int64_t weight_bytes() const { return weights_.bytes(); }
  int64_t converted_tensors() const { return converted_tensors_; }
  int64_t page_bytes() const { return layout_.page_bytes(); }
  PagePool& page_pool() { return *page_pool_; }
  const PagePool& page_pool() const { return *page_pool_; }
  PrefixCache& prefix_cache() { return *prefix_cache_; }
  const ForwardProgram& program() const { return *program_; }

  // Copies and zeroes pages as asked, then runs the rows.
  void run(const PageWork& work, const RowBatch& rows);
  // Draws from the logits of the last run.
  void draw(const SampleDraw* draws, int32_t num_draws, SampleResult* results);

 private:
  Worker() = default;
  Status create_pages(uint64_t kv_bytes);

  const KernelTable* kernels_ = nullptr;
  std::unique_ptr<ThreadPool> pool_;
  ModelWeights weights_;
  int64_t converted_tensors_ = 0;
  KvLayout layout_;
  Buffer<Element> pages_;  // [num_pages][layout_.page_elements()]
  std::unique_ptr<PagePool> page_pool_;
  std::unique_ptr<PrefixCache> prefix_cache_;
  std::unique_ptr<ForwardProgram> program_;
  Buffer<float> sample_scaled_;   // [num_threads][sample_workspace_stride]
  Buffer<int32_t> sample_order_;  // likewise
};

}  // namespace otr
