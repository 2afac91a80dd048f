// Attaching, reporting and leaving of members, and their effects on jobs.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/diagnostics/job_traces.h"
#include "services/coordinator/diagnostics/member_logs.h"
#include "services/coordinator/membership/fleet.h"
#include "services/coordinator/operations/checkpointer.h"
#include "services/coordinator/records/coordinator_metrics.h"
#include "services/coordinator/registry/job_registry.h"

namespace muster {

// The arrival or loss of a member and its effects on jobs are one transaction of the registry. So
// no job can be given a process that is lost already. A report renews the member's lease before it
// waits for a transaction. Thread-safe.
class Membership {
 public:
  struct Options {
    JobRegistry* registry;  // all six must outlive the membership
    Fleet* fleet;
    MemberLogs* logs;
    JobTraces* traces;
    Checkpointer* checkpoints;
    CoordinatorMetrics* metrics;
  };
  explicit Membership(Options options) : options_(options) {}

  // Handles the first report of a stream, which must carry hello.
  absl::StatusOr<std::shared_ptr<Attachment>> Attach(const v1::MemberReport& report,
                                                     std::shared_ptr<StreamWaker> waker);
  // Handles a later report. An error ends the stream. While the commit queue is full or the store
  // fails, the jobs do not get the report: the next report repeats its content. The lease is
  // renewed, and logs and traces are taken, in any case.
  absl::Status Report(const Attachment& attachment, const v1::MemberReport& report);
  void Detach(const Attachment& attachment, Fleet::Departure departure);

  // Tells the member to leave, now or when it reattaches before the end of its lease.
  // Returns NOT_FOUND (reason "MEMBER_NOT_FOUND") if there is no such member.
  absl::Status Drain(const std::string& member);

  // Removes members with expired leases.
  void ExpireLeases();

  v1::ListMembersResponse ListMembers() const;

 private:
  struct Newest;
  // Applies a report to the jobs that it names, and to the member's other jobs.
  void TakeReport(JobRegistry::Transaction& transaction, const std::string& member,
                  const Newest& newest);
  void LetLeave(JobRegistry::Transaction& transaction, const std::string& member);
  void LoseMember(JobRegistry::Transaction& transaction, const std::string& member,
                  const std::string& why);
  // Returns true if a job uses the member.
  bool IsUsed(const JobRegistry::Transaction& transaction, const std::string& member) const;
  JobRegistry& registry() const { return *options_.registry; }

  const Options options_;
};

}  // namespace muster
