// Exported pages: what is accepted has tokens of the vocabulary and a page of the engine's shape for each 64. The checksums are
// made to fit, so that the inputs reach what they cover.
#include <cstddef>
#include <cstring>
#include <vector>

#include "loader/frame_sum.h"
#include "loader/xxh64.h"
#include "runtime/kv_export.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

std::vector<std::byte> sealed(std::vector<std::byte> bytes) {
  otr::KvHeader h;
  if (bytes.size() < sizeof h) return bytes;
  std::memcpy(&h, bytes.data(), sizeof h);
  h.body_hash = otr::frame_sum(bytes.data() + sizeof h, bytes.size() - sizeof h);
  h.hash = otr::xxh64(&h, sizeof h - sizeof h.hash);
  std::memcpy(bytes.data(), &h, sizeof h);
  return bytes;
}

void check(const std::vector<std::byte>& bytes) {
  using namespace otr::fuzz;
  const otr::KvIdentity identity{.layout = {.num_layers = 1, .num_kv_heads = 1, .head_dim = 8},
                                 .isa = "cpu-avx2",
                                 .library = "0.1.0",
                                 .weights_digest = 7,
                                 .weight_version = 0};
  const auto import = otr::open_kv(identity, bytes, 97);
  if (!import.ok()) return require_reason(import.status(), "");
  const std::span<const std::byte> tokens = import.value().tokens;
  const size_t num_tokens = tokens.size() / sizeof(int32_t), page = static_cast<size_t>(identity.layout.page_bytes());
  require(num_tokens % otr::kPageTokens == 0 && import.value().pages.size() == num_tokens / otr::kPageTokens * page,
          "every token has a page");
  for (size_t i = 0; i < num_tokens; ++i) {
    int32_t token;
    std::memcpy(&token, tokens.data() + i * sizeof token, sizeof token);
    require(token >= 0 && token < 97, "tokens are in the vocabulary");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  check(bytes);
  check(sealed(bytes));
  return 0;
}
