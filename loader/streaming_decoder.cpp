#include "loader/streaming_decoder.h"

#include <utility>

#include "loader/tokenizer.h"
#include "loader/utf8_text.h"

namespace otr {

std::string StreamingDecoder::push(std::span<const int32_t> ids) {
  std::string bytes = std::exchange(held_back_, {});
  for (const int32_t id : ids) bytes += tokenizer_->token_bytes(id, skip_special_);
  const size_t whole = bytes.size() - unfinished_utf8(bytes);
  held_back_ = bytes.substr(whole);
  bytes.resize(whole);
  return replace_invalid_utf8(bytes);
}

std::string StreamingDecoder::flush() { return replace_invalid_utf8(std::exchange(held_back_, {})); }

}  // namespace otr
