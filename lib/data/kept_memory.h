// Bounds the memory that a thread keeps from one sample to the next.
#pragma once

#include <cstdint>

namespace muster {

// A thread keeps memory of up to this size for records.
inline constexpr int64_t kRecordBytesKept = int64_t{64} << 20;

// Frees the memory of a vector of bytes that is larger, so that one record of a gigabyte does not
// cost every thread a gigabyte until the job ends.
template <typename Bytes>
void FreeIfLarge(Bytes& bytes) {
  if (static_cast<int64_t>(bytes.capacity()) > kRecordBytesKept) Bytes().swap(bytes);
}

}  // namespace muster
