#include "runtime/nccl_api.h"

#include <dlfcn.h>

namespace otr {

Result<NcclApi> NcclApi::load(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return unsupported("NCCL: " + std::string(dlerror()));
  std::string missing;
  const auto find = [&](auto* function, const char* name) {
    void* const found = dlsym(handle, name);
    if (found == nullptr && missing.empty()) missing = name;
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(found);
  };
  NcclApi api;
  find(&api.get_version, "ncclGetVersion");
  find(&api.get_unique_id, "ncclGetUniqueId");
  find(&api.init_rank, "ncclCommInitRankConfig");
  find(&api.async_error, "ncclCommGetAsyncError");
  find(&api.abort, "ncclCommAbort");
  find(&api.group_start, "ncclGroupStart");
  find(&api.group_end, "ncclGroupEnd");
  find(&api.send, "ncclSend");
  find(&api.receive, "ncclRecv");
  find(&api.error_text, "ncclGetErrorString");
  if (!missing.empty()) return unsupported("NCCL: " + library + " has no function " + missing + ": 2.14 or newer is needed");
  constexpr int kNonBlocking = NCCL_VERSION(2, 14, 0);  // the first with communicators whose calls do not wait
  int version = 0;
  if (api.get_version(&version) != ncclSuccess || version < kNonBlocking) {
    return unsupported("NCCL: " + library + " has version code " + std::to_string(version) + ": 2.14 or newer is needed");
  }
  return api;
}

}  // namespace otr
