// StreamingDecoder: the text of a sequence of tokens while it grows, for whoever shows it as it comes.
//
// A token may end in the middle of a character. push() therefore holds back the bytes of an unfinished character (at most
// three), so that what it returns is always whole characters; everything returned, with flush() at the end, is what
// Tokenizer::decode gives for all ids at once. Memory is those three bytes.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace otr {

class Tokenizer;

class StreamingDecoder {
 public:
  // `tokenizer` is borrowed.
  StreamingDecoder(const Tokenizer& tokenizer, bool skip_special) : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The text that these tokens complete; may be empty.
  std::string push(std::span<const int32_t> ids);
  // The text of what was held back: U+FFFD or nothing. The decoder can then take another sequence.
  std::string flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string held_back_;  // the beginning of a character
};

}  // namespace otr
