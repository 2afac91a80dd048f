// Resizes images with the bits of Pillow.
//   Source: the resampling of Pillow's Image.resize(): each output is a weighted sum of inputs,
//   first along rows and then along columns, with weights in units of 2^-22. A reduced image is
//   filtered over all its inputs (antialiasing).
#pragma once

#include <cstdint>
#include <vector>

#include "lib/data/image/decode/image.h"

namespace muster {

enum class ResampleFilter { kNearest, kBilinear, kBicubic };

// Pixels in memory: channel c of column x, row y is data[y * row + x * pixel + c * channel].
struct PixelView {
  const uint8_t* data = nullptr;
  int64_t row = 0;
  int64_t pixel = 0;
  int64_t channel = 0;
  int channels = 0;
};

// Returns the view of interleaved pixels from column `left`, row `top` of `image.region` on.
PixelView ViewOf(const Image& image, int left, int top);

// The pixels in `window` of an image that is resized from `from` to `to`, then flipped.
struct ResampleOptions {
  ImageSize from;
  ImageSize to;
  Region window;
  ResampleFilter filter = ResampleFilter::kBilinear;
  bool is_flipped_horizontally = false;
  bool is_flipped_vertically = false;
};

// Keeps memory between calls. Not thread-safe.
class Resampler {
 public:
  // Returns the pixels of the original that Resample() reads.
  static Region Source(const ResampleOptions& options);

  // Writes [channels, window height, window width] to `to`. `from` views the pixels from the corner
  // of Source() on. ByteBuffer::kSlackBytes behind the last one must be readable.
  void Resample(const ResampleOptions& options, const PixelView& from, uint8_t* to);

  // Frees memory of more than `bytes`.
  void Trim(int64_t bytes);

 private:
  struct Axis {
    std::vector<int32_t> starts;
    std::vector<int32_t> counts;
    std::vector<int32_t> weights;
    int64_t stride = 0;
  };

  // The storage of kernels::RgbTaps.
  struct RgbAxis {
    std::vector<int32_t> starts;
    std::vector<int16_t> parts;
    int64_t pairs = 0;
  };

  static void ComputeTaps(int from, int to, int first, int count, ResampleFilter filter,
                          Axis& axis);
  static void SplitWeights(const Axis& axis, RgbAxis& rgb);
  void Nearest(const ResampleOptions& options, const PixelView& from, uint8_t* to);
  void Copy(const ResampleOptions& options, const PixelView& from, uint8_t* to);

  Axis columns_;
  RgbAxis rgb_columns_;
  Axis rows_;
  ByteBuffer resampled_rows_;
};

}  // namespace muster
