#include "lib/data/image/decode/sniff.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace muster {
namespace {

absl::Status Unsupported(absl::string_view format) {
  return absl::InvalidArgumentError(
      absl::StrCat("the image is a ", format, " file; convert it to JPEG, PNG or WebP"));
}

}  // namespace

absl::StatusOr<ImageFormat> SniffImage(absl::Span<const std::byte> file) {
  const absl::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
  if (bytes.empty()) return absl::InvalidArgumentError("the image has no bytes");
  if (absl::StartsWith(bytes, "\xff\xd8\xff")) return ImageFormat::kJpeg;
  if (absl::StartsWith(bytes, "\x89PNG\r\n\x1a\n")) return ImageFormat::kPng;
  if (bytes.substr(0, 4) == "RIFF" && bytes.size() >= 12 && bytes.substr(8, 4) == "WEBP") {
    return ImageFormat::kWebp;
  }
  if (absl::StartsWith(bytes, "GIF8")) return Unsupported("GIF");
  if (absl::StartsWith(bytes, "BM")) return Unsupported("BMP");
  if (absl::StartsWith(bytes, absl::string_view("II*\0", 4)) ||
      absl::StartsWith(bytes, absl::string_view("MM\0*", 4))) {
    return Unsupported("TIFF");
  }
  return absl::InvalidArgumentError("the image is not a JPEG, PNG or WebP file");
}

}  // namespace muster
