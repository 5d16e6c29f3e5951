// Byte planes: 16-bit values as all high bytes followed by all low bytes. Internal to the .otr reader and writer.
#pragma once

#include <cstddef>
#include <cstdint>

namespace otr {

inline void split_planes(const uint8_t* values, size_t bytes, uint8_t* planes) {
  const size_t n = bytes / 2;
  for (size_t i = 0; i < n; ++i) {
    planes[n + i] = values[2 * i];
    planes[i] = values[2 * i + 1];
  }
}

inline void join_planes(const uint8_t* planes, size_t bytes, uint8_t* values) {
  const size_t n = bytes / 2;
  for (size_t i = 0; i < n; ++i) {
    values[2 * i] = planes[n + i];
    values[2 * i + 1] = planes[i];
  }
}

}  // namespace otr
