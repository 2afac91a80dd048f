// The shard inventory of a job: which ps holds which versions of its shards after a halt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/coordinator/job/recovery/job_members.h"

namespace muster {

// The shards that the next generation continues in place, and its first step.
struct CarriedShards {
  int64_t first_step = 0;
  // The shards in the format of JobPlan. The replica of a lost shard takes its place. Other
  // replicas stay, except those on a ps that is lost, or that leaves and keeps no shard. A replica
  // has `carries` set if it holds first_step.
  std::vector<v1::PlanShard> shards;
};

// How leaving ps can go before another generation begins.
struct PsDepartures {
  std::vector<std::string> at_once;  // ps that may go now: other ps hold all shards
  // The version that must be saved before the leaving ps that hold shards can go. It is that of
  // InPlace(). The checkpoint lets the whole generation go, so at_once is empty then.
  std::optional<int64_t> checkpoint_at;
};

// Each shard has two copies at most: its ps in the plan has one, and the ps with its replica the
// other. Takes stock once, from the last reports of the members. Immutable and pure.
class ShardInventory {
 public:
  // `plan` must outlive the inventory.
  ShardInventory(const v1::JobPlan& plan, const JobMembers& members);

  // ---- at any time
  // Whether Carried() may succeed: of each shard a copy is on a ps that is not lost.
  // `filled_only`: ignores replicas that this generation has to fill, because they may still be
  // empty.
  bool MayBeComplete(bool filled_only) const;
  // Whether a leaving ps may hand its shards over: each has a replica on a ps that stays. The
  // replicas on the leaving ps do not matter, because they can be created again. `filled_only`: see
  // MayBeComplete().
  bool CanHandOver(const std::string& ps, bool filled_only) const;

  // ---- once all members have stopped
  // Returns the shards that can continue in place. Returns nullopt if no ps holds some shard, or if
  // the shards have no common version.
  //
  // A shard stays on its ps. If the ps is lost or does not hold it, the replica takes its place. A
  // leaving ps hands its shards over if all of their replicas are on ps that stay and hold them.
  // Otherwise it must stay. first_step is the newest version that all shards and all filled
  // replicas hold. If there is none, it is the newest version that all shards hold.
  std::optional<CarriedShards> Carried() const;
  // Like Carried(), but leaving ps hand nothing over: each shard is on its ps in the plan, or on
  // its replica's ps if the former does not hold it. These ps can write a checkpoint of first_step.
  std::optional<CarriedShards> InPlace() const;
  // Asks for a checkpoint only if a leaving ps cannot go without one.
  PsDepartures Departures() const;

 private:
  struct Copy {
    std::string ps;                    // "" if there is no such copy
    bool is_lost = true;               // the ps is lost or unknown
    bool leaves = false;               // the ps wants to leave
    bool is_filled = true;             // it does not have to be filled in this generation
    std::optional<HeldVersions> held;  // nullopt: none

    bool stays() const { return !is_lost && !leaves; }
  };
  struct Shard {
    Copy own, replica;
  };

  static Copy CopyOn(const std::string& ps, const JobMembers& members);
  std::vector<std::string> HandingOver() const;
  std::optional<CarriedShards> Without(const std::vector<std::string>& handing_over) const;

  const v1::JobPlan* plan_;
  std::vector<Shard> shards_;         // as in the plan
  std::vector<std::string> leaving_;  // the ps that leave and have halted with their shards
};

}  // namespace muster
