// The checkpoint file: what an engine owes, so that a new process can go on: every request that is unfinished or whose results
// nobody has taken, and of every sample its noise key, the tokens accepted so far, their log-probs and its counters.
// Little-endian:
//
//   header  CheckpointHeader, whose last word is xxh64 of what is before it
//   body    user bytes, then the groups: requests as they were submitted, and their samples (checkpoint_file.cpp)
//
// It is bound to the weights, the instruction-set path and the library's version: with another of these a sample would go on
// with other numbers. Nothing else matters to it: not the number of workers, batch, pages or policy. Weights are the same if
// their digests are; the version is a name that the file brings along.
//
// Writing puts a temporary file beside `path`, makes it durable and renames it: at any moment `path` holds the old state or the
// new. A file that is torn or changed anywhere is refused whole. Thread safety: functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/ledger.h"

namespace otr {

struct CheckpointIdentity {
  std::string isa, library;
  uint64_t weights_digest = 0;
  uint64_t weight_version = 0;  // told, not compared
};

// The state of a ledger at one moment: room for the header, and the body. The engine stands still for this copy, not for its
// checksums.
struct LedgerCopy {
  std::vector<std::byte> bytes;
  uint64_t user_bytes = 0, num_groups = 0;
};
LedgerCopy copy_ledger(const Ledger& ledger, std::span<const std::byte> user);
// Bytes to write.
std::vector<std::byte> encode_checkpoint(const CheckpointIdentity& identity, LedgerCopy copy);
Status write_checkpoint(const std::string& path, std::span<const std::byte> bytes);

// A file that is whole. Errors: kIoError: it cannot be read; kInvalidArgument: it is something else; kBadInput: torn or
// damaged; kUnsupported: of another format.
class CheckpointFile {
 public:
  static Result<CheckpointFile> read(const std::string& path);
  static Result<CheckpointFile> parse(const std::string& name, std::vector<std::byte> bytes);

  std::span<const std::byte> user() const { return user_; }
  uint64_t weight_version() const { return identity_.weight_version; }

  // Every group's sequences, as make_group would give them, but with what was accepted; those that are finished have
  // `is_finished`. Errors: kUnsupported: of another path, library or other weights; kBadInput: what it says cannot be; and as
  // make_group.
  struct Sample {
    std::unique_ptr<Sequence> sequence;
    bool is_finished = false;
  };
  Result<std::vector<std::vector<Sample>>> restore(const CheckpointIdentity& identity, const RequestLimits& limits) const;

 private:
  std::string name_;
  std::vector<std::byte> bytes_;
  CheckpointIdentity identity_;
  std::span<const std::byte> user_, groups_;
  uint64_t num_groups_ = 0;
};

}  // namespace otr
