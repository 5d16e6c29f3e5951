// KvFile: keys and values of a sequence on their way from one process to another: a file in memory, written whole and sealed by
// who gives the sequence, so that nobody can change it any more; whoever goes on with the sequence maps it, and takes it only
// if its checksums and its layout are right. The giver may be dead by then.
//
//   header  KvFileHeader, whose last word is xxh64 of what is before it
//   pages   [num_pages] in the canonical form of page_transfer.h
//
// Thread safety: none needed; a file belongs to whoever has the sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/status.h"
#include "runtime/kv_lease.h"
#include "runtime/worker_channel.h"

namespace otr {

struct KvFileHeader {
  char magic[8];
  uint64_t sequence;  // whose: kv_file_name()
  int64_t num_positions, num_pages, page_elements, element_bytes;
  uint64_t sum;  // xxh64 of the pages
  uint64_t hash;
};
static_assert(sizeof(KvFileHeader) == 64);

// Of a sample, and of so many tokens of it, as both ends know it.
uint64_t kv_file_name(uint64_t group, uint32_t sample);

// -1 where the system has no room for it: the keys and values are computed anew.
OwnedFd write_kv_file(uint64_t name, std::span<const PageId> pages, int32_t num_positions, ModelRunner* source);

class KvFile final : public KvLease {
 public:
  // What the engine passes on, unread. Its pages cannot be copied.
  KvFile(OwnedFd file, int32_t num_positions);
  // Maps and checks it. Errors: kBadInput: it is not sealed, whole, or this sequence's.
  static Result<std::shared_ptr<KvFile>> open(OwnedFd file, uint64_t name, int32_t num_positions, const KvLayout& layout);
  ~KvFile() override { end(); }
  KvFile(const KvFile&) = delete;
  KvFile& operator=(const KvFile&) = delete;

  OwnedFd duplicate() const { return file_.duplicate(); }

  int32_t num_pages() const override;
  int32_t num_positions() const override { return num_positions_; }
  bool copy(int32_t first, std::span<const PageId> to, ModelRunner* target) override;
  bool has_layers() const override { return true; }  // a page's layers are in one piece each
  bool copy_layer(int32_t layer, int32_t first, std::span<const PageId> to, ModelRunner* target) override;
  void end() override;
  bool over() const override { return map_ == nullptr; }

 private:
  Status map(uint64_t name, const KvLayout& layout);
  const Element* page(int32_t number) const;

  OwnedFd file_;
  const int32_t num_positions_;
  int64_t page_elements_ = 0;
  void* map_ = nullptr;
  size_t size_ = 0;
};

}  // namespace otr
