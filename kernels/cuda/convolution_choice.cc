#include "kernels/cuda/convolution_choice.h"

namespace muster::kernels::cuda {
namespace {

// Returns the accepted error as a fraction of the largest element. bf16, f16 and TF32: a quarter of
// a unit in the last place at 1.0. f32: the error that the order of a long sum causes;
// operator_test.cc uses the same 2e-6.
double RoundingOf(const ConvolutionPrecision& precision) {
  switch (precision.type) {
    case Type::kBf16:
      return 0x1p-9;
    case Type::kF16:
      return 0x1p-12;
    case Type::kF32:
    case Type::kI32:
      break;
  }
  return precision.tf32 ? 0x1p-12 : 2e-6;
}

}  // namespace

double ErrorOf(ConvolutionMethod method) {
  switch (method) {
    case ConvolutionMethod::kSums:
      return 0;
    case ConvolutionMethod::kFft:
      return 1e-5;
    case ConvolutionMethod::kWinograd:
      return 1e-3;
  }
  return 1;
}

bool Admits(ConvolutionMethod method, const ConvolutionPrecision& precision) {
  return !precision.deterministic || ErrorOf(method) <= RoundingOf(precision);
}

std::string DescribeAdmission(const ConvolutionPrecision& precision) {
  std::string refused;
  if (!Admits(ConvolutionMethod::kFft, precision)) refused += "FFT";
  if (!Admits(ConvolutionMethod::kWinograd, precision)) {
    refused += refused.empty() ? "Winograd" : " and Winograd";
  }
  if (refused.empty()) {
    return "f32 convolutions may be computed by every algorithm of cuDNN, FFT and Winograd included"
           " (training.deterministic: false)";
  }
  return "f32 convolutions are not computed by " + refused +
         ", whose rounding is coarser; training.deterministic: false admits what is fastest";
}

std::vector<ConvolutionForm> FormsOf(Type type, bool tf32, bool has_few_channels) {
  if (type == Type::kF32) {
    return {{.channels_last = tf32}, {.channels_last = !tf32}};
  }
  std::vector<ConvolutionForm> forms;
  if (has_few_channels) forms.push_back({.channels_last = true, .is_padded = true});
  forms.insert(forms.end(), {{.channels_last = true},
                             {.channels_last = false},
                             {.channels_last = false, .is_widened = true},
                             {.channels_last = true, .is_widened = true}});
  return forms;
}

}  // namespace muster::kernels::cuda
