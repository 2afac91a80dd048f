#include "lib/data/image/crop.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace muster {
namespace {

// Python rounds halves to even numbers.
int RoundHalfEven(double value) { return static_cast<int>(std::nearbyint(value)); }

// Returns the first pixel of the crop along one axis. torchvision pads a smaller image, with the
// smaller half first, and then crops the middle.
int CenterStart(int image, int crop) {
  if (crop > image) return -((crop - image) / 2);
  return RoundHalfEven((image - crop) / 2.0);
}

}  // namespace

Region DrawResizedCrop(const v1::RandomResizedCrop& spec, const ImageSize& image,
                       TransformDraws draws) {
  const double area = static_cast<double>(image.width) * image.height;
  const double log_min = std::log(spec.ratio_min()), log_max = std::log(spec.ratio_max());
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * draws.Uniform(spec.scale_min(), spec.scale_max());
    const double ratio = std::exp(draws.Uniform(log_min, log_max));
    const int width = RoundHalfEven(std::sqrt(target * ratio));
    const int height = RoundHalfEven(std::sqrt(target / ratio));
    if (width < 1 || width > image.width || height < 1 || height > image.height) continue;
    const int top = draws.Below(int64_t{image.height} - height + 1);
    const int left = draws.Below(int64_t{image.width} - width + 1);
    return {.left = left, .top = top, .width = width, .height = height};
  }
  // The middle, with the nearest ratio that is allowed.
  const double ratio = static_cast<double>(image.width) / image.height;
  ImageSize size = image;
  if (ratio < spec.ratio_min()) {
    size.height = RoundHalfEven(image.width / spec.ratio_min());
  } else if (ratio > spec.ratio_max()) {
    size.width = RoundHalfEven(image.height * spec.ratio_max());
  }
  size = {std::max(1, size.width), std::max(1, size.height)};
  return {.left = (image.width - size.width) / 2,
          .top = (image.height - size.height) / 2,
          .width = size.width,
          .height = size.height};
}

Region DrawCrop(const v1::RandomCrop& spec, const ImageSize& image, TransformDraws draws) {
  const int padding = spec.padding();
  const int64_t rows = int64_t{image.height} + 2 * padding - spec.height() + 1;
  const int64_t columns = int64_t{image.width} + 2 * padding - spec.width() + 1;
  if (rows < 1 || columns < 1) return {};
  const int top = draws.Below(rows) - padding;
  const int left = draws.Below(columns) - padding;
  return {.left = left, .top = top, .width = spec.width(), .height = spec.height()};
}

Region CenterRegion(const ImageSize& image, const ImageSize& crop) {
  return {.left = CenterStart(image.width, crop.width),
          .top = CenterStart(image.height, crop.height),
          .width = crop.width,
          .height = crop.height};
}

ImageSize WithShorterSide(const ImageSize& image, int side) {
  const bool is_upright = image.width <= image.height;
  const int64_t shorter = is_upright ? image.width : image.height;
  const int64_t longer = is_upright ? image.height : image.width;
  const double scaled = static_cast<double>(side * longer) / static_cast<double>(shorter);
  const int other = static_cast<int>(std::min(scaled, 0x1p30));
  return is_upright ? ImageSize{side, other} : ImageSize{other, side};
}

}  // namespace muster
