// Decodes PNG files.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/data/image/decode/image.h"

namespace muster {

// Returns the size of a PNG file, from its header.
absl::StatusOr<ImageSize> PngSize(absl::Span<const std::byte> file);

// Decodes a whole PNG file of any kind into `to`, in 1 or 3 channels, as Pillow's convert("L") and
// convert("RGB") do: alpha is dropped. INVALID_ARGUMENT if the file is damaged or has more than
// kImagePixelsMax pixels.
absl::Status DecodePng(absl::Span<const std::byte> file, int channels, Image& to);

}  // namespace muster
