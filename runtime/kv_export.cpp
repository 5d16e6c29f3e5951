#include "runtime/kv_export.h"

#include <cstring>

#include "loader/frame_sum.h"
#include "loader/xxh64.h"
#include "runtime/file_fields.h"

namespace otr {
namespace {

constexpr char kPagesMagic[] = "OTRPAGES";
constexpr uint32_t kPagesFormat = 1;

KvHeader header_of(const KvIdentity& id, size_t num_tokens, uint64_t body_hash) {
  KvHeader h{};
  std::memcpy(h.magic, kPagesMagic, sizeof h.magic);
  h.format = kPagesFormat;
  h.element_bytes = sizeof(Element);
  h.num_layers = id.layout.num_layers;
  h.num_kv_heads = id.layout.num_kv_heads;
  h.head_dim = id.layout.head_dim;
  h.page_tokens = kPageTokens;
  put_text(id.isa, h.isa);
  put_text(id.library, h.library);
  h.weights_digest = id.weights_digest;
  h.weight_version = id.weight_version;
  h.num_tokens = num_tokens;
  h.body_hash = body_hash;
  h.hash = xxh64(&h, sizeof h - sizeof h.hash);
  return h;
}

Status refused(const std::string& what, const std::string& theirs, const std::string& ours) {
  return unsupported("the pages are of another " + what + ": " + theirs + "; the engine's is " + ours);
}

std::string shape_of(int32_t layers, int32_t heads, int32_t head_dim) {
  return std::to_string(layers) + " layers of " + std::to_string(heads) + " KV heads of " + std::to_string(head_dim);
}

Status check_identity(const KvIdentity& id, const KvHeader& h) {
  const KvLayout& l = id.layout;
  if (h.num_layers != l.num_layers || h.num_kv_heads != l.num_kv_heads || h.head_dim != l.head_dim) {
    return refused("model shape", shape_of(h.num_layers, h.num_kv_heads, h.head_dim),
                   shape_of(l.num_layers, l.num_kv_heads, l.head_dim));
  }
  if (text_of(h.isa) != id.isa) return refused("instruction-set path", text_of(h.isa), id.isa);
  if (text_of(h.library) != id.library) return refused("library version", text_of(h.library), id.library);
  if (h.weights_digest != id.weights_digest) {
    return refused("set of weights", "digest " + hex(h.weights_digest) + ", version " + std::to_string(h.weight_version),
                   "digest " + hex(id.weights_digest) + ", version " + std::to_string(id.weight_version));
  }
  return {};
}

}  // namespace

size_t kv_export_bytes(const KvLayout& layout, size_t num_tokens) {
  return sizeof(KvHeader) + num_tokens * sizeof(int32_t) + num_tokens / kPageTokens * static_cast<size_t>(layout.page_bytes());
}

void seal_kv(const KvIdentity& identity, std::span<const int32_t> tokens, std::span<std::byte> bytes) {
  const std::span<std::byte> body = bytes.subspan(sizeof(KvHeader));
  if (!tokens.empty()) std::memcpy(body.data(), tokens.data(), tokens.size_bytes());
  const KvHeader header = header_of(identity, tokens.size(), frame_sum(body.data(), body.size()));
  std::memcpy(bytes.data(), &header, sizeof header);
}

Result<KvImport> open_kv(const KvIdentity& identity, std::span<const std::byte> bytes, int32_t vocab_size) {
  KvHeader h;
  if (bytes.size() < sizeof h) return bad_input("the pages are cut: " + std::to_string(bytes.size()) + " bytes hold no header");
  std::memcpy(&h, bytes.data(), sizeof h);
  if (std::memcmp(h.magic, kPagesMagic, sizeof h.magic) != 0) return bad_input("these are no exported pages");
  if (h.hash != xxh64(&h, sizeof h - sizeof h.hash)) return bad_input("the header of the pages is damaged");
  if (h.format != kPagesFormat || h.element_bytes != sizeof(Element) || h.page_tokens != kPageTokens)
    return unsupported("the pages are of format " + std::to_string(h.format) + "; this library reads format " +
                       std::to_string(kPagesFormat));
  OTR_RETURN_IF_ERROR(check_identity(identity, h));
  const size_t body = bytes.size() - sizeof h;
  if (h.num_tokens % kPageTokens != 0 || h.num_tokens > body / sizeof(int32_t) ||
      kv_export_bytes(identity.layout, h.num_tokens) != bytes.size()) {
    return bad_input("the pages are cut: " + std::to_string(bytes.size()) + " bytes do not hold " +
                     std::to_string(h.num_tokens) + " tokens");
  }
  if (frame_sum(bytes.data() + sizeof h, body) != h.body_hash)
    return bad_input("the pages are damaged: their checksum is wrong");
  const std::span<const std::byte> tokens = bytes.subspan(sizeof h, h.num_tokens * sizeof(int32_t));
  for (size_t at = 0; at < tokens.size(); at += sizeof(int32_t)) {
    int32_t token;
    std::memcpy(&token, tokens.data() + at, sizeof token);
    if (token < 0 || token >= vocab_size)
      return bad_input("token " + std::to_string(token) + " of the pages is outside the vocabulary");
  }
  return KvImport{.tokens = tokens, .pages = bytes.subspan(sizeof h + tokens.size())};
}

}  // namespace otr
