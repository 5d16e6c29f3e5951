#include "runtime/worker.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>

namespace otr {
namespace {

// MemAvailable of /proc/meminfo in bytes, where that can be read.
std::optional<uint64_t> free_memory() {
  std::optional<uint64_t> bytes;
  if (std::FILE* f = std::fopen("/proc/meminfo", "re"); f != nullptr) {
    char line[256];
    unsigned long long value;
    while (std::fgets(line, sizeof line, f) != nullptr) {
      if (std::sscanf(line, "MemAvailable: %llu kB", &value) == 1) bytes = uint64_t{value} * 1024;
    }
    std::fclose(f);
  }
  return bytes;
}

}  // namespace

Result<std::unique_ptr<Worker>> Worker::create(const WorkerOptions& options) {
  std::unique_ptr<Worker> w(new Worker());
  OTR_ASSIGN_OR_RETURN(w->kernels_, select_kernels(options.isa));
  w->pool_ = std::make_unique<ThreadPool>(options.num_threads);
  OTR_ASSIGN_OR_RETURN(const OpenModel model, open_model(options.model_path));
  const ModelConfig& config = model.config;
  OTR_ASSIGN_OR_RETURN(w->weights_, ModelWeights::load(config, *model.weights, *w->pool_));
  w->converted_tensors_ = model.weights->converted_tensors();
  w->layout_ = {.num_layers = config.num_layers, .num_kv_heads = config.num_kv_heads, .head_dim = config.head_dim};
  OTR_RETURN_IF_ERROR(w->create_pages(options.kv_bytes));
  OTR_ASSIGN_OR_RETURN(ForwardProgram program, ForwardProgram::create(*w->kernels_, w->weights_, w->layout_, w->pages_.data(),
                                                                     options.bucket, *w->pool_));
  w->program_ = std::make_unique<ForwardProgram>(std::move(program));
  const int64_t stride = sample_workspace_stride(config.vocab_size) * w->pool_->num_threads();
  OTR_ASSIGN_OR_RETURN(w->sample_scaled_, Buffer<float>::create(stride, "sampler"));
  OTR_ASSIGN_OR_RETURN(w->sample_order_, Buffer<int32_t>::create(stride, "sampler"));
  return w;
}

Status Worker::create_pages(uint64_t kv_bytes) {
  constexpr uint64_t kUnknownFree = uint64_t{1} << 30;
  const std::optional<uint64_t> free = free_memory();
  const uint64_t bytes = kv_bytes != 0 ? kv_bytes : free.value_or(kUnknownFree) / 4;
  // Pages cost memory only once they are touched: the system would grant far too many, and kill the process much later.
  if (free && bytes > *free) {
    return Status(StatusCode::kOutOfMemory, "kv_bytes of " + std::to_string(bytes) + " is more than the free memory of " +
                                                std::to_string(*free));
  }
  const uint64_t page_bytes = static_cast<uint64_t>(layout_.page_bytes());
  const uint64_t num_pages = std::min<uint64_t>(bytes / page_bytes, std::numeric_limits<int32_t>::max() / 2);
  if (num_pages == 0) {
    return invalid_argument("kv_bytes of " + std::to_string(bytes) + " is less than one KV page of " + std::to_string(page_bytes));
  }
  OTR_ASSIGN_OR_RETURN(pages_, Buffer<Element>::create(static_cast<int64_t>(num_pages) * layout_.page_elements(), "KV pages"));
  page_pool_ = std::make_unique<PagePool>(static_cast<int32_t>(num_pages));
  prefix_cache_ = std::make_unique<PrefixCache>(page_pool_.get());
  return {};
}

void Worker::run(const PageWork& work, const RowBatch& rows) {
  // Copies first: a page may be given up by one sequence and zeroed for another in the same tick.
  kernels_->page_copy({.layout = layout_, .pages = pages_.data(), .from = work.copy_from.data(), .to = work.copy_to.data(),
                       .num_copies = static_cast<int32_t>(work.copy_to.size())}, *pool_);
  kernels_->page_zero({.layout = layout_, .pages = pages_.data(), .ids = work.zero.data(),
                       .num_ids = static_cast<int32_t>(work.zero.size())}, *pool_);
  program_->run(rows);
}

void Worker::draw(const SampleDraw* draws, int32_t num_draws, SampleResult* results) {
  const int32_t vocab = config().vocab_size;
  kernels_->sample({.num_draws = num_draws, .vocab_size = vocab, .logits = program_->logits(), .logits_stride = vocab, .draws = draws,
                    .results = results, .scaled = sample_scaled_.data(), .order = sample_order_.data()}, *pool_);
}

}  // namespace otr
