// append_format: printf onto the end of a string, for text that is put together in many small pieces.
//
// Thread safety: pure function.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

namespace otr {

// At most 511 characters a call; what is longer is cut.
__attribute__((format(printf, 2, 3))) inline void append_format(std::string* out, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  *out += text;
}

}  // namespace otr
