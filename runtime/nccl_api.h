// NcclApi: the functions of an NCCL library that is loaded while the program runs: a library or a program of ours does not need
// it to be there.
//
// Thread safety: load() from any thread; a table that was loaded never changes, and its library stays. Errors: kUnsupported
// with the reason.
#pragma once

#include <nccl.h>

#include <string>

#include "kernels/base/status.h"

namespace otr {

struct NcclApi {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init_rank;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclGetErrorString) error_text;

  // `library`: a name that the system finds, or a path.
  static Result<NcclApi> load(const std::string& library);
};

}  // namespace otr
