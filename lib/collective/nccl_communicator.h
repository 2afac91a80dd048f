// Collectives between GPUs, by NCCL. The library is loaded when a group is first made: a program
// linked with this runs where there is none.
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

// What the ranks of this process share: NCCL's unique id and how far each rank has come, so that
// one that hangs can be named. Thread-safe. Outlives its communicators.
class NcclGroup {
 public:
  // A new group. UNAVAILABLE where NCCL cannot be loaded, or the program was built without CUDA.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Create(
      int world_size, absl::Duration timeout = absl::Minutes(10));

  // One that another process has created: `id` is its id().
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Open(
      std::string id, int world_size, absl::Duration timeout = absl::Minutes(10));

  // Bytes for the other processes of the group.
  const std::string& id() const { return id_; }
  int world_size() const { return world_size_; }

  // Makes `rank` of the calling thread's current GPU. Blocks until every rank of the group does so,
  // each on its thread; then every operation is enqueued on a stream of that GPU and returns at
  // once. DEADLINE_EXCEEDED, reason COLLECTIVE_TIMEOUT, when they do not all come. An asynchronous
  // error of NCCL, or a rank that stays behind for the timeout, aborts the rank's communicator.
  absl::StatusOr<std::unique_ptr<Communicator>> Join(int rank);

  // As Communicator::Abort, for every rank of this process.
  void Abort(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Member;
  struct Rank {
    std::atomic<int64_t> enqueued = -1;  // operations; -1: not of this process, or not yet here
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
