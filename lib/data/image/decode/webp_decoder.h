// Decodes WebP files.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/data/image/decode/image.h"

namespace muster {

// Returns the size of a WebP file, from its header. INVALID_ARGUMENT if it is animated.
absl::StatusOr<ImageSize> WebpSize(absl::Span<const std::byte> file);

// Decodes a whole WebP file into `to`, in 1 or 3 channels. Alpha is dropped. INVALID_ARGUMENT if
// the file is damaged.
absl::Status DecodeWebp(absl::Span<const std::byte> file, int channels, Image& to);

}  // namespace muster
