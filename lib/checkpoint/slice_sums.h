// What writers say of the slices that they have put into one file, held against the file.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "lib/checkpoint/disk_file.h"

namespace muster {

// Not thread-safe. Sixteen bytes and a key for each slice.
class SliceSums {
 public:
  // `bytes` at `offset` of the file have this CRC-32C. What was said of the same offset before
  // counts no more.
  void Add(int64_t offset, int64_t bytes, uint32_t crc32c);

  // Reads the file once, from its beginning to its end: its SHA-256, lower-case hex. DATA_LOSS
  // (reason "DIRECT_MISMATCH") names the file and the first slice that is not as it was said.
  absl::StatusOr<std::string> VerifyAndHash(const DiskFile& file) const;

 private:
  struct Slice {
    int64_t bytes = 0;
    uint32_t crc32c = 0;
  };
  absl::btree_map<int64_t, Slice> slices_;  // by offset
};

}  // namespace muster
