// KV pages as bytes: what otr_kv_export gives and otr_kv_import takes. Little-endian:
//
//   header  KvHeader, whose last word is xxh64 of what is before it
//   tokens  i32[num_tokens], num_tokens a multiple of 64
//   pages   [num_tokens / 64] in the canonical form of page_transfer.h: bf16, row-major, whatever packing the path uses inside
//
// The numbers in a page depend on the weights, on the instruction-set path and on the library's version: what differs in one of
// them is refused by name. Thread safety: functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/base/status.h"
#include "kernels/page/page.h"

namespace otr {

// Whose pages they are.
struct KvIdentity {
  KvLayout layout;
  std::string isa;
  std::string library;  // otr_version()
  uint64_t weights_digest = 0;
  uint64_t weight_version = 0;  // told, not compared
};

struct KvHeader {
  char magic[8];
  uint32_t format;
  uint32_t element_bytes;
  int32_t num_layers, num_kv_heads, head_dim, page_tokens;
  char isa[16];
  char library[16];
  uint64_t weights_digest, weight_version;
  uint64_t num_tokens;
  uint64_t body_hash;  // frame_sum of all behind the header
  uint64_t hash;
};
static_assert(sizeof(KvHeader) == 104);

// The size of all with so many tokens.
size_t kv_export_bytes(const KvLayout& layout, size_t num_tokens);

// Writes the header and the tokens into `bytes`, whose pages are there already. REQUIRES: bytes has kv_export_bytes().
void seal_kv(const KvIdentity& identity, std::span<const int32_t> tokens, std::span<std::byte> bytes);

struct KvImport {
  std::span<const std::byte> tokens;  // i32[], at any address
  std::span<const std::byte> pages;
};
// Checks everything. Errors: kBadInput: no export, damaged or cut; kUnsupported: of another model, path, weights or library.
Result<KvImport> open_kv(const KvIdentity& identity, std::span<const std::byte> bytes, int32_t vocab_size);

}  // namespace otr
