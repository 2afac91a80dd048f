// Decompresses streams of untrusted bytes.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "lib/data/file/data_file.h"
#include "lib/data/format/compression.h"

namespace muster {

using TakeBytes = absl::FunctionRef<absl::Status(absl::string_view bytes)>;

// Calls `take` with the content of a file, piece by piece. Takes a fixed amount of memory. Returns
// DATA_DAMAGED or DATA_TRUNCATED for a faulty stream, and the first error of `take`. Requires:
// kGzip (also of several members) or kZstd (also of several frames).
absl::Status Decompress(const DataFile& file, Compression compression, TakeBytes take);

// Calls `take` with the content of a deflated member of a zip archive, which has `stored_bytes` at
// `offset`. It must have `bytes` and the CRC-32 `crc`.
absl::Status Inflate(const DataFile& file, int64_t offset, int64_t stored_bytes, int64_t bytes,
                     uint32_t crc, TakeBytes take);

}  // namespace muster
