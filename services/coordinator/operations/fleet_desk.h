// Where members attach, report and leave, and what that means for the jobs that use them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/diagnostics/job_traces.h"
#include "services/coordinator/diagnostics/member_logs.h"
#include "services/coordinator/membership/fleet.h"
#include "services/coordinator/operations/checkpoint_desk.h"
#include "services/coordinator/records/coordinator_metrics.h"
#include "services/coordinator/registry/job_registry.h"

namespace muster {

// Thread-safe. A member's coming and going happens in one turn of the registry with what it means
// for jobs: nobody can be given a job between the loss of a process and the news of it. A report
// renews its lease before it waits for a turn.
class FleetDesk {
 public:
  struct Options {
    JobRegistry* registry;  // all six outlive the desk
    Fleet* fleet;
    MemberLogs* logs;
    JobTraces* traces;
    CheckpointDesk* checkpoints;
    CoordinatorMetrics* metrics;
  };
  explicit FleetDesk(Options options) : options_(options) {}

  // The first report of a stream, with hello.
  absl::StatusOr<std::shared_ptr<Attachment>> Attach(const v1::MemberReport& report,
                                                     std::shared_ptr<StreamWaker> waker);
  // A later one; the error ends the stream. While the disk is so far behind that the commit queue
  // is full a report only renews the lease: what it says comes again with the next one.
  absl::Status Report(const Attachment& attachment, const v1::MemberReport& report);
  void Detach(const Attachment& attachment, Fleet::Departure departure);

  // Tells the member to leave, now or when it comes back, up to the end of its lease. NOT_FOUND
  // (reason "MEMBER_NOT_FOUND").
  absl::Status Drain(const std::string& member);

  // Lets go of members whose leases have run out.
  void ExpireLeases();

  v1::ListMembersResponse ListMembers() const;

 private:
  struct Newest;
  // What a member says of each job, and of those that it says nothing of.
  void TakeReport(JobRegistry::Turn& turn, const std::string& member, const Newest& newest);
  void LetLeave(JobRegistry::Turn& turn, const std::string& member);
  void LoseMember(JobRegistry::Turn& turn, const std::string& member, const std::string& why);
  // By a job.
  bool IsUsed(const JobRegistry::Turn& turn, const std::string& member) const;
  JobRegistry& registry() const { return *options_.registry; }

  const Options options_;
};

}  // namespace muster
