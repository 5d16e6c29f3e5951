// outrider worker FD: a worker process of an engine that --worker-processes made. Engines call it, users do not.
#include <sys/prctl.h>

#include "runtime/outrider.h"
#include "tools/outrider/commands.h"
#include "tools/outrider/failure.h"
#include "tools/outrider/flags.h"

namespace otr::cli {

int worker_command(int argc, char** argv) {
  if (argc != 2) throw Failure(kExitUsage, "expected the socket of an engine: engines run this command themselves");
  (void)prctl(PR_SET_NAME, "outrider");  // it was run under the name of a link to itself
  const int fd = int_flag("socket", argv[1], 0);
  const otr_status status = otr_serve_worker(fd);
  if (status == OTR_INVALID_ARGUMENT) throw Failure(kExitUsage, otr_last_error(nullptr));
  return status == OTR_OK ? kExitOk : kExitFailure;  // the engine knows why
}

}  // namespace otr::cli
