// Decodes images of every supported format.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/data/image/decode/image.h"
#include "lib/data/image/decode/jpeg_decoder.h"
#include "lib/data/image/decode/sniff.h"

namespace muster {

// Finds the format of a file by its content. Errors are INVALID_ARGUMENT. Not thread-safe.
class ImageDecoder {
 public:
  // Reads the header of `file`, which must exist until it is decoded.
  absl::StatusOr<ImageSize> Open(absl::Span<const std::byte> file);

  ImageFormat format() const { return format_; }

  // Returns the EXIF orientation of the opened file, 1 to 8. Only JPEG files have one.
  int Orientation() const { return format_ == ImageFormat::kJpeg ? jpeg_.Orientation() : 1; }

  // Decodes at least `region` of the opened file into `to`, in 1 or 3 channels. The pixels are
  // those of a full decode. Called once after each Open().
  absl::Status Decode(const Region& region, int channels, Image& to);

  // Decodes a JPEG file at 1/2, 1/4 or 1/8 of its size, rounded up. Called instead of Decode().
  absl::Status DecodeScaled(int denominator, int channels, Image& to) {
    return jpeg_.DecodeScaled(denominator, channels, to);
  }

 private:
  JpegDecoder jpeg_;
  ImageFormat format_ = ImageFormat::kJpeg;
  absl::Span<const std::byte> file_;
};

}  // namespace muster
