// What is left of the shards of a generation that is over.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// As the ps have it, whatever the coordinator makes of it. Not thread-safe.
class HaltedShards {
 public:
  // A ps of the plan's generation is halted and holds what its report says.
  void Note(const std::string& ps, const v1::JobPlan& plan, const v1::JobReport& report);
  // What it holds is not there any more, or nobody can know that it is.
  void Forget(const std::string& ps) { reports_.erase(ps); }
  void Clear() { reports_.clear(); }

  // The oldest version that all shards of the generation can be had at, each at its own ps or at
  // its backup's. Nothing: there is none.
  std::optional<int64_t> OldestVersion(uint32_t generation) const;

 private:
  v1::JobPlan plan_;                              // of the newest generation
  std::map<std::string, v1::JobReport> reports_;  // of that one, by ps
};

}  // namespace muster
