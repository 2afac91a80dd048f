#include "lib/data/image/decode/image_decoder.h"

#include "glog/logging.h"
#include "lib/data/image/decode/png_decoder.h"
#include "lib/data/image/decode/webp_decoder.h"
#include "lib/status/status.h"

namespace muster {

absl::StatusOr<ImageSize> ImageDecoder::Open(absl::Span<const std::byte> file) {
  ASSIGN_OR_RETURN(format_, SniffImage(file));
  file_ = file;
  switch (format_) {
    case ImageFormat::kJpeg:
      return jpeg_.Open(file);
    case ImageFormat::kPng:
      return PngSize(file);
    case ImageFormat::kWebp:
      return WebpSize(file);
  }
  LOG(FATAL) << "no image format";
}

absl::Status ImageDecoder::Decode(const Region& region, int channels, Image& to) {
  switch (format_) {
    case ImageFormat::kJpeg:
      return jpeg_.Decode(region, channels, to);
    case ImageFormat::kPng:
      return DecodePng(file_, channels, to);
    case ImageFormat::kWebp:
      return DecodeWebp(file_, channels, to);
  }
  LOG(FATAL) << "no image format";
}

}  // namespace muster
