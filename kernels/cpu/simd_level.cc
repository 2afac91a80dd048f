#include "kernels/cpu/simd_level.h"

#include <cstdlib>
#include <cstring>

namespace muster::kernels {
namespace {

SimdLevel Supported() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    return SimdLevel::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return SimdLevel::kAvx2;
#endif
  return SimdLevel::kBaseline;
}

SimdLevel Chosen() {
  const SimdLevel supported = Supported();
  const char* wanted = std::getenv("MUSTER_SIMD");
  if (wanted == nullptr) return supported;
  const SimdLevel level = std::strcmp(wanted, "baseline") == 0 ? SimdLevel::kBaseline
                          : std::strcmp(wanted, "avx2") == 0   ? SimdLevel::kAvx2
                                                               : SimdLevel::kAvx512;
  return level < supported ? level : supported;
}

}  // namespace

SimdLevel DetectSimdLevel() {
  static const SimdLevel level = Chosen();
  return level;
}

}  // namespace muster::kernels
