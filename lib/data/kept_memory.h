// Bounds the memory that a thread keeps from one sample to the next.
#pragma once

#include <cstdint>

namespace muster {

// The most memory for a record that a thread keeps.
inline constexpr int64_t kRecordBytesKept = int64_t{64} << 20;

// Frees a vector of bytes that is larger. Otherwise one record of a gigabyte would cost every
// thread a gigabyte until the job ends.
template <typename Bytes>
void FreeIfLarge(Bytes& bytes) {
  if (static_cast<int64_t>(bytes.capacity()) > kRecordBytesKept) Bytes().swap(bytes);
}

}  // namespace muster
