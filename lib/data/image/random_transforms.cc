#include "lib/data/image/random_transforms.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace muster {
namespace {

// Returns element `index` of torch.linspace(from, to, count), with its rounding.
double Linspace(double from, double to, int count, int index) {
  const float start = static_cast<float>(from), end = static_cast<float>(to);
  const float step = (end - start) / static_cast<float>(count - 1);
  if (index < count / 2) return start + step * static_cast<float>(index);
  return end - step * static_cast<float>(count - index - 1);
}

}  // namespace

ResampleFilter FilterOf(v1::Interpolation interpolation) {
  switch (interpolation) {
    case v1::INTERPOLATION_NEAREST:
      return ResampleFilter::kNearest;
    case v1::INTERPOLATION_BICUBIC:
      return ResampleFilter::kBicubic;
    default:
      return ResampleFilter::kBilinear;
  }
}

void JitterColors(const v1::ColorJitter& spec, TransformDraws draws, Planes& image) {
  std::array<int, 4> order = {0, 1, 2, 3};
  for (int i = 3; i > 0; --i) std::swap(order[i], order[draws.Below(i + 1)]);
  // All factors are drawn, so that one that is not used moves no other.
  auto factor = [&](double range) { return draws.Uniform(std::max(0.0, 1 - range), 1 + range); };
  const double brightness = factor(spec.brightness());
  const double contrast = factor(spec.contrast());
  const double saturation = factor(spec.saturation());
  const double hue = draws.Uniform(-spec.hue(), spec.hue());
  for (int function : order) {
    if (function == 0 && spec.brightness() > 0) AdjustBrightness(image, brightness);
    if (function == 1 && spec.contrast() > 0) AdjustContrast(image, contrast);
    if (function == 2 && spec.saturation() > 0) AdjustSaturation(image, saturation);
    if (function == 3 && spec.hue() > 0) AdjustHue(image, hue);
  }
}

double MagnitudeOf(AugmentOperation operation, int index, int bins, int width, int height) {
  switch (operation) {
    case AugmentOperation::kIdentity:
    case AugmentOperation::kAutoContrast:
    case AugmentOperation::kEqualize:
      return 0;
    case AugmentOperation::kShearX:
    case AugmentOperation::kShearY:
      return Linspace(0, 0.3, bins, index);
    case AugmentOperation::kTranslateX:
      return Linspace(0, 150.0 / 331.0 * width, bins, index);
    case AugmentOperation::kTranslateY:
      return Linspace(0, 150.0 / 331.0 * height, bins, index);
    case AugmentOperation::kRotate:
      return Linspace(0, 30, bins, index);
    case AugmentOperation::kBrightness:
    case AugmentOperation::kColor:
    case AugmentOperation::kContrast:
    case AugmentOperation::kSharpness:
      return Linspace(0, 0.9, bins, index);
    case AugmentOperation::kPosterize:
      return 8 - std::nearbyint(static_cast<float>(index) / static_cast<float>((bins - 1) / 4.0));
    case AugmentOperation::kSolarize:
      return Linspace(255, 0, bins, index);
  }
  return 0;
}

bool HasSign(AugmentOperation operation) {
  return operation >= AugmentOperation::kShearX && operation <= AugmentOperation::kSharpness;
}

void ApplyOperation(AugmentOperation operation, double magnitude, ResampleFilter filter,
                    Planes& image, Planes& scratch) {
  switch (operation) {
    case AugmentOperation::kIdentity:
      return;
    case AugmentOperation::kShearX:
      return Transform(image, ShearX(magnitude), filter, scratch);
    case AugmentOperation::kShearY:
      return Transform(image, ShearY(magnitude), filter, scratch);
    case AugmentOperation::kTranslateX:
      return Transform(image, Translate(std::trunc(magnitude), 0), filter, scratch);
    case AugmentOperation::kTranslateY:
      return Transform(image, Translate(0, std::trunc(magnitude)), filter, scratch);
    case AugmentOperation::kRotate:
      return Transform(image, Rotate(magnitude, image.width, image.height), filter, scratch);
    case AugmentOperation::kBrightness:
      return AdjustBrightness(image, 1 + magnitude);
    case AugmentOperation::kColor:
      return AdjustSaturation(image, 1 + magnitude);
    case AugmentOperation::kContrast:
      return AdjustContrast(image, 1 + magnitude);
    case AugmentOperation::kSharpness:
      return AdjustSharpness(image, 1 + magnitude, scratch);
    case AugmentOperation::kPosterize:
      return Posterize(image, static_cast<int>(magnitude));
    case AugmentOperation::kSolarize:
      return Solarize(image, magnitude);
    case AugmentOperation::kAutoContrast:
      return AutoContrast(image);
    case AugmentOperation::kEqualize:
      return Equalize(image);
  }
}

void RandAugmentImage(const v1::RandAugment& spec, TransformDraws draws, Planes& image,
                      Planes& scratch) {
  for (int i = 0; i < spec.operations(); ++i) {
    const auto operation = static_cast<AugmentOperation>(draws.Below(kAugmentOperations));
    const bool is_negative = draws.Below(2) != 0 && HasSign(operation);
    const double magnitude =
        MagnitudeOf(operation, spec.magnitude(), spec.magnitude_bins(), image.width, image.height);
    ApplyOperation(operation, is_negative ? -magnitude : magnitude, FilterOf(spec.interpolation()),
                   image, scratch);
  }
}

}  // namespace muster
