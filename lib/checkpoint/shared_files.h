// The files of a checkpoint that another process has laid out and will commit. A member uses this
// to write its part of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/checkpoint/disk_file.h"
#include "proto/muster/v1/checkpoint.pb.h"

namespace muster {

// The process that says where to write is not trusted with more than that. Only existing data files
// are opened: in a temporary folder of this job and step, below a root that the member's own
// operator has set. Opening creates, extends or truncates no file. Movable. Not thread-safe. The
// destructor closes the files.
class SharedFiles {
 public:
  struct Options {
    std::string root;  // path of the coordinator's folder of all jobs
    std::string job;   // id
    int64_t step = 0;
  };
  // Returns INVALID_ARGUMENT if the coordinator names other files than these. Any other error is
  // the volume's, and says what the root must be.
  static absl::StatusOr<SharedFiles> Open(const Options& options,
                                          const v1::WriteShardDirectResponse& layout);

  absl::Status WriteAt(int file, int64_t offset, absl::Span<const std::byte> data);
  // Blocks until all written bytes are on the device.
  absl::Status Sync();
  // The number of bytes written since the last Sync().
  int64_t unsynced_bytes() const { return unsynced_bytes_; }

 private:
  explicit SharedFiles(std::vector<DiskFile> files)
      : files_(std::move(files)), touched_(files_.size()) {}

  std::vector<DiskFile> files_;
  std::vector<char> touched_;  // written since the last sync
  int64_t unsynced_bytes_ = 0;
};

}  // namespace muster
