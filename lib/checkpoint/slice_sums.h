// What writers say of the slices that they have put into one file, held against the file.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "lib/checkpoint/disk_file.h"

namespace muster {

// Not thread-safe. Three numbers for each slice.
class SliceSums {
 public:
  // `bytes` at `offset` of the file have this CRC-32C. What was said of just these bytes before
  // counts no more; of others that overlap them it does: a writer that begins anew may cut them
  // otherwise, and writes the same.
  void Add(int64_t offset, int64_t bytes, uint32_t crc32c);

  // Reads the file once, from its beginning to its end: its SHA-256, lower-case hex. DATA_LOSS
  // (reason "DIRECT_MISMATCH") names the file and the first slice that is not as it was said.
  absl::StatusOr<std::string> VerifyAndHash(const DiskFile& file) const;

 private:
  absl::btree_map<std::pair<int64_t, int64_t>, uint32_t> slices_;  // by offset and bytes
};

}  // namespace muster
