// Selects the instruction set of the SIMD kernels for this processor.
#pragma once

namespace muster::kernels {

enum class SimdLevel { kBaseline, kAvx2, kAvx512 };

// Returns the best level that the processor and the operating system support.
// MUSTER_SIMD=baseline|avx2|avx512 in the environment lowers it, for tests. Constant during a
// process.
SimdLevel DetectSimdLevel();

// Returns the build of a table of loops for DetectSimdLevel().
template <typename T>
const T& ForThisProcessor(const T& baseline, const T& avx2, const T& avx512) {
  switch (DetectSimdLevel()) {
    case SimdLevel::kAvx512:
      return avx512;
    case SimdLevel::kAvx2:
      return avx2;
    case SimdLevel::kBaseline:
      break;
  }
  return baseline;
}

}  // namespace muster::kernels
