// Records the GPUs that this process has lost, and describes where in a run a GPU failed.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace muster {

// Some GPU errors are permanent: a kernel writes to unmapped memory, or a GPU falls off its bus.
// Every later call of the process on that GPU returns the error, and only a new process can use the
// GPU again. This class remembers such errors for later jobs. Thread-safe.
class DeviceFaults {
 public:
  // Records that `device` ("cuda:0") is lost because of `why`; the first reason is kept. Returns
  // INTERNAL, reason "DEVICE_LOST", with what to do: the error of the job that was running.
  absl::Status Lose(absl::string_view device, absl::string_view why) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns OK unless `device` was lost. Otherwise returns INTERNAL, reason "DEVICE_LOST", for a
  // later job that needs it.
  absl::Status Check(absl::string_view device) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  std::map<std::string, std::string> lost_ ABSL_GUARDED_BY(mu_);  // reason of each lost device
};

// The progress of a run when its GPU failed. A run is cut into segments, and the GPU reports each
// segment that it has finished.
struct RunProgress {
  absl::Span<const std::string> nodes;  // "'h0/qkv' (Linear)", in the order of execution
  absl::Span<const int> segment_ends;   // one past the last node of each segment
  int64_t finished_segments = 0;
  int node = -1;  // the node that failed; -1: unknown
};

// Returns a description for an error message.
//   "in node 'h0/qkv' (Linear)"
//   "in one of 37 nodes, from 'h0/qkv' (Linear) to 'h3/mlp' (LinearGelu); to learn in which, ..."
//   "after the last node, where gradients and results leave the GPU"
//   "before the first node", if there are no segments yet
std::string WhereItFailed(const RunProgress& progress);

}  // namespace muster
