#include "runtime/kv_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "kernels/base/descriptor.h"
#include "kernels/page/page.h"
#include "loader/xxh64.h"

namespace otr {
namespace {

constexpr char kMagic[] = "OTRKVFIL";
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
constexpr size_t kMostBytes = size_t{1} << 30;  // more is computed anew as fast, and memory has other uses

uint64_t hash_of(const KvFileHeader& h) { return xxh64(&h, offsetof(KvFileHeader, hash)); }

}  // namespace

uint64_t kv_file_name(uint64_t group, uint32_t sample) {
  const uint64_t words[] = {group, sample};
  return xxh64(words, sizeof words);
}

OwnedFd write_kv_file(uint64_t name, std::span<const PageId> pages, int32_t num_positions, ModelRunner* source) {
  const int64_t page_elements = source->kv_layout().page_elements();
  const size_t body = pages.size() * static_cast<size_t>(page_elements) * sizeof(Element), size = sizeof(KvFileHeader) + body;
  if (size > kMostBytes) return OwnedFd();
  OwnedFd file(above_standard(memfd_create("otr-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  const NoSizeSignal no_signal;
  // Room first: a write into a mapping without it would be a signal.
  if (file.get() < 0 || posix_fallocate(file.get(), 0, static_cast<off_t>(size)) != 0) return OwnedFd();
  void* const map = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (map == MAP_FAILED) return OwnedFd();
  std::byte* const data = static_cast<std::byte*>(map) + sizeof(KvFileHeader);
  if (!source->read_pages(pages, reinterpret_cast<Element*>(data)).ok()) {
    munmap(map, size);
    return OwnedFd();
  }
  KvFileHeader h{.magic = {},
                 .sequence = name,
                 .num_positions = num_positions,
                 .num_pages = static_cast<int64_t>(pages.size()),
                 .page_elements = page_elements,
                 .element_bytes = sizeof(Element),
                 .sum = xxh64(data, body),
                 .hash = 0};
  std::memcpy(h.magic, kMagic, sizeof h.magic);
  h.hash = hash_of(h);
  std::memcpy(map, &h, sizeof h);
  munmap(map, size);
  return fcntl(file.get(), F_ADD_SEALS, kSeals) == 0 ? std::move(file) : OwnedFd();
}

KvFile::KvFile(OwnedFd file, int32_t num_positions) : file_(std::move(file)), num_positions_(num_positions) {}

Result<std::shared_ptr<KvFile>> KvFile::open(OwnedFd file, uint64_t name, int32_t num_positions, const KvLayout& layout) {
  auto opened = std::make_shared<KvFile>(std::move(file), num_positions);
  OTR_RETURN_IF_ERROR(opened->map(name, layout));
  return opened;
}

Status KvFile::map(uint64_t name, const KvLayout& layout) {
  struct stat info;
  if ((fcntl(file_.get(), F_GET_SEALS) & kSeals) != kSeals) return bad_input("keys and values: the file is not sealed");
  page_elements_ = layout.page_elements();
  const size_t body = static_cast<size_t>(num_pages()) * static_cast<size_t>(page_elements_) * sizeof(Element);
  size_ = sizeof(KvFileHeader) + body;
  if (fstat(file_.get(), &info) != 0 || info.st_size != static_cast<off_t>(size_))
    return bad_input("keys and values: the file is of another size");
  void* const mapped =
      mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file_.get(), 0);  // shared ones of sealed files are refused by some kernels
  if (mapped == MAP_FAILED) return Status(StatusCode::kOutOfMemory, "keys and values: the system refuses to map them");
  map_ = mapped;
  KvFileHeader h;
  std::memcpy(&h, map_, sizeof h);
  if (std::memcmp(h.magic, kMagic, sizeof h.magic) != 0 || h.hash != hash_of(h))
    return bad_input("keys and values: the header is damaged");
  if (h.sequence != name || h.num_positions != num_positions_ || h.num_pages != num_pages() ||
      h.page_elements != page_elements_ || h.element_bytes != static_cast<int64_t>(sizeof(Element))) {
    return bad_input("keys and values: they are another sequence's");
  }
  if (h.sum != xxh64(static_cast<const std::byte*>(map_) + sizeof h, body))
    return bad_input("keys and values: the pages are damaged");
  return {};
}

int32_t KvFile::num_pages() const { return (num_positions_ + kPageTokens - 1) / kPageTokens; }

const Element* KvFile::page(int32_t number) const {
  const std::byte* const pages = static_cast<const std::byte*>(map_) + sizeof(KvFileHeader);
  return reinterpret_cast<const Element*>(pages) + int64_t{number} * page_elements_;
}

bool KvFile::copy(int32_t first, std::span<const PageId> to, ModelRunner* target) {
  if (map_ == nullptr) return false;
  return target->write_pages(to, page(first)).ok();
}

bool KvFile::copy_layer(int32_t layer, int32_t first, std::span<const PageId> to, ModelRunner* target) {
  if (map_ == nullptr) return false;
  target->write_layer(layer, to, page(first));
  return true;
}

void KvFile::end() {
  if (map_ != nullptr) munmap(map_, size_);
  map_ = nullptr;
  file_.reset();
}

}  // namespace otr
