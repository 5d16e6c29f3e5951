// The history file: what the history drafter knows, from one run to the next. Little-endian:
//
//   header  "OUTRHIST", u64 version, u64 number of frames, u64 xxh64 of these 24 bytes
//   frame   one prompt: "OTRFRAME", u64 raw bytes, u64 stored bytes, u64 xxh64 of the stored bytes, u64 xxh64 of these 32 bytes;
//           then the stored bytes, one zstd frame of:
//           u32 prompt tokens, u32 responses, u32 1 if there are log-probs, i32 prompt[]; for each response u32 tokens,
//           f32 reward (NaN: unknown), i32 tokens[], f32 logprobs[]
//
// A frame that is damaged is left out, and reading goes on with the next one that is whole: a torn file costs speed. A frame
// that cannot be read, for reasons of the system, is no damage: nothing of the file is taken then. Thread safety: functions of
// their arguments.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/status.h"
#include "spec/history_index.h"

namespace otr {

// Writes a temporary file beside `path`, makes it durable and renames it: at any moment `path` holds the old contents or the
// new.
Status save_history(const std::string& path, const HistoryIndex& index);

// The same, to a file that is open, for another process to load.
Status write_history(int fd, const HistoryIndex& index);

struct LoadedHistory {
  HistoryIndex index;
  std::string damage;  // what was left out, and why; "" if nothing
};
// Token ids at or above `vocab_size` are damage. kIoError: the file, or a part of it, cannot be read; kInvalidArgument: it is
// something else, or of its header so little is left that it may be; kUnsupported: it is of another version; kBadInput: it is
// empty.
Result<LoadedHistory> load_history(const std::string& path, int32_t vocab_size, bool with_logprobs);

}  // namespace otr
