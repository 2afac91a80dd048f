// GPUs that this process has lost, and where in a run that happened.
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

// A kernel that writes where there is no memory, a GPU that falls off its bus: such an error stays.
// Every later call of the process on that GPU returns it, whoever calls, and only a new process can
// use the GPU again. So it is kept here, for the jobs to come. Thread-safe.
class DeviceFaults {
 public:
  // `device` ("cuda:0") is lost: `why`, the first one counts. INTERNAL, reason "DEVICE_LOST", with
  // what to do: the error of the job that was running.
  absl::Status Lose(absl::string_view device, absl::string_view why) ABSL_LOCKS_EXCLUDED(mu_);

  // OK unless `device` was lost; INTERNAL, reason "DEVICE_LOST", for a job that wants it then.
  absl::Status Check(absl::string_view device) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  std::map<std::string, std::string> lost_ ABSL_GUARDED_BY(mu_);  // why, by device
};

// How far a run had come when its GPU failed. A run is cut into segments, and the GPU says when it
// has finished one.
struct RunProgress {
  absl::Span<const std::string> nodes;  // "'h0/qkv' (Linear)", in the order of execution
  absl::Span<const int> segment_ends;   // one past the last node of each segment
  int64_t finished_segments = 0;
  int node = -1;  // the one that failed, where that is known
};

// In words, for an error:
// "in node 'h0/qkv' (Linear)"
// "in one of 37 nodes, from 'h0/qkv' (Linear) to 'h3/mlp' (LinearGelu); to learn in which, ..."
// "after the last node, where gradients and results leave the GPU"
// "before the first node", where there are no segments yet.
std::string WhereItFailed(const RunProgress& progress);

}  // namespace muster
