// The C ABI: checks handles and structs, catches everything, keeps error texts. No logic of its own.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "kernels/base/caller_context.h"
#include "kernels/base/fp_env.h"
#include "runtime/abi_defaults.h"
#include "runtime/abi_structs.h"
#include "runtime/engine.h"
#include "runtime/handle_registry.h"
#include "runtime/outrider.h"
#include "runtime/worker_server.h"

namespace otr {
namespace {

// Leaked on purpose: calls from other threads during process exit must not meet a destroyed registry.
auto& engines() {
  static auto* registry = new HandleRegistry<Engine, otr_engine, 1>();
  return *registry;
}
using Results = HandleRegistry<Sequence, otr_result, 2>;
Results& results() {
  static auto* registry = new Results();
  return *registry;
}

// The calling thread's last failure on each engine (null: of calls without one), the newest last. A thread that fails on more
// engines than this forgets the oldest failure.
constexpr size_t kMostLastErrors = 16;
struct LastError {
  const otr_engine* engine;
  std::string text;
};
thread_local std::vector<LastError> last_errors;

auto last_error_of(const otr_engine* engine) {
  return std::find_if(last_errors.begin(), last_errors.end(), [engine](const LastError& e) { return e.engine == engine; });
}

otr_status report(const otr_engine* engine, const Status& status) noexcept {
  if (!status.ok()) {
    if (const auto it = last_error_of(engine); it != last_errors.end()) last_errors.erase(it);
    else if (last_errors.size() == kMostLastErrors) last_errors.erase(last_errors.begin());
    try {
      last_errors.push_back({engine, status.message()});
    } catch (const std::bad_alloc&) {  // the text is lost, the status is not
    }
  }
  return static_cast<otr_status>(status.code());
}

// The status of the exception in flight.
Status status_of_exception() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "out of memory");
  } catch (const std::length_error& e) {  // a size that no memory holds
    return Status(StatusCode::kOutOfMemory, std::string("out of memory: ") + e.what());
  } catch (const std::system_error& e) {  // of threads and locks; files have statuses of their own
    if (e.code() == std::errc::resource_unavailable_try_again || e.code() == std::errc::not_enough_memory) {
      return Status(StatusCode::kOutOfMemory, std::string("the system refused a thread: ") + e.what());
    }
    return Status(StatusCode::kInternal, std::string("system error: ") + e.what());
  } catch (const std::exception& e) {
    return Status(StatusCode::kInternal, std::string("internal error: ") + e.what());
  } catch (...) {
    return Status(StatusCode::kInternal, "internal error");
  }
}

// What a body gives, its exceptions as statuses. Where there is no memory even for the text, it has none.
template <typename Body>
Status outcome(const Body& body) noexcept {
  try {
    try {
      return body();
    } catch (...) {
      return status_of_exception();
    }
  } catch (...) {
    return Status(StatusCode::kOutOfMemory, {});
  }
}

// Runs an entry point's body: pins the floating-point environment, gives the caller's CUDA context back and lets no exception
// out.
template <typename Body>
otr_status guarded(const otr_engine* engine, const Body& body) noexcept {
  const FpEnvGuard fp;
  const CallerContext context;
  return report(engine, outcome(body));
}

// The same for a call on an engine: `body(Engine&)`.
template <typename Body>
otr_status on_engine(otr_engine* handle, const Body& body) noexcept {
  return guarded(handle, [&]() -> Status {
    const std::shared_ptr<Engine> engine = engines().lookup(handle);
    if (engine == nullptr) return Status(StatusCode::kInvalidHandle, "not a live engine");
    return body(*engine);
  });
}

// A call on a result: `body(const Sequence&)`.
template <typename Body>
otr_status on_result(const otr_result* result, const Body& body) noexcept {
  return guarded(nullptr, [&]() -> Status {
    const std::shared_ptr<Sequence> s = results().lookup(result);
    if (s == nullptr) return Status(StatusCode::kInvalidHandle, "not a live result");
    return body(*s);
  });
}

// The size of a struct of some version: they begin with a size_t, so that they end on its alignment, and none is huge. (A size
// that cut a pointer in two would otherwise make half an address of it.)
bool is_struct_size(size_t size) {
  constexpr size_t kMaxStructSize = 4096;
  return size >= sizeof(size_t) && size <= kMaxStructSize && size % alignof(size_t) == 0;
}

template <typename T>
otr_status init_struct(T* out, size_t struct_size, const T& defaults) noexcept {
  return guarded(nullptr, [&]() -> Status {
    if (out == nullptr) return invalid_argument("the struct is NULL");
    if (!is_struct_size(struct_size)) return invalid_argument("struct_size is wrong: pass sizeof the struct");
    std::memset(static_cast<void*>(out), 0, struct_size);
    std::memcpy(static_cast<void*>(out), &defaults, std::min(struct_size, sizeof(T)));
    out->struct_size = struct_size;
    return {};
  });
}

// Copies a caller's struct of any version over the defaults. A newer caller's further fields must be zero: this library would
// not honour them.
template <typename T>
Status read_struct(const T* in, const T& defaults, const char* name, T* out) {
  if (in == nullptr) return invalid_argument(std::string(name) + " is NULL");
  const size_t size = in->struct_size;
  if (!is_struct_size(size)) {
    return invalid_argument(std::string(name) + ".struct_size is wrong: fill the struct with its _init function");
  }
  *out = defaults;
  std::memcpy(static_cast<void*>(out), in, std::min(size, sizeof(T)));
  const char* bytes = reinterpret_cast<const char*>(in);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) return unsupported(std::string(name) + " sets a field that this version of the library does not know");
  }
  return {};
}

// The first struct_size bytes of *to become those of `filled`; a newer caller's fields 0.
template <typename T>
Status fill_struct(const T& filled, const char* name, T* to, size_t struct_size) {
  if (to == nullptr) return invalid_argument(std::string(name) + " is NULL");
  if (!is_struct_size(struct_size)) return invalid_argument("struct_size is wrong: pass sizeof the struct");
  std::memset(static_cast<void*>(to), 0, struct_size);
  std::memcpy(static_cast<void*>(to), &filled, std::min(struct_size, sizeof filled));
  to->struct_size = struct_size;
  return {};
}

// Widens request.sampling, if any, into `storage` and points the request at it.
template <typename Request>
Status widen_sampling(Request* request, otr_sampling_params* storage) {
  if (request->sampling == nullptr) return {};
  OTR_RETURN_IF_ERROR(read_struct(request->sampling, kSamplingDefaults, "sampling", storage));
  request->sampling = storage;
  return {};
}

// A call on an engine's history: `body(HistoryStore&)`.
template <typename Body>
otr_status on_history(otr_engine* handle, const char* path, const Body& body) noexcept {
  return on_engine(handle, [&](Engine& e) -> Status {
    if (path == nullptr || *path == '\0') return invalid_argument("the path is missing");
    if (e.history() == nullptr) return invalid_argument("the engine keeps no history: see options.history");
    return body(*e.history());
  });
}

Status check_memory(otr_memory what) {
  return what >= OTR_MEMORY_WEIGHTS && what <= OTR_MEMORY_ALL
             ? Status()
             : invalid_argument("memory " + std::to_string(what) + " is unknown");
}

}  // namespace
}  // namespace otr

using namespace otr;

#define OTR_STATUS_CHECK(name, value, text) static_assert(static_cast<int>(name) == (value));
OTR_STATUS_LIST(OTR_STATUS_CHECK)
#undef OTR_STATUS_CHECK
static_assert(static_cast<int>(StatusCode::kIdle) == OTR_IDLE && static_cast<int>(StatusCode::kInternal) == OTR_INTERNAL &&
              static_cast<int>(StatusCode::kNeverFits) == OTR_NEVER_FITS &&
              static_cast<int>(StatusCode::kTimeout) == OTR_TIMEOUT && static_cast<int>(StatusCode::kBusy) == OTR_BUSY &&
              static_cast<int>(StatusCode::kLost) == OTR_LOST);

// A struct that callers fill ends with its last field: in bytes behind it a newer caller's next field would hide from
// read_struct().
#define OTR_ENDS_WITH(type, last) static_assert(sizeof(type) == offsetof(type, last) + sizeof(type::last))
OTR_ENDS_WITH(otr_engine_options, reserved);
OTR_ENDS_WITH(otr_sampling_params, num_stop_token_ids);
OTR_ENDS_WITH(otr_group_request, sampling);
OTR_ENDS_WITH(otr_score_request, sampling);
OTR_ENDS_WITH(otr_append_request, sampling);
OTR_ENDS_WITH(otr_tensor, data_bytes);
#undef OTR_ENDS_WITH

#define OTR_STRING_INNER(x) #x
#define OTR_STRING(x) OTR_STRING_INNER(x)

extern "C" {

const char* otr_status_text(otr_status status) {
  switch (status) {
#define OTR_STATUS_TEXT(name, value, text) \
  case name: return text;
    OTR_STATUS_LIST(OTR_STATUS_TEXT)
#undef OTR_STATUS_TEXT
  }
  return "unknown status";
}

const char* otr_version(void) {
  return OTR_STRING(OTR_VERSION_MAJOR) "." OTR_STRING(OTR_VERSION_MINOR) "." OTR_STRING(OTR_VERSION_PATCH);
}

const char* otr_finish_reason_text(otr_finish_reason reason) {
  switch (reason) {
    case OTR_FINISH_STOP: return "stop";
    case OTR_FINISH_LENGTH: return "length";
    case OTR_FINISH_ABORT: return "abort";
    case OTR_FINISH_ERROR: return "error";
    case OTR_FINISH_SCORE: return "score";
  }
  return "unknown";
}

otr_status otr_engine_options_init(otr_engine_options* options, size_t struct_size) {
  return init_struct(options, struct_size, kEngineDefaults);
}
otr_status otr_sampling_params_init(otr_sampling_params* params, size_t struct_size) {
  return init_struct(params, struct_size, kSamplingDefaults);
}
otr_status otr_group_request_init(otr_group_request* request, size_t struct_size) {
  return init_struct(request, struct_size, kGroupDefaults);
}
otr_status otr_score_request_init(otr_score_request* request, size_t struct_size) {
  return init_struct(request, struct_size, kScoreDefaults);
}
otr_status otr_append_request_init(otr_append_request* request, size_t struct_size) {
  return init_struct(request, struct_size, kAppendDefaults);
}

otr_status otr_tensor_init(otr_tensor* tensor, size_t struct_size) { return init_struct(tensor, struct_size, kTensorDefaults); }

otr_status otr_engine_create(const otr_engine_options* options, otr_engine** engine) {
  if (engine != nullptr) *engine = nullptr;
  return guarded(nullptr, [&]() -> Status {
    if (engine == nullptr) return invalid_argument("engine is NULL");
    otr_engine_options widened;
    OTR_RETURN_IF_ERROR(read_struct(options, kEngineDefaults, "options", &widened));
    OTR_ASSIGN_OR_RETURN(const EngineOptions o, engine_options(widened));
    OTR_ASSIGN_OR_RETURN(std::unique_ptr<Engine> created, Engine::create(o));
    *engine = engines().insert(std::move(created));
    return {};
  });
}

otr_status otr_engine_destroy(otr_engine* engine) {
  if (engine == nullptr) return OTR_OK;
  return guarded(engine, [&]() -> Status {
    const std::shared_ptr<Engine> taken = engines().take(engine);
    if (taken == nullptr) return Status(StatusCode::kInvalidHandle, "not a live engine");
    taken->shutdown();  // wakes waiters in other threads; the last of them frees the engine
    return {};
  });
}

otr_status otr_serve_worker(int fd) {
  return guarded(nullptr, [fd] { return serve_worker(fd); });
}

const char* otr_last_error(const otr_engine* engine) {
  const auto it = last_error_of(engine);
  return it != last_errors.end() ? it->text.c_str() : "";
}

otr_status otr_submit(otr_engine* engine, const otr_group_request* request, uint64_t* group_id) {
  return on_engine(engine, [&](Engine& e) -> Status {
    if (group_id == nullptr) return invalid_argument("group_id is NULL");
    otr_group_request r;
    otr_sampling_params sampling;
    OTR_RETURN_IF_ERROR(read_struct(request, kGroupDefaults, "request", &r));
    OTR_RETURN_IF_ERROR(widen_sampling(&r, &sampling));
    OTR_ASSIGN_OR_RETURN(*group_id, e.submit(r));
    return {};
  });
}

otr_status otr_score(otr_engine* engine, const otr_score_request* request, uint64_t* group_id) {
  return on_engine(engine, [&](Engine& e) -> Status {
    if (group_id == nullptr) return invalid_argument("group_id is NULL");
    otr_score_request r;
    otr_sampling_params sampling;
    OTR_RETURN_IF_ERROR(read_struct(request, kScoreDefaults, "request", &r));
    OTR_RETURN_IF_ERROR(widen_sampling(&r, &sampling));
    OTR_ASSIGN_OR_RETURN(*group_id, e.score(r));
    return {};
  });
}

otr_status otr_append(otr_engine* engine, const otr_result* result, const otr_append_request* request, uint64_t* group_id) {
  return on_engine(engine, [&](Engine& e) -> Status {
    if (group_id == nullptr) return invalid_argument("group_id is NULL");
    const std::shared_ptr<Sequence> ended = results().lookup(result);
    if (ended == nullptr) return Status(StatusCode::kInvalidHandle, "not a live result");
    otr_append_request r;
    otr_sampling_params sampling;
    OTR_RETURN_IF_ERROR(read_struct(request, kAppendDefaults, "request", &r));
    OTR_RETURN_IF_ERROR(widen_sampling(&r, &sampling));
    OTR_ASSIGN_OR_RETURN(*group_id, e.append(*ended, r));
    return {};
  });
}

otr_status otr_cancel(otr_engine* engine, uint64_t group_id) {
  return on_engine(engine, [&](Engine& e) { return e.cancel(group_id); });
}

otr_status otr_pause(otr_engine* engine) {
  return on_engine(engine, [](Engine& e) { return e.pause(); });
}

otr_status otr_resume(otr_engine* engine) {
  return on_engine(engine, [](Engine& e) -> Status {
    e.resume();
    return {};
  });
}

otr_status otr_wait(otr_engine* engine, int64_t timeout_ms, otr_result** result) {
  if (result != nullptr) *result = nullptr;
  return on_engine(engine, [&](Engine& e) -> Status {
    if (result == nullptr) return invalid_argument("result is NULL");
    // What needs memory comes before the wait: a sample that was taken and had no handle would be lost.
    const auto owner = std::make_shared<std::unique_ptr<Sequence>>();
    Results::Place place(&results());
    OTR_ASSIGN_OR_RETURN(*owner, e.wait(timeout_ms));
    *result = place.fill({owner, owner->get()});
    return {};
  });
}

otr_status otr_result_get(const otr_result* result, otr_result_view* view, size_t struct_size) {
  return on_result(result, [&](const Sequence& s) { return fill_struct(result_view(s), "view", view, struct_size); });
}

otr_status otr_result_sampling(const otr_result* result, otr_sampling_params* params, size_t struct_size) {
  return on_result(result, [&](const Sequence& s) {
    if (s.group->is_score) return invalid_argument("it is a score, which was not drawn");
    return fill_struct(sampling_params(s.group->sampling), "params", params, struct_size);
  });
}

otr_status otr_result_destroy(otr_result* result) {
  if (result == nullptr) return OTR_OK;
  return guarded(nullptr, [&]() -> Status {
    if (results().take(result) == nullptr) return Status(StatusCode::kInvalidHandle, "not a live result");
    return {};
  });
}

otr_status otr_weights_begin(otr_engine* engine, uint64_t version) {
  return on_engine(engine, [&](Engine& e) { return e.begin_weights(version); });
}

otr_status otr_weights_expect_all(otr_engine* engine) {
  return on_engine(engine, [](Engine& e) { return e.expect_all_weights(); });
}

otr_status otr_weights_put(otr_engine* engine, const otr_tensor* tensor) {
  return on_engine(engine, [&](Engine& e) -> Status {
    otr_tensor t;
    OTR_RETURN_IF_ERROR(read_struct(tensor, kTensorDefaults, "tensor", &t));
    OTR_ASSIGN_OR_RETURN(const HostTensor host, host_tensor(t));
    return e.put_weight(host);
  });
}

otr_status otr_weights_commit(otr_engine* engine) {
  return on_engine(engine, [](Engine& e) { return e.commit_weights(); });
}

otr_status otr_sleep(otr_engine* engine, otr_memory what) {
  return on_engine(engine, [&](Engine& e) -> Status {
    OTR_RETURN_IF_ERROR(check_memory(what));
    return e.sleep(static_cast<uint32_t>(what));
  });
}

otr_status otr_wake(otr_engine* engine, otr_memory what) {
  return on_engine(engine, [&](Engine& e) -> Status {
    OTR_RETURN_IF_ERROR(check_memory(what));
    return e.wake(static_cast<uint32_t>(what));
  });
}

otr_status otr_kv_export(otr_engine* engine, const int32_t* token_ids, size_t num_tokens, void* buffer, size_t capacity,
                         size_t* size, size_t* num_covered) {
  return on_engine(engine, [&](Engine& e) -> Status {
    if (size == nullptr || num_covered == nullptr || (buffer == nullptr && capacity > 0))
      return invalid_argument("buffer, size or num_covered is NULL");
    if (token_ids == nullptr && num_tokens > 0) return invalid_argument("token_ids is NULL");
    OTR_ASSIGN_OR_RETURN(*num_covered, e.export_kv({token_ids, num_tokens}, {static_cast<std::byte*>(buffer), capacity}, size));
    return {};
  });
}

otr_status otr_kv_import(otr_engine* engine, const void* data, size_t size, size_t* num_covered) {
  return on_engine(engine, [&](Engine& e) -> Status {
    if (data == nullptr || num_covered == nullptr) return invalid_argument("data or num_covered is NULL");
    OTR_ASSIGN_OR_RETURN(*num_covered, e.import_kv({static_cast<const std::byte*>(data), size}));
    return {};
  });
}

otr_status otr_checkpoint_save(otr_engine* engine, const char* path, const void* user_data, size_t user_size) {
  return on_engine(engine, [&](Engine& e) -> Status {
    if (path == nullptr || *path == '\0') return invalid_argument("the path is missing");
    if (user_data == nullptr && user_size > 0) return invalid_argument("user_data is NULL");
    return e.save_checkpoint(path, {static_cast<const std::byte*>(user_data), user_size});
  });
}

otr_status otr_checkpoint_load(otr_engine* engine, const char* path) {
  return on_engine(engine, [&](Engine& e) -> Status {
    if (path == nullptr || *path == '\0') return invalid_argument("the path is missing");
    return e.load_checkpoint(path);
  });
}

otr_status otr_checkpoint_user_data(const char* path, void* buffer, size_t capacity, size_t* size) {
  return guarded(nullptr, [&]() -> Status {
    if (path == nullptr || *path == '\0') return invalid_argument("the path is missing");
    if (size == nullptr || (buffer == nullptr && capacity > 0)) return invalid_argument("buffer or size is NULL");
    OTR_ASSIGN_OR_RETURN(const CheckpointFile file, CheckpointFile::read(path));
    *size = file.user().size();
    if (capacity < *size) return invalid_argument("the buffer is too small: " + std::to_string(*size) + " bytes are needed");
    if (*size > 0) std::memcpy(buffer, file.user().data(), *size);
    return {};
  });
}

otr_status otr_reward(otr_engine* engine, uint64_t group_id, uint32_t sample, float reward) {
  return on_engine(
      engine, [&](Engine& e) { return e.history() == nullptr ? Status() : e.history()->reward(group_id, sample, reward); });
}

otr_status otr_history_commit(otr_engine* engine) {
  return on_engine(engine, [&](Engine& e) -> Status {
    if (e.history() != nullptr) e.history()->commit();
    return {};
  });
}

otr_status otr_history_save(otr_engine* engine, const char* path) {
  return on_history(engine, path, [path](HistoryStore& h) { return h.save(path); });
}
otr_status otr_history_load(otr_engine* engine, const char* path) {
  return on_history(engine, path, [path](HistoryStore& h) { return h.load(path); });
}

otr_status otr_stats(otr_engine* engine, char* buffer, size_t capacity, size_t* size) {
  return on_engine(engine, [&](Engine& e) -> Status {
    if (size == nullptr || (buffer == nullptr && capacity > 0)) return invalid_argument("buffer or size is NULL");
    const std::string text = e.stats_json();
    *size = text.size() + 1;
    if (capacity < *size) return invalid_argument("the buffer is too small: " + std::to_string(*size) + " bytes are needed");
    std::memcpy(buffer, text.c_str(), *size);
    return {};
  });
}

}  // extern "C"
