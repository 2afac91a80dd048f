// The random changes of colors and shapes, with the distributions of torchvision 0.19.
#pragma once

#include <cstdint>

#include "lib/data/image/augment.h"
#include "lib/data/image/transform_draws.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Specs have their defaults, see WithImageDefaults().

void JitterColors(const v1::ColorJitter& spec, TransformDraws draws, Planes& image);

// Uses `scratch` for copies.
void RandAugmentImage(const v1::RandAugment& spec, TransformDraws draws, Planes& image,
                      Planes& scratch);

// The operations of RandAugment, in torchvision's order.
enum class AugmentOperation {
  kIdentity,
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
  kRotate,
  kBrightness,
  kColor,
  kContrast,
  kSharpness,
  kPosterize,
  kSolarize,
  kAutoContrast,
  kEqualize,
};
inline constexpr int kAugmentOperations = 14;

// Returns the magnitude of an operation, without its sign. `index` is in [0, bins).
double MagnitudeOf(AugmentOperation operation, int index, int bins, int width, int height);

// Returns whether the sign of the magnitude is random.
bool HasSign(AugmentOperation operation);

void ApplyOperation(AugmentOperation operation, double magnitude, ResampleFilter filter,
                    Planes& image, Planes& scratch);

ResampleFilter FilterOf(v1::Interpolation interpolation);

}  // namespace muster
