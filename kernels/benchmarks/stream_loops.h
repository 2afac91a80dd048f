// What memory gives a loop that does next to nothing: STREAM's triad with any number of arrays.
//   J. McCalpin, "Memory bandwidth and machine balance in current high performance computers", 1995
#pragma once

#include <cstdint>

namespace muster::kernels {

// Every write becomes the scaled sum of all reads, in one pass. [n] each, 64-byte aligned.
struct StreamArrays {
  static constexpr int kReadsMax = 5, kWritesMax = 3;
  const uint16_t* bf16_read = nullptr;  // one more read, or null
  const float* reads[kReadsMax] = {};   // the first `read_count`
  int read_count = 0;
  float* writes[kWritesMax] = {};  // the first `write_count`
  int write_count = 0;
  bool streaming_stores = false;  // past the caches
};

using StreamLoop = void(const StreamArrays& arrays, int64_t n);

namespace baseline {
StreamLoop Stream;
}
namespace avx2 {
StreamLoop Stream;
}
namespace avx512 {
StreamLoop Stream;
}

}  // namespace muster::kernels
