// The loops of conversion.h, once per instruction set. f16 and bf16 are given as their bits.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct ConversionLoops {
  void (*f32_to_bf16)(uint16_t* y, const float* x, int64_t n);
  void (*f32_to_f16)(uint16_t* y, const float* x, int64_t n);
  // Rounds values for the wire. Finite numbers stay finite: those beyond +-65504 become +-65504.
  void (*f32_to_finite_f16)(uint16_t* y, const float* x, int64_t n);
  void (*f32_to_i32)(int32_t* y, const float* x, int64_t n);
  void (*bf16_to_f32)(float* y, const uint16_t* x, int64_t n);
  void (*f16_to_f32)(float* y, const uint16_t* x, int64_t n);
  void (*i32_to_f32)(float* y, const int32_t* x, int64_t n);
  // scale: to = factor * from. add_scaled: to += factor * from.
  void (*scale)(float* to, const float* from, float factor, int64_t n);
  void (*add_scaled)(float* to, const float* from, float factor, int64_t n);
};

namespace baseline {
extern const ConversionLoops kConversionLoops;
}
namespace avx2 {
extern const ConversionLoops kConversionLoops;
}
namespace avx512 {
extern const ConversionLoops kConversionLoops;
}

}  // namespace muster::kernels
