// The lock that allows one program at a time to start and end processes of a local cluster.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace muster::cli {

// An exclusive lock on the folder of a local cluster, held from Take() until it is destroyed or the
// process ends. Without it, two programs could both restart the same member.
class ClusterLock {
 public:
  // Takes the lock. Makes the folder if it is missing. `purpose` is the command that takes it,
  // "muster local up"; other programs print it. Does not block.
  //
  // Returns FAILED_PRECONDITION (reason "CLUSTER_BUSY"), which names the holder and its purpose, if
  // another process holds the lock. Returns INVALID_ARGUMENT if the folder cannot be made or
  // written, RESOURCE_EXHAUSTED if the disk is full, UNAVAILABLE if the file cannot be locked.
  static absl::StatusOr<std::unique_ptr<ClusterLock>> Take(const std::string& dir,
                                                           const std::string& purpose);
  ~ClusterLock();
  ClusterLock(const ClusterLock&) = delete;
  ClusterLock& operator=(const ClusterLock&) = delete;

 private:
  explicit ClusterLock(int file) : file_(file) {}

  const int file_;
};

}  // namespace muster::cli
