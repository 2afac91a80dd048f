// Tracks the shards that survive a halted generation.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Records the ps' own reports, independent of the coordinator's view. Not thread-safe.
class HaltedShards {
 public:
  // Records that `ps` is halted in the plan's generation and holds what `report` says.
  void Note(const std::string& ps, const v1::JobPlan& plan, const v1::JobReport& report);
  // Drops the record of `ps`: its shards are gone, or the coordinator may no longer count on them.
  void Forget(const std::string& ps) { reports_.erase(ps); }
  void Clear() { reports_.clear(); }

  // Returns the oldest version at which every shard of the generation is available, at its own ps
  // or at its replica. Returns nullopt if there is no such version, or if `generation` is not the
  // newest one noted.
  std::optional<int64_t> OldestVersion(uint32_t generation) const;

 private:
  v1::JobPlan plan_;                              // of the newest generation
  std::map<std::string, v1::JobReport> reports_;  // of the newest generation, by ps
};

}  // namespace muster
