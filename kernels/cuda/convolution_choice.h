// In which forms a convolution is asked of the library, and which of its algorithms are taken.
#pragma once

#include <string>
#include <vector>

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

struct ConvolutionForm {
  bool channels_last = false;
  // Operands of 16 bits are widened and the result is rounded: the sums are the same.
  bool is_widened = false;
  // Channels of the image and of the weights are padded with zeros: see movement.h.
  bool is_padded = false;

  bool operator==(const ConvolutionForm&) const = default;
};

// To be asked for one after the other until the library has one. Tensor cores want channels last,
// kernels without them are made for channels first. Grouped and dilated convolutions of 16 bits,
// and their derivatives, are not all there in bf16; in f32 they are.
// Tensor cores read eight channels at a time: those of photographs are padded, unless it is the
// image's derivative that is asked for.
std::vector<ConvolutionForm> FormsOf(Type type, bool tf32, bool has_few_channels);

}  // namespace muster::kernels::cuda
