// The members that a job continues without.
#pragma once

#include <string>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"

namespace muster {

// A member is excluded after it failed to prepare the job or to take part. It is not asked again in
// the present generation. Later generations take it only if there are too few others. Pure: the
// caller passes the time. Copyable. Not thread-safe.
class ExclusionList {
 public:
  // Excludes `member` until it completes a warm-up. A ps, or a worker of a job without warm-ups,
  // cannot do that, so ReadmitInTime() readmits it at `until`.
  void Exclude(const std::string& member, const std::string& why,
               absl::Time until = absl::InfiniteFuture());
  // Like Exclude(), for a worker of another device kind than the workers of the job. A recovery
  // tries such a worker only if the job has no worker left.
  void ExcludeForKind(const std::string& member, const std::string& why);

  // Readmits the member: it has prepared the job, or is a new process with this name.
  void Readmit(const std::string& member) { exclusions_.erase(member); }
  // Call when the kind of the job has changed: readmits all members that were excluded for it.
  void ReadmitOtherKinds();
  // Readmits each member after the end of its exclusion.
  void ReadmitInTime(absl::Time now);
  void ReadmitAll() { exclusions_.clear(); }
  // A generation begins: every member may be asked again.
  void BeginGeneration();

  // Whether the member was excluded in the present generation and has not been readmitted.
  bool ExcludesNow(const std::string& member) const;
  // Returns why the member is excluded, since any generation. null if it is not excluded.
  const std::string* Why(const std::string& member) const;
  bool IsOfOtherKind(const std::string& member) const;

 private:
  struct Exclusion {
    std::string why;
    absl::Time until;
    bool in_this_generation = true;
    bool is_of_other_kind = false;
  };

  absl::btree_map<std::string, Exclusion> exclusions_;
};

}  // namespace muster
