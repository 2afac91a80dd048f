// Collectives between GPUs, by NCCL. The library is loaded when the first group is created, so a
// program linked with this also runs without NCCL.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/collective/communicator.h"

namespace muster {

// State shared by the ranks of this process: NCCL's unique id, and the progress of each rank, so
// that errors can name a rank that hangs. Thread-safe. Outlives its communicators.
class NcclGroup {
 public:
  // Creates a group. Returns UNAVAILABLE if NCCL cannot be loaded, or the program was built without
  // CUDA.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Create(
      int world_size, absl::Duration timeout = absl::Minutes(10));

  // Opens a group that another process has created: `id` is its id().
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Open(
      std::string id, int world_size, absl::Duration timeout = absl::Minutes(10));

  // Returns the version of NCCL as a number, for example 22703. Requires: a group was created.
  static int LibraryVersion();

  // The bytes that the other processes need to open the group.
  const std::string& id() const { return id_; }
  int world_size() const { return world_size_; }

  // Makes the calling thread's current GPU `rank` of the group. Blocks until every rank has joined,
  // each on its own thread. After that every operation is enqueued on a stream of that GPU and
  // returns at once. Returns DEADLINE_EXCEEDED (reason COLLECTIVE_TIMEOUT) if not all ranks join in
  // time. If NCCL reports an asynchronous error, or a wait for another rank takes longer than
  // `timeout`, this rank aborts the group and its own communicator.
  absl::StatusOr<std::unique_ptr<Communicator>> Join(int rank);

  // Calls Communicator::Abort for every rank of this process.
  void Abort(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Member;
  struct Rank {
    std::atomic<int64_t> enqueued = -1;  // operations; -1: in another process, or not yet joined
  };

  NcclGroup(std::string id, int world_size, absl::Duration timeout);

  absl::Status aborted() const ABSL_LOCKS_EXCLUDED(mu_);
  std::string RanksBehind(int64_t operations) const;

  const std::string id_;
  const int world_size_;
  const absl::Duration timeout_;
  std::vector<Rank> ranks_;
  std::atomic<bool> is_aborted_ = false;
  mutable absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
