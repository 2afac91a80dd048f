// Workers that are to join a running job prepare first, while the others go on.
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

// What a job that runs knows of those who rehearse its next generation: they open the data, plan
// their devices' memory and compile for the share that they will have, and keep all that until they
// are given the generation itself. One who cannot is not asked again before the next generation: it
// does no harm to the others, as it would if the job had been halted for it. That it could not is
// known for longer, for whoever chooses who recovers the job.
//
// Pure; time comes in; copyable; not thread-safe.
class Rehearsal {
 public:
  // One who shows nothing new for this long is not waited for any more.
  static constexpr absl::Duration kStallMax = absl::Minutes(10);
  // What is still wanted is said again after this long: it may have been lost.
  static constexpr absl::Duration kResend = absl::Seconds(2);

  // `first_number`: no rehearsal that a member may still know of has this number or a later one.
  explicit Rehearsal(uint64_t first_number) : next_number_(first_number) {}

  // These workers of the plan are to rehearse it, and nobody else does any more. Its generation is
  // the one that runs.
  void Begin(v1::JobPlan plan, const std::vector<std::string>& newcomers, absl::Time now);
  // A generation begins: nobody rehearses, and everybody may be asked again.
  void End();
  // The job will be another one, or none: nobody rehearses, and who could not may be able to.
  void Forget();

  enum class State { kNone, kUnderWay, kDone };
  // Of a rehearsal of exactly these workers.
  State Of(const std::vector<std::string>& newcomers) const;
  // It could not rehearse in this generation.
  bool Refused(const std::string& member) const;
  // Why it could not prepare the job, or take part, when it last tried, in whichever generation;
  // null: it could, or has not tried.
  const std::string* WhyRefused(const std::string& member) const;
  // It has prepared the job after all, or is another process of that name.
  void Forgive(const std::string& member) { refusals_.erase(member); }

  bool Has(const std::string& member) const { return members_.contains(member); }
  std::vector<std::string> members() const;
  // The rehearsal's plan, serialised.
  const std::shared_ptr<const std::string>& plan() const { return plan_; }

  enum class Heard {
    kStranger,  // it rehearses nothing that is wanted
    kSilence,   // it does not rehearse yet: it is to be told (again)
    kNothing,   // there is nothing to do
    kPrepared,  // likewise, unless what it has found makes it unfit: Refuse()
    kFailed,    // it cannot; it is forgotten here
  };
  // What a member says of the job that does not use it; null: nothing.
  Heard Take(const std::string& member, const v1::JobReport* report, absl::Time now);
  // It is of no use to the job, which it is told: as one that cannot rehearse. Or it could not take
  // part, and is to show first that it can prepare; where nobody rehearses it cannot, and is
  // forgiven at `until`.
  void Refuse(const std::string& member, const std::string& why,
              absl::Time until = absl::InfiniteFuture());
  // It is gone, or wants to go.
  void Remove(const std::string& member) { members_.erase(member); }
  // One who has stalled, and is forgotten now; "": nobody.
  std::string TakeStalled(absl::Time now);
  // Forgives whose refusal has ended.
  void ForgiveInTime(absl::Time now);
  // Time stood still until `now`.
  void WentOn(absl::Time now);

 private:
  struct Member {
    bool prepared = false;
    uint64_t progress = 0;
    absl::Time advanced;
    absl::Time told;
  };

  struct Refusal {
    std::string why;
    absl::Time until;
    bool in_this_generation = true;
  };

  uint64_t next_number_;
  uint64_t number_ = 0;  // of the plan
  std::shared_ptr<const std::string> plan_;
  absl::btree_map<std::string, Member> members_;
  absl::btree_map<std::string, Refusal> refusals_;
};

}  // namespace muster
