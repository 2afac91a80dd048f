#include "kernels/cpu/simd_level.h"
#include "kernels/cpu/vector_kernels.h"

namespace muster::kernels {

// Defined by cpu/vector_kernels.cc, compiled once per level.
namespace baseline {
extern const VectorKernels kVectorKernels;
}
namespace avx2 {
extern const VectorKernels kVectorKernels;
}
namespace avx512 {
extern const VectorKernels kVectorKernels;
}

const VectorKernels& Vectors() {
  switch (DetectSimdLevel()) {
    case SimdLevel::kAvx512:
      return avx512::kVectorKernels;
    case SimdLevel::kAvx2:
      return avx2::kVectorKernels;
    case SimdLevel::kBaseline:
      break;
  }
  return baseline::kVectorKernels;
}

}  // namespace muster::kernels
