#include "lib/engine/peak_flops.h"

#include "absl/strings/match.h"

namespace muster {
namespace {

// The dense TFLOP/s of a GPU in each precision; 0: the GPU has no units for it. The first name that
// matches counts, so a longer name precedes a shorter one that it contains.
struct Datasheet {
  absl::string_view name;
  double fp32, tf32, bf16, fp16;
};
constexpr Datasheet kDatasheets[] = {
    {"B200", 75, 1125, 2250, 2250},
    {"H200 NVL", 60, 417.5, 835.5, 835.5},
    {"H200", 66.9, 494.7, 989.4, 989.4},
    {"H100 PCIe", 51, 378, 756, 756},
    {"H100 NVL", 60, 417.5, 835.5, 835.5},
    {"H100", 66.9, 494.7, 989.4, 989.4},
    {"A100", 19.5, 156, 312, 312},
    {"L40S", 91.6, 183, 362, 362},
    {"L4,", 30.3, 60, 121, 121},
    {"A10,", 31.2, 62.5, 125, 125},
    {"V100", 15.7, 0, 0, 125},
};

double Of(const Datasheet& sheet, v1::Precision precision) {
  switch (precision) {
    case v1::TF32:
      return sheet.tf32;
    case v1::BF16:
      return sheet.bf16;
    case v1::FP16:
      return sheet.fp16;
    default:
      return sheet.fp32;
  }
}

}  // namespace

std::optional<double> PeakFlops(absl::string_view description, v1::Precision precision) {
  for (const Datasheet& sheet : kDatasheets) {
    if (!absl::StrContains(description, sheet.name)) continue;
    const double teraflops = Of(sheet, precision);
    return teraflops > 0 ? std::optional(teraflops * 1e12) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace muster
