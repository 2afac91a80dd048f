// Which of the library's algorithms a convolution may be computed by.
#pragma once

#include <string>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

// How an algorithm comes to its results. Sums of products round as our kernels and the CPU's do;
// transforms round what is larger than the result.
enum class ConvolutionMethod { kSums, kFft, kWinograd };

struct ConvolutionPrecision {
  Type type = Type::kF32;
  bool tf32 = false;  // f32 operands are rounded to TF32
  bool deterministic = true;
};

// What `method` may be off by more than sums of products in f32 are, as part of the largest
// element: estimates on the safe side, not measured.
double ErrorOf(ConvolutionMethod method);

// Deterministic: no more than the rounding of the type that operands have is added to the error, so
// that results are within the tolerance of one device against another. Else speed decides.
bool Admits(ConvolutionMethod method, const ConvolutionPrecision& precision);

// What that means for convolutions of f32, for the log.
std::string DescribeAdmission(const ConvolutionPrecision& precision);

}  // namespace muster::kernels::cuda
