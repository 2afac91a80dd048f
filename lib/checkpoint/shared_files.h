// The files of a checkpoint that another process has laid out and will commit, for a member that
// writes its part of them itself.
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

// Whoever says where to write does not say what else may be written: only data files that are
// there, in a temporary folder of this job and step, below a root that the member's own operator
// has named. Nothing is made, made longer or cut off. Movable; not thread-safe; closes the files.
class SharedFiles {
 public:
  struct Options {
    std::string root;  // what the coordinator calls the folder of all jobs
    std::string job;   // id
    int64_t step = 0;
  };
  // INVALID_ARGUMENT: the coordinator names something else than such files. Any other error is that
  // of the volume, and says what the root has to be.
  static absl::StatusOr<SharedFiles> Open(const Options& options,
                                          const v1::WriteShardDirectResponse& layout);

  absl::Status WriteAt(int file, int64_t offset, absl::Span<const std::byte> data);
  // Returns once all that was written is on the device.
  absl::Status Sync();
  // Written and not synced.
  int64_t unsynced_bytes() const { return unsynced_bytes_; }

 private:
  explicit SharedFiles(std::vector<DiskFile> files)
      : files_(std::move(files)), touched_(files_.size()) {}

  std::vector<DiskFile> files_;
  std::vector<char> touched_;  // since the last sync
  int64_t unsynced_bytes_ = 0;
};

}  // namespace muster
