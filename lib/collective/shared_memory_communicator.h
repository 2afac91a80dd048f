// Collectives between the CPU devices of one process, straight on each other's memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/collective/communicator.h"

namespace muster {

// What the ranks of a group share. Thread-safe. Outlives its communicators.
//
// A rank tells where its memory is, waits until all have, works on its slice of everybody's memory
// and tells that it has done so: two meetings for ReduceScatter, AllGather and Broadcast, three for
// AllReduce. Every rank writes one word of its own and reads those of the others: there is no lock
// on the way. Waiting ranks sleep, for the cores belong to the mathematics.
//
// Sums are taken in rank order, element by element: they do not depend on who comes when, nor on
// the number of elements.
class SharedMemoryGroup {
 public:
  // `timeout`: how long a rank waits for another in one operation.
  explicit SharedMemoryGroup(int world_size, absl::Duration timeout = absl::Minutes(10));
  SharedMemoryGroup(const SharedMemoryGroup&) = delete;
  SharedMemoryGroup& operator=(const SharedMemoryGroup&) = delete;
  ~SharedMemoryGroup();

  // Once per rank.
  std::unique_ptr<Communicator> Join(int rank);

  int world_size() const { return static_cast<int>(ranks_.size()); }

  // Every rank's waits and operations return `why`. The first one counts.
  void Abort(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Member;
  enum class Operation : uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast };
  struct Call {
    Operation operation;
    const float* in = nullptr;
    float* out = nullptr;
    int64_t elements = 0;  // of the whole
    int root = 0;
  };
  // One per rank, written by it alone.
  struct alignas(64) Rank {
    std::atomic<uint32_t> meetings = 0;  // come to; what comes before is visible to who sees it
    std::atomic<uint32_t> sleepers = 0;  // ranks that wait for this one
    Call call;                           // of the operation under way
  };

  absl::Status Meet(int rank, Operation operation);
  absl::Status AwaitRank(int rank, int other, uint32_t meeting, Operation operation,
                         absl::Duration deadline);
  absl::Status aborted() const ABSL_LOCKS_EXCLUDED(mu_);

  const absl::Duration timeout_;
  std::vector<Rank> ranks_;
  std::atomic<bool> is_aborted_ = false;
  mutable absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
