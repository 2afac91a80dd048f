// Warm-up: workers that will join a running job prepare first, while the others continue.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Tracks the workers that warm up for the next generation of a running job. They open the data,
// plan their devices' memory and compile for their future share, and keep all that until the
// generation starts. A worker that fails is not asked again in the present generation. Its failure
// costs the job nothing, because the job was not halted for it. The reason is kept longer, for the
// scheduler, which chooses the members of a recovering job.
//
// Pure: the caller passes the time. Copyable. Not thread-safe.
class WarmUp {
 public:
  // A worker without progress for this long has failed its warm-up.
  static constexpr absl::Duration kStallMax = absl::Minutes(10);

  // Requires: members know no warm-up with the number `first_number` or a later one.
  explicit WarmUp(uint64_t first_number) : next_number_(first_number) {}

  // Starts a warm-up of these workers of `plan`, which replaces the present warm-up. Requires: the
  // generation of `plan` is the running one.
  void Begin(v1::JobPlan plan, const std::vector<std::string>& newcomers, absl::Time now);
  // A generation begins, or the job stops.
  void End();

  enum class State { kNone, kUnderWay, kDone };
  // Returns the state of a warm-up of exactly these workers.
  State Of(const std::vector<std::string>& newcomers) const;
  bool Has(const std::string& member) const { return members_.contains(member); }
  std::vector<std::string> members() const;
  // The serialized plan of the warm-up.
  const std::shared_ptr<const std::string>& plan() const { return plan_; }

  enum class Heard {
    kOutsider,  // it is not in the warm-up: release it
    kSilence,   // it has not begun this warm-up: it may lack the directive
    kNothing,   // nothing to do
    kPrepared,  // nothing to do, unless the caller finds it unfit and calls Remove()
    kFailed,    // it failed, and is removed from the warm-up
  };
  // Handles the report of a member that is not in the generation. null: it does not know the job.
  Heard Take(const std::string& member, const v1::JobReport* report, absl::Time now);
  // Removes a member that is lost, leaving or unfit.
  void Remove(const std::string& member) { members_.erase(member); }
  // Removes one member without progress for kStallMax and returns its name. "" if none.
  std::string TakeStalled(absl::Time now);
  // The time up to `now` does not count as time without progress.
  void WentOn(absl::Time now);

 private:
  struct Member {
    bool prepared = false;
    uint64_t progress = 0;
    absl::Time advanced;
  };

  uint64_t next_number_;
  uint64_t number_ = 0;  // of the present warm-up
  std::shared_ptr<const std::string> plan_;
  absl::btree_map<std::string, Member> members_;
};

}  // namespace muster
