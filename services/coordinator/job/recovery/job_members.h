// Who takes part in a job's generation, and what each of them said last.
#pragma once

#include <cstdint>
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

// Every chunk can be had at these versions and those between.
struct HeldVersions {
  int64_t oldest = 0;
  int64_t newest = 0;
};

// Pure; time comes in; not thread-safe. Members that are not of the generation are not here.
class JobMembers {
 public:
  // A directive that is still wanted is sent again after this long: it may have been lost.
  static constexpr absl::Duration kResend = absl::Seconds(2);

  struct Member {
    int rank = -1;                // -1: a ps
    bool was_there = false;       // in one that ran, as the same, and was not lost since
    bool is_presumed = false;     // that it was, until its first word
    std::string host;             // "": not known
    absl::btree_set<int> shards;  // those that own chunks; of a worker only with allreduce
    std::string address;          // of a worker's shard with allreduce, once it is prepared
    bool heard = false;           // has reported at all since it was enlisted here
    bool serving = false;         // has reported this generation
    v1::MemberJobState state = v1::MEMBER_JOB_STATE_UNSPECIFIED;
    int64_t next_step = 0;
    // Of a ps that is halted: what every chunk of its shards can be had at, and of its backups, by
    // shard.
    HeldVersions held;
    absl::btree_map<int, HeldVersions> backups;
    uint32_t behind = 0;                  // the generation that it still serves instead of this one
    std::vector<std::string> lost_links;  // whose links of this job broke at a ps
    bool has_stream = true;               // to the coordinator
    bool lost = false;                    // in this generation
    bool leaving = false;                 // is not to be of the next one
    bool has_more_records = false;        // than its last report could hold
    v1::DatasetFacts dataset;
    uint64_t prepare_progress = 0;
    std::optional<v1::StepTiming> timing;  // of a worker, and when it said so
    absl::Time timed;
    std::shared_ptr<const v1::MemberLinks> links;  // likewise; null: it has not said
    absl::Time advanced;  // when it last showed something new on its way to being prepared

    bool is_worker() const { return rank >= 0; }
    bool holds() const { return !is_worker() && !lost && serving && state == v1::MEMBER_HALTED; }
    // Nothing of the generation goes on there any more, and all that it had to tell is told. A ps
    // that is still behind may hold what this generation was to carry on.
    bool has_stopped() const {
      if (lost) return true;
      if (!serving) return heard && (is_worker() || behind == 0);
      return state == v1::MEMBER_HALTED && !has_more_records;
    }
  };

  // The members of a plan; what was known of those before is forgotten, but that they were there.
  void Enlist(const v1::JobPlan& plan, absl::Time now);

  bool contains(const std::string& name) const { return members_.contains(name); }
  const Member& at(const std::string& name) const { return members_.at(name); }
  std::vector<std::string> names() const;
  const std::vector<std::string>& workers() const { return workers_; }  // by rank
  // In the order of their shards; then those that have but backups.
  const std::vector<std::string>& ps() const { return ps_; }
  // What it is to the job and where, for messages: "w-0 (worker, rank 0, on node-1)".
  std::string Describe(const std::string& name) const;
  // What running workers cannot go on without when the member is gone; "": nothing.
  std::string WhatIsAwaitedOf(const std::string& name) const;

  // A report of this generation; or, null, one that has none of it, but perhaps an earlier one.
  // Returns the member.
  const Member& Take(const std::string& name, const v1::JobReport* report, absl::Time now,
                     uint32_t behind = 0);

  // What the workers have told of where their time goes, and of their links, by rank; who has told
  // nothing is left out.
  std::vector<v1::MemberTiming> Timing() const;
  std::vector<std::shared_ptr<const v1::MemberLinks>> Links() const;

  // Whether the directive is to be sent to the member now, which counts it as sent: not while the
  // same one is still young.
  bool IsDue(const std::string& name, const v1::Directive& directive, absl::Time now);
  // Time stood still until `now`.
  void WentOn(absl::Time now);
  // The member's stream is new: whatever was sent before may be lost.
  void Reattached(const std::string& name);
  void StreamBroken(const std::string& name);
  // The generation runs: its members have shown that they can, and see the same data.
  void Began();
  // The same of a job that has run before the coordinator was restarted, which does not know of
  // which of its members: of all but those whose first word is that they know nothing of the job.
  void BeganBefore();
  // Returns whether it is new.
  bool SetLeaving(const std::string& name) {
    return !std::exchange(members_.at(name).leaving, true);
  }
  // Those who are leaving and not lost.
  std::vector<std::string> Leaving() const;
  // Somebody who has not stopped, null: nobody.
  const std::string* FirstNotStopped() const;
  // Not to be waited for any more in this generation.
  void SetLost(const std::string& name) { members_.at(name).lost = true; }

  // No generation has run with it, but one has with others who are here.
  bool IsNewcomer(const std::string& name) const;
  bool AllPrepared() const;
  bool AllWorkersDone() const;
  bool AnyWorkerDone() const;
  // A worker's last report could not hold all that it has to tell.
  bool AnyHasMoreRecords() const;
  // The step at which all workers stand still; those that are done stand at `total_steps`.
  std::optional<int64_t> StoppedAt(int64_t total_steps) const;
  // The furthest step that anybody begins next.
  int64_t NewestStep() const;
  // The first step that some worker has not finished.
  int64_t OldestStep() const;
  bool AllStopped() const;
  std::vector<std::string> NotStopped() const;
  // Somebody without a stream whom a ps has lost as well; null: nobody.
  const std::string* FirstLostByAll() const;
  // The versions that the shards of a ps can all be had at, and those of its backup of a shard,
  // once it has stopped; nothing where it holds nothing.
  std::optional<HeldVersions> HeldBy(const std::string& ps) const;
  std::optional<HeldVersions> HeldInBackup(const std::string& ps, int shard) const;
  // Somebody who has not been heard of and is not lost; null: nobody.
  const std::string* FirstSilent() const;
  // The same, of those whom a ps has lost as well.
  const std::string* FirstSilentCutOff() const;
  // All members that have not been heard of and are not lost.
  std::vector<std::string> Silent() const;
  // The latest time at which a member was heard of for the first time. If none was: the time at
  // which they were enlisted.
  absl::Time last_came() const { return last_came_; }
  // Somebody who has not come to the end of preparing and shown nothing new since then; null:
  // nobody.
  const std::string* FirstStalled(absl::Time since) const;
  // A worker that runs while another one has paused, and done so by then; null: nobody.
  const std::string* FirstNotPaused(absl::Time since) const;

 private:
  // The directive that was sent last.
  struct Sent {
    v1::Directive::KindCase kind = v1::Directive::KIND_NOT_SET;
    uint64_t snapshot = 0;
    absl::Time time = absl::InfinitePast();
  };

  absl::btree_map<std::string, Member> members_;
  std::vector<std::string> workers_;
  std::vector<std::string> ps_;
  absl::btree_map<std::string, Sent> sent_;  // by member
  absl::Time last_came_;
  bool in_lockstep_ = false;  // every step takes the gradients of all workers
};

}  // namespace muster
