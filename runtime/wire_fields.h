// Fields of messages: a writer that appends them to bytes, and a reader that checks each and remembers the first that is wrong.
//
// Thread safety: none needed; locals.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/base/status.h"

namespace otr {

constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr int32_t kMaxWorkers = 256;

class WireWriter {
 public:
  explicit WireWriter(std::vector<std::byte>* out) : out_(*out) {}

  template <typename T>
  void put(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    append(&value, sizeof value);
  }
  void put(const std::string& text) {
    put(static_cast<uint32_t>(text.size()));
    append(text.data(), text.size());
  }
  template <typename T>
  void put_array(std::span<const T> values) {
    put(static_cast<uint32_t>(values.size()));
    append(values.data(), values.size_bytes());
  }

 private:
  void append(const void* data, size_t size) {
    const std::byte* bytes = static_cast<const std::byte*>(data);
    out_.insert(out_.end(), bytes, bytes + size);
  }
  std::vector<std::byte>& out_;
};

// What is read after the first error is zero; finish() says what that was.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> in) : in_(in) {}

  // Integers from `least` to `most`.
  template <typename T>
  T integer(const char* field, T least, T most) {
    T value{};
    take(field, &value, sizeof value);
    if (ok() && (value < least || value > most)) fail(field, "is " + std::to_string(value));
    return ok() ? value : T{};
  }
  template <typename T>
  T number(const char* field, T least, T most) {
    T value{};
    take(field, &value, sizeof value);
    if (ok() && !(value >= least && value <= most)) fail(field, "is out of range");  // NaN too
    return ok() ? value : T{};
  }
  bool flag(const char* field) { return integer<uint8_t>(field, 0, 1) == 1; }
  // A count of items that take at least `bytes_each` of what is left.
  uint32_t count(const char* field, size_t bytes_each) {
    const uint32_t n = integer<uint32_t>(field, 0, UINT32_MAX);
    if (ok() && n > in_.size() / bytes_each) fail(field, "is more than the message holds");
    return ok() ? n : 0;
  }
  std::string text(const char* field) {
    std::string value(count(field, 1), '\0');
    take(field, value.data(), value.size());
    return value;
  }
  template <typename T>
  void array(const char* field, std::vector<T>* values) {
    values->resize(count(field, sizeof(T)));
    take(field, values->data(), values->size() * sizeof(T));
  }

  bool ok() const { return error_.empty(); }
  void fail(const char* field, const std::string& what) {
    if (ok()) error_ = std::string(field) + " " + what;
  }
  // kBadInput with the first wrong field, or if something is left over.
  Status finish(const char* message) {
    if (ok() && !in_.empty()) fail("the end", "comes late");
    return ok() ? Status() : bad_input(std::string(message) + ": " + error_);
  }

 private:
  void take(const char* field, void* to, size_t size) {
    if (ok() && size > in_.size()) fail(field, "is cut off");
    if (!ok() || size == 0) return;
    std::memcpy(to, in_.data(), size);
    in_ = in_.subspan(size);
  }
  std::span<const std::byte> in_;
  std::string error_;
};

}  // namespace otr
