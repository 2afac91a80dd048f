// Collectives between the CPU devices of one process, directly on each other's memory.
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

// State shared by the ranks of a group. Thread-safe. Outlives its communicators.
//
// A rank publishes the address of its memory, waits until all have, works on its slice of every
// rank's memory, and signals completion. That takes two meetings for ReduceScatter, AllGather and
// Broadcast, and three for AllReduce. Every rank writes one word of its own and reads those of the
// others, so the fast path has no lock. Waiting ranks sleep, because computing threads need the
// cores.
//
// Sums are added in rank order, element by element. They depend neither on the order of arrival nor
// on the number of elements. f64 is added in f64; f32, bf16 and f16 are added in f32.
class SharedMemoryGroup {
 public:
  // `timeout`: how long a rank waits for the others in one meeting.
  explicit SharedMemoryGroup(int world_size, absl::Duration timeout = absl::Minutes(10));
  SharedMemoryGroup(const SharedMemoryGroup&) = delete;
  SharedMemoryGroup& operator=(const SharedMemoryGroup&) = delete;
  ~SharedMemoryGroup();

  // Makes the caller rank `rank` of the group. Called once per rank.
  std::unique_ptr<Communicator> Join(int rank);

  int world_size() const { return static_cast<int>(ranks_.size()); }

  // Makes every rank's waits and operations return `why`. The first one counts.
  void Abort(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Member;
  enum class Operation : uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast };
  struct Call {
    Operation operation;
    CollectiveType type = CollectiveType::kF32;
    const void* in = nullptr;
    void* out = nullptr;
    int64_t elements = 0;  // size of the whole
    int root = 0;
  };
  // One per rank, written only by that rank.
  struct alignas(64) Rank {
    std::atomic<uint32_t> meetings = 0;  // meetings reached; publishes all earlier writes
    std::atomic<uint32_t> sleepers = 0;  // ranks that sleep until this one arrives
    Call call;                           // the present operation
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
