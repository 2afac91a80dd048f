// Who may start and end processes of a local cluster: one program at a time.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace muster::cli {

// Held from Take() until it is destroyed or the process ends, however it ends. Two that start what
// has ended at the same time would start it twice.
class ClusterLock {
 public:
  // Makes the folder if it is missing. FAILED_PRECONDITION (reason "CLUSTER_BUSY"), naming the
  // process that holds it and what that does; INVALID_ARGUMENT if the folder cannot be made or
  // written, RESOURCE_EXHAUSTED if the disk is full.
  // `purpose`: what this program does with it, "muster local up".
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
