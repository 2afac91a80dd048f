// Collective operations between devices: the ranks of one node, or of several processes.
#pragma once

#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/collective/typed_buffer.h"

namespace muster {

// The stream on which an operation runs: a cudaStream_t as void*. Null on the CPU, where every
// operation is finished when the call returns.
using CollectiveStream = void*;

// One rank of a group. All ranks call the same operations with the same sizes in the same order,
// each on its own thread. Thread-compatible, except Abort().
//
// An operation works on elements of one type: f32, bf16, f16 or f64. All buffers of an operation
// have that type, on all ranks. They lie on the rank's device. A buffer may have no elements.
//
// Sums:
// - SharedMemoryCommunicator adds in rank order, f64 in f64 and every other type in f32. It rounds
//   16-bit sums once, to the nearest, ties to even. Sums that are too large become infinite.
// - NCCL chooses the order, and may round 16-bit sums after each addition.
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

  // data = the sum over all ranks, in place. Any number of elements.
  virtual absl::Status AllReduce(TypedBuffer data, CollectiveStream stream) = 0;

  // slice = slice `rank()` of the sum over all ranks. `data` is divided into world_size() equal
  // slices. `slice` may be the rank's own slice of `data`, but must not overlap the others.
  virtual absl::Status ReduceScatter(ConstTypedBuffer data, TypedBuffer slice,
                                     CollectiveStream stream) = 0;

  // data = the slices of all ranks in rank order. `slice` may be the rank's own slice of `data`.
  virtual absl::Status AllGather(ConstTypedBuffer slice, TypedBuffer data,
                                 CollectiveStream stream) = 0;

  // data = the data of rank `root`.
  virtual absl::Status Broadcast(TypedBuffer data, int root, CollectiveStream stream) = 0;

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
