// NcclPort: a PagePort that is a rank of an NCCL communicator, whose calls do not wait, on a stream of its own.
//
// A join or a move asks the communicator for errors, and the stream whether it is done, every 50 us, until the patience is
// over. leave() aborts the communicator: NCCL ends its kernels, whatever the other ranks do, and then the stream has nothing
// left that touches a page. A stream that has, when the patience is over, is not waited for again, and left to the end of the
// process with what it may use.
//
// The word goes to the device and comes back in pinned memory and on the stream of the move: a copy by any other stream is not
// ordered with what NCCL sends. Its memory is the device's: where that hangs it stays, for cudaFree would wait for all streams,
// without a limit.
//
// Thread safety and errors: as PagePort.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <utility>

#include "runtime/nccl_api.h"
#include "runtime/page_port.h"

namespace otr {

class NcclPort final : public PagePort {
 public:
  static Result<std::unique_ptr<PagePort>> open(const std::string& library, int32_t gpu, std::shared_ptr<Accelerator> device,
                                                int32_t patience_ms);
  ~NcclPort() override;

  Status join(const NetId& id, int32_t size, int32_t rank, const GivenUp& given_up) override;
  Status move(PageMove* move, const GivenUp& given_up) override;
  Status leave() override;

 private:
  NcclPort(const NcclApi& api, int32_t gpu, std::shared_ptr<Accelerator> device, int32_t patience_ms)
      : api_(api), gpu_(gpu), patience_ms_(patience_ms), device_(std::move(device)) {}
  Status wait(const char* what, int32_t limit_ms, bool for_stream, const GivenUp& given_up) const;
  Status copy_word(bool to_device);
  Status failure(const char* what, ncclResult_t result) const;

  const NcclApi api_;
  const int32_t gpu_, patience_ms_;
  const std::shared_ptr<Accelerator> device_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  uint64_t* word_ = nullptr;       // on the device
  uint64_t* host_word_ = nullptr;  // pinned
  bool hung_ = false;              // the stream was not done in time
};

}  // namespace otr
