// Collective operations between devices: the ranks of one node, or of several processes.
#pragma once

#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster {

// Where an operation takes its turn: a cudaStream_t as void*. Null on the CPU, where every
// operation is finished when the call returns.
using CollectiveStream = void*;

// One rank of a group. All ranks call the same operations with the same sizes in the same order,
// each on a thread of its own. Thread-compatible but for Abort().
//
// Errors are final: every later call returns the first one. DEADLINE_EXCEEDED, reason
// COLLECTIVE_TIMEOUT, names the operation and the ranks that did not come; an error of the library
// below is INTERNAL; what Abort() was given comes back as it is.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // data = the sum over all ranks, added in rank order where the implementation is
  // SharedMemoryCommunicator. f32[n] on the rank's device, in place.
  virtual absl::Status AllReduce(absl::Span<float> data, CollectiveStream stream) = 0;

  // slice = slice `rank()` of the sum over all ranks. `data` is cut into world_size() equal slices;
  // `slice` may be the rank's own slice of `data`, and overlaps nothing else of it.
  virtual absl::Status ReduceScatter(absl::Span<const float> data, absl::Span<float> slice,
                                     CollectiveStream stream) = 0;

  // data = the slices of all ranks in rank order. `slice` may be the rank's own slice of `data`.
  virtual absl::Status AllGather(absl::Span<const float> slice, absl::Span<float> data,
                                 CollectiveStream stream) = 0;

  // data = that of rank `root`.
  virtual absl::Status Broadcast(absl::Span<float> data, int root, CollectiveStream stream) = 0;

  // Blocks until `finished` holds, which it asks again and again: an event behind operations on a
  // stream. Ends with an error as soon as a rank has failed or hangs, or `finished` fails. `what`
  // is waited for, for the error: "the sum of bucket 3".
  virtual absl::Status Await(absl::string_view what,
                             absl::FunctionRef<absl::StatusOr<bool>()> finished) = 0;

  // Frees every rank that waits, here and (as far as it can be told) elsewhere, now and for ever.
  // `why` is an error; the first one counts. Any thread.
  virtual void Abort(absl::Status why) = 0;

  // Abort(), and this rank's operations end now, finished or not: the streams that they are in can
  // be waited for. A rank that is told to stop by another does so in its next call.
  virtual void Leave(absl::Status why) { Abort(std::move(why)); }
};

}  // namespace muster
