// Decodes JPEG files, whole or in part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/data/image/decode/image.h"

namespace muster {

// Uses the integer DCT and fancy upsampling, so that the pixels are the same on every machine. CMYK
// becomes RGB as in Pillow. Damage that libjpeg warns about is an error. Not thread-safe.
class JpegDecoder {
 public:
  static constexpr int kScansMax = 100;  // of a progressive file
  // The limit for the coefficients of a file with several scans, which libjpeg holds all at once.
  // 178 million pixels fit, with chroma at half their size.
  static constexpr int64_t kCoefficientBytesMax = int64_t{512} << 20;

  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Reads the header of `file`, which must exist until Decode() returns. INVALID_ARGUMENT if it is
  // damaged, has more than kImagePixelsMax pixels, or several scans with more coefficients than
  // kCoefficientBytesMax.
  absl::StatusOr<ImageSize> Open(absl::Span<const std::byte> file);

  // Returns the orientation of the opened file's EXIF, 1 to 8. 1 if it has none.
  int Orientation() const;

  // Decodes at least `region` of the opened file into `to`, in 1 or 3 channels. The pixels of
  // `region` are those of a full decode. Bytes behind the region are not checked. Called once after
  // each Open().
  absl::Status Decode(const Region& region, int channels, Image& to);

  // Decodes the whole file at 1/2, 1/4 or 1/8 of its size, rounded up. Called instead of Decode().
  absl::Status DecodeScaled(int denominator, int channels, Image& to);

 private:
  struct State;
  absl::Status Finish(const Region& region, int channels, Image& to);

  const std::unique_ptr<State> state_;
};

}  // namespace muster
