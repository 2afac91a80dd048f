// Delays decoding and resizing until it is known which pixels are needed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/data/image/augment.h"
#include "lib/data/image/decode/image.h"
#include "lib/data/image/decode/image_decoder.h"
#include "lib/data/image/resample.h"

namespace muster {

// Memory of one thread, for one image at a time.
struct ImageScratch {
  ImageDecoder decoder;
  Image decoded;
  Planes planes;
  Planes copy;
  Resampler resampler;

  // Frees what an unusually large image needed.
  void Trim();
};

struct LazyImageOptions {
  int channels = 3;
  bool is_fast = false;  // decodes JPEG files at a part of their size
  bool use_exif_orientation = false;
};

// An image file and the crop, resize and flip that wait. They become one step that decodes the
// pixels it needs and writes planes. Another change makes the planes first. Errors are
// INVALID_ARGUMENT. Not thread-safe.
class LazyImage {
 public:
  LazyImage(ImageScratch& scratch, const LazyImageOptions& options)
      : scratch_(scratch), options_(options) {}

  // Reads the header of `file`, which must exist as long as this object.
  absl::Status Open(absl::Span<const std::byte> file);

  // Returns the size after the changes so far.
  const ImageSize& size() const { return size_; }

  // Keeps `region`. Pixels outside the image are black.
  absl::Status Crop(const Region& region);
  // A side may shrink to 1/2048 at most.
  absl::Status Resize(const ImageSize& to, ResampleFilter filter);
  void FlipHorizontally() { is_flipped_horizontally_ ^= true; }
  void FlipVertically() { is_flipped_vertically_ ^= true; }

  // Makes the planes, for changes of another kind. They may change their pixels but not their size.
  absl::Status Materialize();
  Planes& planes() { return scratch_.planes; }
  Planes& copy() { return scratch_.copy; }

  // Writes [channels, height, width].
  absl::Status Write(uint8_t* to);

 private:
  void Reset(const ImageSize& size);
  absl::Status Decode(const Region& region, PixelView& view);
  absl::Status DecodeScaled(int denominator, ResampleOptions& options, PixelView& view);
  int DenominatorFor(const ResampleOptions& options) const;
  absl::Status Pad(const Region& region);

  ImageScratch& scratch_;
  const LazyImageOptions options_;
  ImageSize size_;
  bool is_decoded_ = false;  // scratch_.planes has the picture

  // The changes that wait: crop_ becomes resized_ pixels, window_ of them remains, then it flips.
  Region crop_;
  ImageSize resized_;
  Region window_;
  ResampleFilter filter_ = ResampleFilter::kBilinear;
  bool is_resized_ = false;
  bool is_flipped_horizontally_ = false;
  bool is_flipped_vertically_ = false;
};

}  // namespace muster
