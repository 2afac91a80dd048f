// Reads the files of a checkpoint for a download.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/checkpoint/disk_file.h"
#include "proto/muster/v1/checkpoint.pb.h"

namespace muster {

// Returns pieces of at most limits::kReadChunkBytesMax, the manifest last. Holds the files open, so
// a download succeeds even if the checkpoint is pruned meanwhile. Not thread-safe.
class CheckpointFiles {
 public:
  // Only files that the checkpoint lists can be read. Returns NOT_FOUND (reason "FILE_NOT_FOUND")
  // for any other name or path, or (reason "CHECKPOINT_NOT_FOUND") if a listed file is gone.
  // Returns INVALID_ARGUMENT for an offset without a file or outside of the file.
  static absl::StatusOr<CheckpointFiles> Open(const v1::Checkpoint& checkpoint,
                                              const v1::ReadCheckpointRequest& request);

  // Returns the next piece; nullopt after the last one. An empty file is one empty piece.
  absl::StatusOr<std::optional<v1::ReadCheckpointResponse>> Next();

 private:
  struct File {
    std::string name;
    int64_t bytes = 0;
    DiskFile content;
  };
  CheckpointFiles(std::vector<File> files, int64_t offset)
      : files_(std::move(files)), offset_(offset) {}

  std::vector<File> files_;
  size_t file_ = 0;
  int64_t offset_ = 0;
};

}  // namespace muster
