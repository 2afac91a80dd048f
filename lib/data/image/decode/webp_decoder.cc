#include "lib/data/image/decode/webp_decoder.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"
#include "webp/decode.h"

namespace muster {
namespace {

const uint8_t* BytesOf(absl::Span<const std::byte> file) {
  return reinterpret_cast<const uint8_t*>(file.data());
}

}  // namespace

absl::StatusOr<ImageSize> WebpSize(absl::Span<const std::byte> file) {
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(BytesOf(file), file.size(), &features) != VP8_STATUS_OK) {
    return absl::InvalidArgumentError("WebP: the header is damaged");
  }
  if (features.has_animation) {
    return absl::InvalidArgumentError("WebP: the file is animated; store its frames as images");
  }
  if (int64_t{features.width} * features.height > kImagePixelsMax) {
    return absl::InvalidArgumentError(absl::StrCat("WebP: ", features.width, " x ", features.height,
                                                   " pixels are more than ", kImagePixelsMax));
  }
  return ImageSize{features.width, features.height};
}

absl::Status DecodeWebp(absl::Span<const std::byte> file, int channels, Image& to) {
  ASSIGN_OR_RETURN(const ImageSize size, WebpSize(file));
  uint8_t* const rows = to.Reserve({.width = size.width, .height = size.height}, 3);
  const size_t bytes = size_t{3} * size.width * size.height;
  if (WebPDecodeRGBInto(BytesOf(file), file.size(), rows, bytes, 3 * size.width) == nullptr) {
    return absl::InvalidArgumentError("WebP: the file is damaged or cut off");
  }
  if (channels == 1) ToLuminance(to);
  return absl::OkStatus();
}

}  // namespace muster
