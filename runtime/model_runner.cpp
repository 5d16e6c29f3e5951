#include "runtime/model_runner.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>

#include "kernels/base/clock.h"

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

Result<std::unique_ptr<ModelRunner>> ModelRunner::create(const ModelOptions& options, const KernelTable& kernels, ThreadPool& pool) {
  std::unique_ptr<ModelRunner> r(new ModelRunner(kernels, pool));
  OTR_RETURN_IF_ERROR(r->load_weights(options));
  const ModelConfig& config = r->config();
  r->layout_ = {.num_layers = config.num_layers, .num_kv_heads = config.num_kv_heads, .head_dim = config.head_dim};
  OTR_RETURN_IF_ERROR(r->create_pages(options));
  const ModelRunner* other = options.share_logits;
  float* logits = other != nullptr && other->config().vocab_size == config.vocab_size ? other->program().logits() : nullptr;
  r->in_4_bits_ = options.in_4_bits;
  if (options.in_4_bits) OTR_RETURN_IF_ERROR(r->make_quantized());
  const QuantizedWeights* quantized = options.in_4_bits ? r->weights_->quantized.get() : nullptr;
  OTR_ASSIGN_OR_RETURN(ForwardProgram program, ForwardProgram::create(kernels, r->weights_->model, quantized, r->layout_, r->pages_.data(),
                                                                     options.bucket, pool, logits));
  r->program_ = std::make_unique<ForwardProgram>(std::move(program));
  const int64_t stride = sample_workspace_stride(config.vocab_size) * pool.num_threads();
  OTR_ASSIGN_OR_RETURN(r->sample_scaled_, Buffer<float>::create(stride, "sampler"));
  OTR_ASSIGN_OR_RETURN(r->sample_order_, Buffer<int32_t>::create(stride, "sampler"));
  return r;
}

Status ModelRunner::load_weights(const ModelOptions& options) {
  if (options.share_weights != nullptr) {
    weights_ = options.share_weights->weights_;
    owns_weights_ = false;
    return {};
  }
  weights_ = std::make_shared<Weights>();
  if (const SharedModel* shared = options.attach; shared != nullptr) {
    owns_weights_ = false;
    weights_->converted_tensors = shared->converted_tensors;
    OTR_ASSIGN_OR_RETURN(weights_->model, ModelWeights::attach(shared->config, shared->files));
    if (shared->quantized < 0) return {};
    OTR_ASSIGN_OR_RETURN(QuantizedWeights quantized, QuantizedWeights::attach(weights_->model, shared->quantized));
    weights_->quantized = std::make_unique<QuantizedWeights>(std::move(quantized));
    return {};
  }
  shared_memory_ = options.shared_memory;
  OTR_ASSIGN_OR_RETURN(const OpenModel model, open_model(options.path));
  OTR_ASSIGN_OR_RETURN(weights_->model, ModelWeights::load(model.config, *model.weights, pool_, shared_memory_));
  weights_->converted_tensors = model.weights->converted_tensors();
  return {};
}

Status ModelRunner::create_pages(const ModelOptions& options) {
  constexpr uint64_t kUnknownFree = uint64_t{1} << 30;
  const std::optional<uint64_t> free = free_memory();
  const uint64_t page_bytes = static_cast<uint64_t>(layout_.page_bytes());
  const uint64_t asked = options.num_pages != 0 ? static_cast<uint64_t>(options.num_pages) * page_bytes : options.kv_bytes;
  const uint64_t bytes = asked != 0 ? asked : free.value_or(kUnknownFree) / 4;
  // Pages cost memory only once they are touched: the system would grant far too many, and kill the process much later.
  if (free && bytes > *free) {
    return Status(StatusCode::kOutOfMemory, "kv_bytes of " + std::to_string(bytes) + " is more than the free memory of " +
                                                std::to_string(*free));
  }
  const uint64_t sharers = static_cast<uint64_t>(options.kv_sharers);
  const uint64_t num_pages = std::min<uint64_t>(bytes / page_bytes / sharers, std::numeric_limits<int32_t>::max() / 2);
  if (num_pages == 0) {
    return invalid_argument("kv_bytes of " + std::to_string(bytes) + " is less than one KV page of " + std::to_string(page_bytes) +
                            (sharers > 1 ? " for each of " + std::to_string(sharers) + " workers" : ""));
  }
  OTR_ASSIGN_OR_RETURN(pages_, Buffer<Element>::create(static_cast<int64_t>(num_pages) * layout_.page_elements(), "KV pages"));
  page_pool_ = std::make_unique<PagePool>(static_cast<int32_t>(num_pages));
  prefix_cache_ = std::make_unique<PrefixCache>(page_pool_.get());
  return {};
}

Status ModelRunner::make_quantized() {
  if (weights_->quantized != nullptr) return {};  // by the owner
  OTR_ASSIGN_OR_RETURN(QuantizedWeights quantized, QuantizedWeights::create(weights_->model, shared_memory_));
  weights_->quantized = std::make_unique<QuantizedWeights>(std::move(quantized));
  quantize();
  return {};
}

Status ModelRunner::add_quantized(ProgramBucket bucket) {
  OTR_RETURN_IF_ERROR(make_quantized());
  OTR_ASSIGN_OR_RETURN(ForwardProgram program, ForwardProgram::create(kernels_, weights_->model, weights_->quantized.get(), layout_,
                                                                     pages_.data(), bucket, pool_, program_->logits()));
  quantized_program_ = std::make_unique<ForwardProgram>(std::move(program));
  return {};
}

SharedModel ModelRunner::share() const {
  return {.config = config(),
          .files = weights_->model.files(),
          .quantized = weights_->quantized != nullptr ? weights_->quantized->fd() : -1,
          .converted_tensors = weights_->converted_tensors};
}

void ModelRunner::quantize() {
  const Stopwatch time;
  weights_->quantized->quantize(kernels_, pool_);
  quantize_seconds_ = time.seconds();
}

void ModelRunner::weights_changed() {
  if (owns_weights_ && weights_->quantized != nullptr) quantize();
  prefix_cache_->clear();
}

void ModelRunner::prepare(const PageWork& work) {
  // Copies first: a page may be given up by one sequence and zeroed for another in the same tick.
  kernels_.page_copy({.layout = layout_, .pages = pages_.data(), .from = work.copy_from.data(), .to = work.copy_to.data(),
                       .num_copies = static_cast<int32_t>(work.copy_to.size())}, pool_);
  kernels_.page_zero({.layout = layout_, .pages = pages_.data(), .ids = work.zero.data(),
                       .num_ids = static_cast<int32_t>(work.zero.size())}, pool_);
}

void ModelRunner::read_pages(std::span<const PageId> ids, Element* transfer) {
  kernels_.page_gather({.layout = layout_, .pages = pages_.data(), .ids = ids.data(), .num_ids = static_cast<int32_t>(ids.size()),
                         .transfer = transfer}, pool_);
}

void ModelRunner::write_pages(std::span<const PageId> ids, const Element* transfer) {
  kernels_.page_scatter({.layout = layout_, .pages = pages_.data(), .ids = ids.data(), .num_ids = static_cast<int32_t>(ids.size()),
                          .transfer = transfer}, pool_);
}

void ModelRunner::copy_pages(const ModelRunner& from, std::span<const PageId> source, std::span<const PageId> to) {
  pool_.parallel_for(static_cast<int>(to.size()), [&](int i, int) {
    const size_t at = static_cast<size_t>(i);
    std::memcpy(pages_.data() + to[at] * layout_.page_elements(), from.pages_.data() + source[at] * layout_.page_elements(),
                static_cast<size_t>(layout_.page_bytes()));
  });
}

void ModelRunner::run(const RowBatch& rows) { program_->run(rows); }

void ModelRunner::draw(const SampleDraw* draws, int32_t num_draws, SampleResult* results) {
  const int32_t vocab = config().vocab_size;
  kernels_.sample({.num_draws = num_draws, .vocab_size = vocab, .logits = program_->logits(), .logits_stride = vocab, .draws = draws,
                    .results = results, .scaled = sample_scaled_.data(), .order = sample_order_.data()}, pool_);
}

void ModelRunner::candidates(const ForwardProgram& program, const CandidateDraw* draws, int32_t num_draws, int32_t m, Candidates* results) {
  const int32_t vocab = config().vocab_size;
  kernels_.candidates({.num_draws = num_draws, .vocab_size = vocab, .m = m, .logits = program.logits(), .logits_stride = vocab,
                       .draws = draws, .results = results, .scaled = sample_scaled_.data(), .order = sample_order_.data()}, pool_);
}

}  // namespace otr
