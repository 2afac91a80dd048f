// Accounts for the memory of each ps: what the shards of jobs take, and what waiting jobs need.
#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/coordinator/scheduling/queue_placement.h"

namespace muster {

// The keys are names of ps.
using BytesByPs = absl::btree_map<std::string, int64_t>;
using MemoryByPs = absl::btree_map<std::string, PsMemory>;

// Returns the memory of `ps` in bytes. Unlimited if the ps does not report it.
int64_t CapacityOf(const v1::Hello& ps);
// Returns the bytes of `ps` that `taken` leaves. Negative if the ps restarted with less memory than
// its jobs take.
int64_t RoomOf(const v1::Hello& ps, const BytesByPs& taken);

// Returns for each ps the exact number of bytes that it reserves when it prepares `plan`. Empty for
// an allreduce plan. Visits every chunk once per shard, so do not call it under a lock. Pure.
MemoryByPs MemoryOfPs(const v1::JobPlan& plan);

// Returns the maximum of each field over all ps, which is enough on every one of them.
PsMemory MostOf(const MemoryByPs& memory);

// Identifies jobs by their numbers. Thread-safe.
class PsMemoryAccounting {
 public:
  // How long the need of a job that did not fit stays valid. The shares depend on the chosen ps, so
  // an old need is forgotten and computed again.
  static constexpr absl::Duration kNeedAge = absl::Seconds(30);

  // ---- Jobs that have a plan.
  // Notes what the job of `plan` takes, in place of what it took or needed before. Requires:
  // `memory` is MemoryOfPs(plan).
  void Take(const v1::JobPlan& plan, MemoryByPs memory) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether Take() was called for this generation of the job.
  bool Knows(const v1::JobPlan& plan) const ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets what the jobs that are not in `active` take.
  void KeepOnly(const absl::flat_hash_set<uint64_t>& active) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the bytes that `jobs` take together on each ps.
  BytesByPs SumOf(absl::Span<const uint64_t> jobs) const ABSL_LOCKS_EXCLUDED(mu_);

  // ---- Jobs that did not fit.
  // Notes what `job` needs. `memory` comes from a plan of the job on `ps` ps.
  void Need(uint64_t job, int ps, MemoryByPs memory, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets each need that is kNeedAge old, or for which `waits` is false. `waits` says whether
  // `job` still waits and still wants `ps` ps. It runs under the lock.
  void ForgetNeeds(absl::Time now, absl::FunctionRef<bool(uint64_t job, int ps)> waits)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the most that the job needs on any ps. Zeros if its need is not known.
  PsMemory MostNeeded(uint64_t job) const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the job's need. Returns what it takes if no need is known.
  MemoryByPs MemoryOf(uint64_t job) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Taken {
    uint32_t generation = 0;
    BytesByPs bytes;
    MemoryByPs memory;  // `bytes` is computed from it and the number of workers
  };
  struct Needed {
    int ps = 0;
    absl::Time learnt;
    MemoryByPs memory;
    PsMemory most;
  };

  mutable absl::Mutex mu_;
  absl::btree_map<uint64_t, Taken> taken_ ABSL_GUARDED_BY(mu_);
  absl::btree_map<uint64_t, Needed> needs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
