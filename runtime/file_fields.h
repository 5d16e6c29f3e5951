// Fields of the library's own binary files: values off the front of bytes that may be damaged, texts of fixed length, digests.
//
// Thread safety: none needed; locals. Errors: a reader that has once failed stays so, and gives zeros.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace otr {

class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T take() {
    T value{};
    copy(&value, 1);
    return value;
  }
  // Allocates nothing that the bytes do not hold.
  template <typename T>
  std::vector<T> take(uint64_t count) {
    if (count > bytes_.size() / sizeof(T)) ok_ = false;
    std::vector<T> values(ok_ ? count : 0);
    copy(values.data(), values.size());
    return values;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && bytes_.empty(); }

 private:
  template <typename T>
  void copy(T* to, size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (count > bytes_.size() / sizeof(T)) ok_ = false;
    if (!ok_ || count == 0) return;
    std::memcpy(to, bytes_.data(), count * sizeof(T));
    bytes_ = bytes_.subspan(count * sizeof(T));
  }

  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

template <size_t kSize>
void put_text(const std::string& text, char (&field)[kSize]) {
  std::snprintf(field, kSize, "%s", text.c_str());
}

// For a message: what is not printable becomes '?'.
template <size_t kSize>
std::string text_of(const char (&field)[kSize]) {
  std::string text(field, ::strnlen(field, kSize));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

inline std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace otr
