// Decides which forms of a convolution to ask the library for, and which of its algorithms to
// accept.
#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

// How an algorithm computes its results. Sums of products round as our kernels and the CPU's do;
// transforms round intermediate values that are larger than the result.
enum class ConvolutionMethod { kSums, kFft, kWinograd };

struct ConvolutionPrecision {
  Type type = Type::kF32;
  bool tf32 = false;  // f32 operands are rounded to TF32
  bool deterministic = true;
};

// Estimated error of `method` beyond that of sums of products in f32, as a fraction of the largest
// element. Conservative; not measured.
double ErrorOf(ConvolutionMethod method);

// Returns whether `method` is acceptable. If deterministic, it may add at most the rounding error
// of the operands' type, so that results stay within the tolerance between devices. Otherwise speed
// decides.
bool Admits(ConvolutionMethod method, const ConvolutionPrecision& precision);

// Describes for the log what Admits() means for f32 convolutions.
std::string DescribeAdmission(const ConvolutionPrecision& precision);

struct ConvolutionForm {
  bool channels_last = false;
  // Widens operands of 16 bits and rounds the result: the sums are the same.
  bool is_widened = false;
  // Pads the channels of image and weights with zeros: see movement.h.
  bool is_padded = false;

  bool operator==(const ConvolutionForm&) const = default;
};

// The forms to try, in order, until the library supports one. Tensor cores need channels last;
// other kernels are made for channels first. In bf16 the library lacks some grouped and dilated
// convolutions and derivatives; in f32 it has all. Tensor cores read eight channels at a time, so
// images with few channels are padded, except to compute the image's derivative.
std::vector<ConvolutionForm> FormsOf(Type type, bool tf32, bool has_few_channels);

}  // namespace muster::kernels::cuda
