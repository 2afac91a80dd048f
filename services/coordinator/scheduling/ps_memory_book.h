// What the shards of jobs take of the memory of each ps, and what jobs need that wait for it.
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
#include "services/coordinator/scheduling/scheduler.h"

namespace muster {

// By the name of the ps.
using BytesByPs = absl::btree_map<std::string, int64_t>;
using MemoryByPs = absl::btree_map<std::string, PsMemory>;

// A ps that does not say how much memory it has is taken to have enough.
int64_t CapacityOf(const v1::Hello& ps);
// What those leave of it who take so much of each; less than nothing where it has been started
// again with less memory.
int64_t RoomOf(const v1::Hello& ps, const BytesByPs& taken);

// What is enough on any of them.
PsMemory MostOf(const MemoryByPs& memory);

// With how many workers, and how much room on which ps, a generation would be.
struct Prospect {
  int workers = 0;
  BytesByPs room;
  friend bool operator==(const Prospect&, const Prospect&) = default;
};

// Jobs go by their numbers. Thread-safe.
class PsMemoryBook {
 public:
  // How long a job that did not fit is judged by what it needed then. Shares differ with the ps
  // that are chosen: so a need that is old is forgotten, and learnt anew.
  static constexpr absl::Duration kNeedAge = absl::Seconds(30);

  // ---- of jobs that are planned
  // Instead of what the job took or needed before. `memory`: MemoryOfPs(plan).
  void Take(const v1::JobPlan& plan, MemoryByPs memory) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether what the job takes is known of this generation.
  bool Knows(const v1::JobPlan& plan) const ABSL_LOCKS_EXCLUDED(mu_);
  // All others have ended.
  void KeepOnly(const absl::flat_hash_set<uint64_t>& active) ABSL_LOCKS_EXCLUDED(mu_);
  BytesByPs SumOf(absl::Span<const uint64_t> jobs) const ABSL_LOCKS_EXCLUDED(mu_);
  // There the job would have no more backups than it has: of the last such one, until it is planned
  // again.
  void SetFruitless(uint64_t job, Prospect prospect) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsFruitless(uint64_t job, const Prospect& prospect) const ABSL_LOCKS_EXCLUDED(mu_);

  // ---- of jobs that did not fit
  // `memory`: of `ps` ps that it was planned on.
  void Need(uint64_t job, int ps, MemoryByPs memory, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets what is old, and whatever else `waits` is false of: that a job still waits, for so many
  // ps.
  void ForgetNeeds(absl::Time now, absl::FunctionRef<bool(uint64_t job, int ps)> waits)
      ABSL_LOCKS_EXCLUDED(mu_);
  // On any ps. Nothing where it is not known.
  PsMemory MostNeeded(uint64_t job) const ABSL_LOCKS_EXCLUDED(mu_);

  // What the job needs, or takes where it is not known to need anything else.
  MemoryByPs MemoryOf(uint64_t job) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Taken {
    uint32_t generation = 0;
    BytesByPs bytes;
    MemoryByPs memory;  // that they are made of
    Prospect fruitless;
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
