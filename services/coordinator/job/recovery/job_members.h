// The members of a job's generation, and the last report of each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/time/time.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// A ps can provide every chunk at each version from `oldest` to `newest`.
struct HeldVersions {
  int64_t oldest = 0;
  int64_t newest = 0;
};

// Contains only the members of the present generation. Pure: the caller passes the time. Not
// thread-safe.
class JobMembers {
 public:
  struct Member {
    int rank = -1;  // -1: a ps
    // The member has run a generation of the job, and was in each one since, in the same role.
    bool was_there = false;
    bool is_presumed = false;     // was_there is assumed until the first report
    std::string host;             // "" if not known
    absl::btree_set<int> shards;  // those that own chunks; a worker has shards only with allreduce
    std::string address;          // with allreduce: the address of a prepared worker's shard
    bool heard = false;           // has reported since Enlist()
    bool serving = false;         // its last report was of this generation
    v1::MemberJobState state = v1::MEMBER_JOB_STATE_UNSPECIFIED;
    int64_t next_step = 0;
    // The versions that a halted ps holds: of all of its own shards, and of each replica, by shard.
    HeldVersions held;
    absl::btree_map<int, HeldVersions> replicas;
    uint32_t behind = 0;                  // the earlier generation that it still serves, or 0
    std::vector<std::string> lost_links;  // the members whose links broke at this ps
    bool has_stream = true;               // has a stream to the coordinator
    bool lost = false;                    // lost in this generation
    bool leaving = false;                 // wants to leave; a ps may have to stay for its shards
    bool has_more_records = false;        // its last report was full of records
    v1::DatasetFacts dataset;
    std::string device_kind;  // "": not known
    uint64_t prepare_progress = 0;
    std::optional<v1::StepTiming> timing;          // the last one that a worker reported
    absl::Time timed;                              // when it reported `timing`
    std::shared_ptr<const v1::MemberLinks> links;  // the last ones reported; null if none
    std::optional<v1::ProgramWait> program_wait;   // in its last report
    // The last change of state or progress, or the last report of a wait for a program. A user's
    // program has no deadline.
    absl::Time advanced;

    bool is_worker() const { return rank >= 0; }
    bool is_prepared() const { return serving && state >= v1::MEMBER_PREPARED; }
    bool is_silent() const { return !heard && !lost; }
    bool holds() const { return !is_worker() && !lost && serving && state == v1::MEMBER_HALTED; }
    // The generation has ended on this member, and the member has reported everything. A ps that is
    // behind has not stopped: it may hold the shards that this generation continues in place.
    bool has_stopped() const {
      if (lost) return true;
      if (!serving) return heard && (is_worker() || behind == 0);
      return state == v1::MEMBER_HALTED && !has_more_records;
    }
  };

  // Replaces the members by those of `plan`. Keeps only `was_there` of the earlier ones.
  void Enlist(const v1::JobPlan& plan, absl::Time now);

  bool contains(const std::string& name) const { return members_.contains(name); }
  const Member& at(const std::string& name) const { return members_.at(name); }
  std::vector<std::string> names() const;
  const std::vector<std::string>& workers() const { return workers_; }  // by rank
  // The ps with shards, in shard order, then the ps that have only replicas.
  const std::vector<std::string>& ps() const { return ps_; }
  // Returns role and host for messages: "w-0 (worker, rank 0, on node-1)".
  std::string Describe(const std::string& name) const;
  // Returns what running workers wait for if the member is lost: "2 workers wait for its values".
  // "" if none waits.
  std::string WhatIsAwaitedOf(const std::string& name) const;

  // Stores a report of this generation and returns the member. `report` is null if the member does
  // not serve this generation. `behind` is then the earlier generation that it serves, or 0.
  const Member& Take(const std::string& name, const v1::JobReport* report, absl::Time now,
                     uint32_t behind = 0);

  // Returns the worker that has waited longest for its program; null if none waits for one.
  const std::string* LongestProgramWait() const;

  // Return the last timings and links of the workers, by rank. Workers that reported none are left
  // out.
  std::vector<v1::MemberTiming> Timing() const;
  std::vector<std::shared_ptr<const v1::MemberLinks>> Links() const;

  // The time up to `now` does not count as time without progress.
  void WentOn(absl::Time now);
  void Reattached(const std::string& name);
  void StreamBroken(const std::string& name);
  // The generation runs: all of its members have prepared it and see the same data.
  void Began();
  // Like Began(), but for a job that ran before a restart of the coordinator. The coordinator does
  // not know which members took part, so it presumes all of them. A member whose first report says
  // that it does not know the job did not take part.
  void BeganBefore();
  // Marks the member as leaving. Returns false if it was marked before.
  bool SetLeaving(const std::string& name) {
    return !std::exchange(members_.at(name).leaving, true);
  }
  // Returns the members that are leaving and not lost.
  std::vector<std::string> Leaving() const;
  // Marks the member as lost: this generation does not wait for it any more.
  void SetLost(const std::string& name) { members_.at(name).lost = true; }

  // Whether the member has not run a generation of the job, but other present members have.
  bool IsNewcomer(const std::string& name) const;
  bool AllPrepared() const;
  bool AllWorkersDone() const;
  bool AnyWorkerDone() const;
  // Whether the last report of some worker was full, so that more records follow.
  bool AnyHasMoreRecords() const;
  // Returns the step at which all workers are paused or done, or nullopt. Workers that are done
  // stand at `total_steps`.
  std::optional<int64_t> StoppedAt(int64_t total_steps) const;
  // Returns the largest step that a worker begins next, or the largest version that a ps reports if
  // that is larger.
  int64_t NewestStep() const;
  // Returns the first step that some worker has not finished.
  int64_t OldestStep() const;
  bool AllStopped() const;
  std::vector<std::string> NotStopped() const;
  // Returns a member that has lost its stream and its link to a ps, or null.
  const std::string* FirstLostByAll() const;
  // Return the versions that a halted ps holds of all of its own shards, and of its replica of
  // `shard`. nullopt if it holds none.
  std::optional<HeldVersions> HeldBy(const std::string& ps) const;
  std::optional<HeldVersions> HeldInReplica(const std::string& ps, int shard) const;
  // Returns the members that have not reported since Enlist() and are not lost.
  std::vector<std::string> Silent() const;
  // Returns a silent member to which a ps has lost its link, or null.
  const std::string* FirstSilentCutOff() const;
  // Returns the latest time at which a member reported for the first time. If none has reported,
  // this is the time of Enlist().
  absl::Time last_came() const { return last_came_; }
  // Returns the first member that is not prepared and has made no progress after `since`, or null.
  const std::string* FirstStalled(absl::Time since) const;
  // Returns the first running worker if another one has been paused since `since`, or null.
  const std::string* FirstNotPaused(absl::Time since) const;

 private:
  // Return the first member with a property or null, the names of all that have it, and whether all
  // or any have it.
  template <typename Predicate>
  const std::string* First(Predicate is) const;
  template <typename Predicate>
  std::vector<std::string> Names(Predicate is) const;
  template <typename Predicate>
  bool All(Predicate is) const {
    return First(std::not_fn(is)) == nullptr;
  }
  template <typename Predicate>
  bool Any(Predicate is) const {
    return First(is) != nullptr;
  }
  // Returns the first member with a property to which a ps has lost its link, or null.
  template <typename Predicate>
  const std::string* FirstCutOff(Predicate is) const;

  absl::btree_map<std::string, Member> members_;
  std::vector<std::string> workers_;
  std::vector<std::string> ps_;
  absl::Time last_came_;
  bool in_lockstep_ = false;  // every step needs the gradients of all workers
};

}  // namespace muster
