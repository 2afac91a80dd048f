// Which instruction set the SIMD kernels use on this processor.
#pragma once

namespace muster::kernels {

enum class SimdLevel { kBaseline, kAvx2, kAvx512 };

// The best that processor and operating system support. MUSTER_SIMD=baseline|avx2|avx512 in the
// environment lowers it (tests). Constant during a process.
SimdLevel DetectSimdLevel();

}  // namespace muster::kernels
