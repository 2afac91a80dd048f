// Changes colors and shapes of images, as torchvision 0.19 does on Pillow's images.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "lib/data/image/decode/image.h"
#include "lib/data/image/resample.h"

namespace muster {

// An image of 1 or 3 channels, one plane after the other: [channels, height, width].
struct Planes {
  int width = 0;
  int height = 0;
  int channels = 0;
  ByteBuffer bytes;

  // The content is undefined.
  void Reserve(int new_width, int new_height, int new_channels) {
    width = new_width;
    height = new_height;
    channels = new_channels;
    bytes.Reserve(int64_t{width} * height * channels);
  }
  int64_t pixels() const { return int64_t{width} * height; }
  uint8_t* plane(int c) { return bytes.data() + c * pixels(); }
  const uint8_t* plane(int c) const { return bytes.data() + c * pixels(); }
};

PixelView ViewOf(const Planes& planes);

// Factor 1 leaves the image as it is, 0 makes it black, gray or blurred.
void AdjustBrightness(Planes& image, double factor);
void AdjustContrast(Planes& image, double factor);
void AdjustSaturation(Planes& image, double factor);
// Uses `scratch` for a copy.
void AdjustSharpness(Planes& image, double factor, Planes& scratch);

// Turns the hue by `factor`, from -0.5 to 0.5, of the circle. A gray image stays.
void AdjustHue(Planes& image, double factor);

// Keeps the upper `bits` of each byte.
void Posterize(Planes& image, int bits);
// Inverts values of at least `threshold`.
void Solarize(Planes& image, double threshold);
// Stretches each channel to 0 to 255.
void AutoContrast(Planes& image);
// Makes the histogram of each channel uniform.
void Equalize(Planes& image);

// Pixel (x, y) of the result is the one at (m[0] x + m[1] y + m[2], m[3] x + m[4] y + m[5]) of the
// image, or black outside.
using AffineMatrix = std::array<double, 6>;

AffineMatrix ShearX(double slope);
AffineMatrix ShearY(double slope);
AffineMatrix Translate(double x, double y);
// Turns counter-clockwise about the center.
AffineMatrix Rotate(double degrees, int width, int height);

// Uses `scratch` for a copy.
void Transform(Planes& image, const AffineMatrix& matrix, ResampleFilter filter, Planes& scratch);

// Makes column x of row y the pixel that EXIF orientation 1 to 8 says.
void Orient(Planes& image, int orientation, Planes& scratch);

}  // namespace muster
