// Places crops in images, as torchvision 0.19 does.
#pragma once

#include "lib/data/image/decode/image.h"
#include "lib/data/image/transform_draws.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Specs have their defaults, see WithImageDefaults().

// Returns a region of random area and ratio within the image.
Region DrawResizedCrop(const v1::RandomResizedCrop& spec, const ImageSize& image,
                       TransformDraws draws);

// Returns a region of the spec's size in the image with its padding. It may reach beyond the image.
// An empty region: the image is too small.
Region DrawCrop(const v1::RandomCrop& spec, const ImageSize& image, TransformDraws draws);

// Returns the region of that size in the middle. It reaches beyond an image that is smaller.
Region CenterRegion(const ImageSize& image, const ImageSize& crop);

// Returns the size of `image` after its shorter side is resized to `side`. A side is at most 2^30.
ImageSize WithShorterSide(const ImageSize& image, int side);

}  // namespace muster
