// Finds the format of an image by its first bytes. Names and suffixes of files are often wrong.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace muster {

enum class ImageFormat { kJpeg, kPng, kWebp };

// Returns INVALID_ARGUMENT for every other format. The message names GIF, BMP and TIFF.
absl::StatusOr<ImageFormat> SniffImage(absl::Span<const std::byte> file);

}  // namespace muster
