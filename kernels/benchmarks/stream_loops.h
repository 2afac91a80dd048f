// Loops that are bound by memory alone: STREAM's triad with several arrays.
//   J. McCalpin, "Memory bandwidth and machine balance in current high performance computers", 1995
#pragma once

#include <cstdint>

namespace muster::kernels {

// In one pass, each of the `writes` becomes the scaled sum of all reads. Arrays have n elements and
// are 64-byte aligned.
struct StreamArrays {
  static constexpr int kReadsMax = 9, kWritesMax = 3;
  const uint16_t* bf16_read = nullptr;  // one more read, or null
  const float* reads[kReadsMax] = {};   // the first `read_count`
  int read_count = 0;
  float* writes[kWritesMax] = {};  // the first `write_count`
  int write_count = 0;
  bool streaming_stores = false;  // whether stores bypass the caches
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
