#include "runtime/model_runner.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "kernels/base/cgroup.h"
#include "kernels/base/clock.h"

namespace otr {
namespace {

// A device that failed has lost the tick, and what is to come: as where memory runs out, whoever ticks fails its sequences with
// the text.
void throw_failure(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

constexpr int32_t kMaxPageIds = 4096;  // of one copy; more go in several

}  // namespace

Result<std::unique_ptr<ModelRunner>> ModelRunner::create(const ModelOptions& options, const KernelTable& kernels,
                                                         ThreadPool& pool, std::shared_ptr<Accelerator> accelerator,
                                                         ProgramPool* programs) {
  std::unique_ptr<ModelRunner> r(new ModelRunner(kernels, pool, std::move(accelerator), programs));
  OTR_RETURN_IF_ERROR(r->load_weights(options));
  const ModelConfig& config = r->config();
  r->layout_ = {.num_layers = config.num_layers,
                .num_kv_heads = config.num_kv_heads,
                .head_dim = config.head_dim,
                .packing = kernels.kv_packing};
  OTR_RETURN_IF_ERROR(r->create_pages(options));
  const ModelRunner* other = options.share_logits;
  if (r->accelerator_ != nullptr) OTR_RETURN_IF_ERROR(r->create_device_parts(other == nullptr));
  ProgramOptions program_options = r->program_options(other != nullptr ? ProgramRole::kDraft : ProgramRole::kTarget);
  if (other != nullptr && other->config().vocab_size == config.vocab_size) program_options.logits_of = &other->program();
  r->in_4_bits_ = options.in_4_bits;
  if (options.in_4_bits) OTR_RETURN_IF_ERROR(r->make_quantized());
  const QuantizedWeights* quantized = options.in_4_bits ? r->weights_->quantized.get() : nullptr;
  OTR_ASSIGN_OR_RETURN(ForwardProgram program,
                       ForwardProgram::create(kernels, r->weights_->model, quantized, r->layout_, r->pages_.data(),
                                              options.bucket, r->context(), program_options));
  r->program_ = std::make_unique<ForwardProgram>(std::move(program));
  if (r->accelerator_ != nullptr) return r;
  const int64_t stride = sample_workspace_stride(config.vocab_size) * pool.num_threads();
  OTR_ASSIGN_OR_RETURN(r->sample_scaled_, Buffer<float>::create(stride, "sampler"));
  OTR_ASSIGN_OR_RETURN(r->sample_order_, Buffer<int32_t>::create(stride, "sampler"));
  return r;
}

Status ModelRunner::create_device_parts(bool moves_pages) {
  OTR_ASSIGN_OR_RETURN(DeviceDraws draws, DeviceDraws::create(kernels_, context(), config().vocab_size));
  device_draws_ = std::make_unique<DeviceDraws>(std::move(draws));
  OTR_ASSIGN_OR_RETURN(page_ids_,
                       Mirror::create(kMaxPageIds * static_cast<int64_t>(sizeof(PageId)), "page ids", accelerator_.get()));
  moves_pages_ = moves_pages;
  return make_page_transfer();
}

Status ModelRunner::make_page_transfer() {
  if (!moves_pages_ || page_transfer_.bytes() != 0) return {};
  constexpr int64_t kTransferBytes =
      16 << 20;  // from pinned memory: less than a millisecond of PCIe, which hides the waits between
  const int64_t most = std::clamp<int64_t>(kTransferBytes / page_bytes(), 1, std::min(kMaxPageIds, page_pool_->num_pages()));
  OTR_ASSIGN_OR_RETURN(page_transfer_, Mirror::create(most * page_bytes(), "pages to transfer", accelerator_.get()));
  return {};
}

ProgramOptions ModelRunner::program_options(ProgramRole role) const {
  const int64_t pages = (context_limit(config()) + kPageTokens - 1) / kPageTokens;
  return {.role = role,
          .programs = programs_,
          .max_pages_per_sequence = static_cast<int32_t>(std::min<int64_t>(pages, page_pool_->num_pages()))};
}

Status ModelRunner::load_weights(const ModelOptions& options) {
  if (options.share_weights != nullptr) {
    weights_ = options.share_weights->weights_;
    owns_weights_ = false;
    return {};
  }
  weights_ = std::make_shared<Weights>();
  if (options.attach != nullptr) return attach_weights(*options.attach);
  weights_->accelerator = accelerator_;
  shared_memory_ = options.shared_memory;
  OTR_ASSIGN_OR_RETURN(const OpenModel model, open_model(options.path));
  OTR_ASSIGN_OR_RETURN(weights_->model,
                       ModelWeights::load(model.config, *model.weights, context(), kernels_.device, shared_memory_));
  weights_->converted_tensors = model.weights->converted_tensors();
  weights_->written_bytes += weights_->model.bytes();
  return {};
}

Status ModelRunner::put_weight(const HostTensor& tensor) {
  OTR_RETURN_IF_ERROR(weights_->model.put(tensor, pool_));
  const size_t element = tensor.shape.size() == 1 ? sizeof(float) : sizeof(Element);  // where it lies now
  weights_->written_bytes += static_cast<int64_t>(element) *
                             std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
  return {};
}

// A device has a copy, which is its own, and makes those in 4 bits itself: theirs are laid out for its kernels.
Status ModelRunner::attach_weights(const SharedModel& shared) {
  weights_->converted_tensors = shared.converted_tensors;
  if (accelerator_ != nullptr) {
    weights_->accelerator = accelerator_;
    OTR_ASSIGN_OR_RETURN(weights_->source, AttachedWeights::attach(shared.config, shared.files, shared.converted_tensors));
    OTR_ASSIGN_OR_RETURN(weights_->model, ModelWeights::load(shared.config, *weights_->source, context(), kernels_.device));
    weights_->written_bytes += weights_->model.bytes();
    return {};
  }
  owns_weights_ = false;
  OTR_ASSIGN_OR_RETURN(weights_->model, ModelWeights::attach(shared.config, shared.files));
  if (shared.quantized < 0) return {};
  OTR_ASSIGN_OR_RETURN(QuantizedWeights quantized, QuantizedWeights::attach(weights_->model, kernels_, shared.quantized));
  weights_->quantized = std::make_unique<QuantizedWeights>(std::move(quantized));
  return {};
}

Status ModelRunner::create_pages(const ModelOptions& options) {
  const uint64_t page_bytes = static_cast<uint64_t>(layout_.page_bytes());
  const uint64_t sharers = static_cast<uint64_t>(options.kv_sharers);
  const KvRoom room{.free = accelerator_ != nullptr ? accelerator_->free_bytes() : free_memory("/"),
                    .on_device = accelerator_ != nullptr,
                    .page_bytes = page_bytes,
                    .weight_bytes = static_cast<uint64_t>(weight_bytes()),
                    .beside = options.beside,
                    .sharers = sharers,
                    .free_sharers = static_cast<uint64_t>(options.free_sharers)};
  const uint64_t wanted = options.num_pages != 0 ? static_cast<uint64_t>(options.num_pages) * page_bytes : options.kv_bytes;
  // Whoever is told the number of pages by an engine gets those that the engine's options have found room for; a process that
  // takes another one's place comes when others have touched theirs.
  const bool is_settled = options.attach != nullptr && options.num_pages != 0;
  OTR_ASSIGN_OR_RETURN(const uint64_t bytes, kv_bytes(wanted, room, is_settled));
  const uint64_t num_pages = std::min<uint64_t>(bytes / page_bytes / sharers, std::numeric_limits<int32_t>::max() / 2);
  if (num_pages == 0) {
    return invalid_argument("kv_bytes of " + std::to_string(bytes) + " is less than one KV page of " +
                            std::to_string(page_bytes) +
                            (sharers > 1 ? " for each of " + std::to_string(sharers) + " workers" : ""));
  }
  if (kernels_.device != nullptr && num_pages > static_cast<uint64_t>(kernels_.device->max_pages(layout_))) {
    return invalid_argument("kv_bytes of " + std::to_string(bytes) + " is " + std::to_string(num_pages) +
                            " KV pages a worker; attention on " + kernels_.path + " can address " +
                            std::to_string(kernels_.device->max_pages(layout_)));
  }
  OTR_ASSIGN_OR_RETURN(pages_, Buffer<Element>::create(static_cast<int64_t>(num_pages) * layout_.page_elements(), "KV pages",
                                                       accelerator_.get()));
  page_pool_ = std::make_unique<PagePool>(static_cast<int32_t>(num_pages));
  prefix_cache_ = std::make_unique<PrefixCache>(page_pool_.get());
  return {};
}

Status ModelRunner::make_quantized() {
  if (weights_->quantized != nullptr) return {};  // by the owner
  OTR_ASSIGN_OR_RETURN(QuantizedWeights quantized,
                       QuantizedWeights::create(weights_->model, kernels_, context(), shared_memory_));
  weights_->quantized = std::make_unique<QuantizedWeights>(std::move(quantized));
  quantize();
  return {};
}

Status ModelRunner::add_quantized(ProgramBucket bucket) {
  OTR_RETURN_IF_ERROR(make_quantized());
  ProgramOptions options = program_options(ProgramRole::kDraft);
  options.share = program_.get();
  OTR_ASSIGN_OR_RETURN(ForwardProgram program, ForwardProgram::create(kernels_, weights_->model, weights_->quantized.get(),
                                                                      layout_, pages_.data(), bucket, context(), options));
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
  weights_->quantized->quantize(kernels_, context());
  if (accelerator_ != nullptr) throw_failure(accelerator_->wait());
  quantize_seconds_ = time.seconds();
  weights_->written_bytes += weights_->quantized->bytes();
}

void ModelRunner::weights_changed() {
  if (weights_->source && owns_weights_) {
    throw_failure(weights_->model.reload(*weights_->source, context(), *kernels_.device));
    weights_->written_bytes += weights_->model.bytes();
  }
  if (owns_weights_ && weights_->quantized != nullptr) quantize();
  prefix_cache_->clear();
}

Status ModelRunner::sleep_weights() {
  if (!owns_weights_) return {};
  OTR_RETURN_IF_ERROR(weights_->model.sleep());
  return weights_->quantized != nullptr ? weights_->quantized->sleep() : Status();
}

Status ModelRunner::wake_weights() {
  if (!owns_weights_) return {};
  OTR_RETURN_IF_ERROR(weights_->model.wake());
  return weights_->quantized != nullptr ? weights_->quantized->wake() : Status();
}

Status ModelRunner::sleep_pages() {
  prefix_cache_->clear();
  page_transfer_ = {};
  OTR_RETURN_IF_ERROR(pages_.sleep());
  OTR_RETURN_IF_ERROR(program_->sleep());
  if (quantized_program_ != nullptr) OTR_RETURN_IF_ERROR(quantized_program_->sleep());
  OTR_RETURN_IF_ERROR(sample_scaled_.sleep());
  OTR_RETURN_IF_ERROR(sample_order_.sleep());
  return device_draws_ != nullptr ? device_draws_->sleep() : Status();
}

Status ModelRunner::wake_pages() {
  OTR_RETURN_IF_ERROR(pages_.wake());
  OTR_RETURN_IF_ERROR(make_page_transfer());
  OTR_RETURN_IF_ERROR(program_->wake());
  if (quantized_program_ != nullptr) OTR_RETURN_IF_ERROR(quantized_program_->wake());
  OTR_RETURN_IF_ERROR(sample_scaled_.wake());
  OTR_RETURN_IF_ERROR(sample_order_.wake());
  return device_draws_ != nullptr ? device_draws_->wake() : Status();
}

// Copies first: a page may be given up by one sequence and zeroed for another in the same tick.
void ModelRunner::prepare(const PageWork& work) {
  if (accelerator_ != nullptr) return prepare_on_device(work);
  kernels_.page_copy({.layout = layout_,
                      .pages = pages_.data(),
                      .from = work.copy_from.data(),
                      .to = work.copy_to.data(),
                      .num_copies = static_cast<int32_t>(work.copy_to.size())},
                     pool_);
  kernels_.page_zero(
      {.layout = layout_, .pages = pages_.data(), .ids = work.zero.data(), .num_ids = static_cast<int32_t>(work.zero.size())},
      pool_);
}

// On a device: visit(its page ids there, their number, the first one's place, room for them there), as many as there is room
// for at a time.
template <typename Visit>
Status ModelRunner::each_transfer(std::span<const PageId> ids, const Visit& visit) {
  const size_t room = static_cast<size_t>(page_transfer_.bytes() / page_bytes());
  for (size_t first = 0, count; first < ids.size(); first += count) {
    count = std::min(ids.size() - first, room);
    OTR_RETURN_IF_ERROR(page_ids_.begin());
    OTR_RETURN_IF_ERROR(page_transfer_.begin());
    std::copy_n(ids.data() + first, count, page_ids_.host<PageId>());
    page_ids_.down(0, static_cast<int64_t>(count * sizeof(PageId)));
    OTR_RETURN_IF_ERROR(visit(page_ids_.device<const PageId>(), static_cast<int32_t>(count),
                              static_cast<int64_t>(first) * layout_.page_elements()));
  }
  return {};
}

Status ModelRunner::read_pages(std::span<const PageId> ids, Element* transfer) {
  if (accelerator_ != nullptr) {
    return each_transfer(ids, [&](const PageId* on_device, int32_t count, int64_t at) -> Status {
      const int64_t bytes = count * page_bytes();
      kernels_.page_gather({.layout = layout_,
                            .pages = pages_.data(),
                            .ids = on_device,
                            .num_ids = count,
                            .transfer = page_transfer_.device<Element>()},
                           context());
      page_transfer_.up(0, bytes);
      OTR_RETURN_IF_ERROR(accelerator_->wait());
      std::memcpy(transfer + at, page_transfer_.host<std::byte>(), static_cast<size_t>(bytes));
      return {};
    });
  }
  kernels_.page_gather({.layout = layout_,
                        .pages = pages_.data(),
                        .ids = ids.data(),
                        .num_ids = static_cast<int32_t>(ids.size()),
                        .transfer = transfer},
                       pool_);
  return {};
}

Status ModelRunner::write_pages(std::span<const PageId> ids, const Element* transfer) {
  if (accelerator_ != nullptr) {
    return each_transfer(ids, [&](const PageId* on_device, int32_t count, int64_t at) -> Status {
      const int64_t bytes = count * page_bytes();
      std::memcpy(page_transfer_.host<std::byte>(), transfer + at, static_cast<size_t>(bytes));
      page_transfer_.down(0, bytes);
      kernels_.page_scatter({.layout = layout_,
                             .pages = pages_.data(),
                             .ids = on_device,
                             .num_ids = count,
                             .transfer = page_transfer_.device<Element>()},
                            context());
      return accelerator_->wait();
    });
  }
  kernels_.page_scatter({.layout = layout_,
                         .pages = pages_.data(),
                         .ids = ids.data(),
                         .num_ids = static_cast<int32_t>(ids.size()),
                         .transfer = transfer},
                        pool_);
  return {};
}

void ModelRunner::copy_pages(const ModelRunner& from, std::span<const PageId> source, std::span<const PageId> to) {
  if (accelerator_ != nullptr) {
    for (size_t i = 0; i < to.size(); ++i) {
      accelerator_->copy_from(*from.accelerator_, pages_.data() + to[i] * layout_.page_elements(),
                              from.pages_.data() + source[i] * layout_.page_elements(),
                              static_cast<size_t>(layout_.page_bytes()));
    }
    return throw_failure(accelerator_->wait());  // the lender may want its pages back from here on
  }
  pool_.parallel_for(static_cast<int>(to.size()), [&](int i, int) {
    const size_t at = static_cast<size_t>(i);
    std::memcpy(pages_.data() + to[at] * layout_.page_elements(), from.pages_.data() + source[at] * layout_.page_elements(),
                static_cast<size_t>(layout_.page_bytes()));
  });
}

void ModelRunner::copy_layer(const ModelRunner& from, int32_t layer, std::span<const PageId> source,
                             std::span<const PageId> to) {
  const int64_t first = layer * layout_.layer_elements();
  pool_.parallel_for(static_cast<int>(to.size()), [&](int i, int) {
    const size_t at = static_cast<size_t>(i);
    std::memcpy(pages_.data() + to[at] * layout_.page_elements() + first,
                from.pages_.data() + source[at] * layout_.page_elements() + first,
                static_cast<size_t>(layout_.layer_elements()) * sizeof(Element));
  });
}

void ModelRunner::write_layer(int32_t layer, std::span<const PageId> ids, const Element* transfer) {
  page_scatter_layer({.layout = layout_,
                      .pages = pages_.data(),
                      .ids = ids.data(),
                      .num_ids = static_cast<int32_t>(ids.size()),
                      .transfer = transfer},
                     layer, pool_);
}

void ModelRunner::prepare_on_device(const PageWork& work) {
  PageId* ids = page_ids_.host<PageId>();
  const PageId* on_device = page_ids_.device<const PageId>();
  const auto send = [this](size_t count) { page_ids_.down(0, static_cast<int64_t>(count * sizeof(PageId))); };
  for (size_t i = 0, count; i < work.copy_to.size(); i += count) {
    count = std::min<size_t>(work.copy_to.size() - i, kMaxPageIds / 2);
    throw_failure(page_ids_.begin());
    std::copy_n(work.copy_from.data() + i, count, ids);
    std::copy_n(work.copy_to.data() + i, count, ids + count);
    send(2 * count);
    kernels_.page_copy({.layout = layout_,
                        .pages = pages_.data(),
                        .from = on_device,
                        .to = on_device + count,
                        .num_copies = static_cast<int32_t>(count)},
                       context());
  }
  for (size_t i = 0, count; i < work.zero.size(); i += count) {
    count = std::min<size_t>(work.zero.size() - i, kMaxPageIds);
    throw_failure(page_ids_.begin());
    std::copy_n(work.zero.data() + i, count, ids);
    send(count);
    kernels_.page_zero({.layout = layout_, .pages = pages_.data(), .ids = on_device, .num_ids = static_cast<int32_t>(count)},
                       context());
  }
}

void ModelRunner::run(const RowBatch& rows, LayerGate* gate) { program_->run(rows, nullptr, gate); }

void ModelRunner::draw(const SampleDraw* draws, int32_t num_draws, SampleResult* results) {
  if (device_draws_ != nullptr) return throw_failure(device_draws_->sample(program_->logits(), draws, num_draws, results));
  const int32_t vocab = config().vocab_size;
  kernels_.sample({.num_draws = num_draws,
                   .vocab_size = vocab,
                   .logits = program_->logits(),
                   .logits_stride = vocab,
                   .draws = draws,
                   .results = results,
                   .scaled = sample_scaled_.data(),
                   .order = sample_order_.data()},
                  pool_);
}

Result<std::unique_ptr<DeviceChain>> ModelRunner::make_chain(int32_t max_draws) {
  if (accelerator_ == nullptr) return std::unique_ptr<DeviceChain>();
  OTR_ASSIGN_OR_RETURN(DeviceChain chain, DeviceChain::create(kernels_, context(), max_draws, device_draws_.get()));
  return std::make_unique<DeviceChain>(std::move(chain));
}

void ModelRunner::candidates(const ForwardProgram& program, const CandidateDraw* draws, int32_t num_draws, int32_t m,
                             Candidates* results) {
  if (device_draws_ != nullptr) return throw_failure(device_draws_->candidates(program.logits(), draws, num_draws, m, results));
  const int32_t vocab = config().vocab_size;
  kernels_.candidates({.num_draws = num_draws,
                       .vocab_size = vocab,
                       .m = m,
                       .logits = program.logits(),
                       .logits_stride = vocab,
                       .draws = draws,
                       .results = results,
                       .scaled = sample_scaled_.data(),
                       .order = sample_order_.data()},
                      pool_);
}

}  // namespace otr
