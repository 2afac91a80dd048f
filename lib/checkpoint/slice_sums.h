// The checksums that writers announce for their slices of one file, compared with the file.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "lib/checkpoint/disk_file.h"

namespace muster {

// Not thread-safe. Stores three numbers per slice.
class SliceSums {
 public:
  // Announces that `bytes` at `offset` of the file have this CRC-32C. Replaces an announcement for
  // exactly the same bytes. Announcements for overlapping bytes stay: a writer that starts again
  // may cut its slices in another way, but writes the same bytes.
  void Add(int64_t offset, int64_t bytes, uint32_t crc32c);

  // Reads the file once from beginning to end, and returns its SHA-256 in lower-case hex. Returns
  // DATA_LOSS (reason "DIRECT_MISMATCH") with the file and the first slice that differs from its
  // announcement.
  absl::StatusOr<std::string> VerifyAndHash(const DiskFile& file) const;

 private:
  absl::btree_map<std::pair<int64_t, int64_t>, uint32_t> slices_;  // by offset and bytes
};

}  // namespace muster
