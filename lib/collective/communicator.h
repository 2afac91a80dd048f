// Collective operations between devices: the ranks of one node, or of several processes.
#pragma once

#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster {

// The stream on which an operation runs: a cudaStream_t as void*. Null on the CPU, where every
// operation is finished when the call returns.
using CollectiveStream = void*;

// One rank of a group. All ranks call the same operations with the same sizes in the same order,
// each on its own thread. Thread-compatible, except Abort().
//
// Errors are final: every later call returns the first one.
// - DEADLINE_EXCEEDED, reason COLLECTIVE_TIMEOUT: names the operation and the ranks that did not
//   come.
// - INTERNAL: an error of the underlying library.
// - The status given to Abort(), unchanged.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // data = the sum over all ranks; SharedMemoryCommunicator adds in rank order. f32[n] on the
  // rank's device, in place.
  virtual absl::Status AllReduce(absl::Span<float> data, CollectiveStream stream) = 0;

  // slice = slice `rank()` of the sum over all ranks. `data` is divided into world_size() equal
  // slices. `slice` may be the rank's own slice of `data`, but must not overlap the others.
  virtual absl::Status ReduceScatter(absl::Span<const float> data, absl::Span<float> slice,
                                     CollectiveStream stream) = 0;

  // data = the slices of all ranks in rank order. `slice` may be the rank's own slice of `data`.
  virtual absl::Status AllGather(absl::Span<const float> slice, absl::Span<float> data,
                                 CollectiveStream stream) = 0;

  // data = the data of rank `root`.
  virtual absl::Status Broadcast(absl::Span<float> data, int root, CollectiveStream stream) = 0;

  // Blocks until `finished` returns true. Polls it; it is typically an event after operations on a
  // stream. Returns an error of `finished`, or the error of the group as soon as there is one. With
  // NCCL the wait is an error after the group's timeout. `what` names the awaited work in errors:
  // "the sum of bucket 3".
  virtual absl::Status Await(absl::string_view what,
                             absl::FunctionRef<absl::StatusOr<bool>()> finished) = 0;

  // Releases every waiting rank, in this process and, as far as they can be reached, in others.
  // Also ends all later calls. `why` must be an error; the first one counts. May be called on any
  // thread.
  virtual void Abort(absl::Status why) = 0;

  // Calls Abort(), and ends this rank's operations now, finished or not, so that their streams can
  // be awaited. A rank that another one has aborted ends its own operations in its next call.
  virtual void Leave(absl::Status why) { Abort(std::move(why)); }
};

}  // namespace muster
