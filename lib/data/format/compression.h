// Recognises files that are compressed as a whole. They have no random access, so no source reads
// them.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/data/file/data_file.h"

namespace muster {

enum class Compression { kNone, kGzip, kZstd, kBzip2, kXz, kLz4 };

// Returns the format that the first bytes of a file name.
Compression CompressionOf(absl::Span<const std::byte> first);

absl::string_view CompressionName(Compression compression);  // "gzip", ...; "" for kNone

// Returns DATA_INVALID if the file is compressed. The message has the command that decompresses it:
// "data.csv.path: /data/a.csv.gz: is compressed with gzip, which has no random access; run: muster
// data convert /data/a.csv.gz /data/a.csv". Reads the first bytes of the file.
absl::Status CheckUncompressed(const DataFile& file, absl::string_view field);

// Returns that fault for a file `path` that begins with the bytes `first`.
absl::Status CheckUncompressed(absl::Span<const std::byte> first, absl::string_view path,
                               absl::string_view field);

}  // namespace muster
