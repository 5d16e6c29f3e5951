// Pages out of an engine and into it. The workers are at rest meanwhile, so the caller's thread may use their pools and
// threads.
#include <cstring>

#include "runtime/engine.h"
#include "runtime/kv_export.h"

namespace otr {

namespace {

// Pages of a worker's pool, which stay until this is gone. The first `most` of them take no memory.
struct HeldPages {
  HeldPages(ModelRunner* pages_of, size_t most) : target(pages_of) { ids.reserve(most); }
  ~HeldPages() {
    for (; !ids.empty(); ids.pop_back()) target->page_pool().release(ids.back());
  }
  HeldPages(const HeldPages&) = delete;
  HeldPages& operator=(const HeldPages&) = delete;
  void swap(HeldPages* other) {
    std::swap(target, other->target);
    ids.swap(other->ids);
  }

  ModelRunner* target;
  std::vector<PageId> ids;
};

}  // namespace

// Lets the running ticks end and keeps new ones from beginning while it lives; whether the caller has paused the engine or not.
class Engine::Standstill {
 public:
  explicit Standstill(Engine* engine) : engine_(engine) {
    std::unique_lock<std::mutex> lock(engine->mutex_);
    ++engine->standstills_;
    for (WorkerPort* port : engine->ports_) port->pause();
    engine->at_rest_changed_.wait(lock, [engine] { return engine->stop_ || engine->at_rest(); });
    stopped_ = engine->stop_;
  }
  ~Standstill() {
    const std::lock_guard<std::mutex> lock(engine_->mutex_);
    --engine_->standstills_;
    engine_->resume_workers();
  }
  Standstill(const Standstill&) = delete;
  Standstill& operator=(const Standstill&) = delete;

  Status status() const { return stopped_ ? Status(StatusCode::kInvalidHandle, "the engine was destroyed") : Status(); }

 private:
  Engine* const engine_;
  bool stopped_ = false;
};

// On GPUs it comes through the first worker's queue, which is to have nothing else to do.
Result<uint64_t> Engine::weights_digest() {
  if (weights_digest_) return *weights_digest_;
  std::optional<Standstill> standstill;
  if (!options_.gpus.empty() && !options_.worker_processes) {
    standstill.emplace(this);
    OTR_RETURN_IF_ERROR(standstill->status());
  }
  OTR_ASSIGN_OR_RETURN(const uint64_t digest, first_worker().target().weights_digest());
  const std::lock_guard<std::mutex> lock(mutex_);
  weights_digest_ = digest;
  return digest;
}

Result<KvIdentity> Engine::kv_identity() {
  OTR_ASSIGN_OR_RETURN(const uint64_t digest, weights_digest());
  const std::lock_guard<std::mutex> lock(mutex_);
  return KvIdentity{.layout = first_worker().target().kv_layout(),
                    .isa = isa(),
                    .library = otr_version(),
                    .weights_digest = digest,
                    .weight_version = weight_version_};
}

Status Engine::check_pages_readable() const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    OTR_RETURN_IF_ERROR(check_awake(OTR_MEMORY_ALL));
  }
  if (options_.worker_processes) return unsupported("pages of worker processes");
  return {};
}

Result<size_t> Engine::export_kv(std::span<const int32_t> tokens, std::span<std::byte> bytes, size_t* size) {
  const std::lock_guard<std::mutex> weights(weights_mutex_);
  OTR_RETURN_IF_ERROR(check_not_updating());
  OTR_RETURN_IF_ERROR(check_pages_readable());
  const Standstill standstill(this);
  OTR_RETURN_IF_ERROR(standstill.status());
  const size_t most = tokens.size() / kPageTokens;
  HeldPages best(&workers_.front()->target(), most);
  for (const auto& worker : workers_) {
    HeldPages found(&worker->target(), most);
    worker->target().prefix_cache().match(tokens, static_cast<int32_t>(most), &found.ids);
    if (found.ids.size() > best.ids.size()) best.swap(&found);
  }
  const KvLayout layout = best.target->kv_layout();
  const size_t covered = best.ids.size() * kPageTokens;
  *size = kv_export_bytes(layout, covered);
  if (bytes.size() < *size) return invalid_argument("the buffer is too small: " + std::to_string(*size) + " bytes are needed");
  std::vector<Element> transfer(best.ids.size() * static_cast<size_t>(layout.page_elements()));
  OTR_RETURN_IF_ERROR(best.target->read_pages(best.ids, transfer.data()));
  if (!transfer.empty()) {
    std::memcpy(bytes.data() + sizeof(KvHeader) + covered * sizeof(int32_t), transfer.data(),
                transfer.size() * sizeof(Element));
  }
  OTR_ASSIGN_OR_RETURN(const KvIdentity identity, kv_identity());
  seal_kv(identity, tokens.first(covered), bytes.first(*size));
  return covered;
}

Result<size_t> Engine::import_kv(std::span<const std::byte> bytes) {
  const std::lock_guard<std::mutex> weights(weights_mutex_);
  OTR_RETURN_IF_ERROR(check_not_updating());
  OTR_RETURN_IF_ERROR(check_pages_readable());
  OTR_ASSIGN_OR_RETURN(const KvIdentity identity, kv_identity());
  OTR_ASSIGN_OR_RETURN(const KvImport import, open_kv(identity, bytes, limits_.vocab_size));
  std::vector<int32_t> tokens(import.tokens.size() / sizeof(int32_t));
  std::vector<Element> transfer(import.pages.size() / sizeof(Element));
  if (!tokens.empty()) {
    std::memcpy(tokens.data(), import.tokens.data(), import.tokens.size());
    std::memcpy(transfer.data(), import.pages.data(), import.pages.size());
  }
  const Standstill standstill(this);
  OTR_RETURN_IF_ERROR(standstill.status());
  size_t least = tokens.size() / kPageTokens;
  for (const auto& worker : workers_) {
    OTR_ASSIGN_OR_RETURN(const size_t here, import_pages(tokens, transfer.data(), &worker->target()));
    least = std::min(least, here);
  }
  return least * kPageTokens;
}

// Into one worker's prefix cache, as many of the first pages as have room there; returns how many it has then.
Result<size_t> Engine::import_pages(std::span<const int32_t> tokens, const Element* transfer, ModelRunner* target) {
  const size_t num_pages = tokens.size() / kPageTokens;
  HeldPages pages(target, num_pages);
  std::vector<PageId>& ids = pages.ids;
  PrefixCache& cache = target->prefix_cache();
  cache.match(tokens, static_cast<int32_t>(num_pages), &ids);
  const size_t known = ids.size();
  while (ids.size() < num_pages && cache.num_available() > 0) ids.push_back(cache.allocate());
  OTR_RETURN_IF_ERROR(target->write_pages(std::span(ids).subspan(known),
                                          transfer + known * static_cast<size_t>(target->kv_layout().page_elements())));
  cache.insert(tokens, ids, static_cast<int32_t>(ids.size()));
  return ids.size();
}

}  // namespace otr
