#include "services/coordinator/operations/membership.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "lib/job/resource_name.h"
#include "lib/log/log_scope.h"
#include "lib/status/status.h"
#include "lib/status/utf8.h"
#include "services/coordinator/common/proto_time.h"

namespace muster {

// The newest report of each job: a member may hold an older generation beside the newest.
struct Membership::Newest {
  explicit Newest(const v1::MemberReport& report) {
    for (const v1::JobReport& job : report.jobs()) {
      const v1::JobReport*& known = by_job[job.job()];
      if (known == nullptr || known->generation() < job.generation()) known = &job;
    }
  }
  // Excludes jobs that the member only warms up for: it is free for any job.
  std::vector<std::string> jobs() const {
    std::vector<std::string> jobs;
    for (const auto& [id, job] : by_job) {
      if (job->rehearsal() == 0) jobs.push_back(id);
    }
    return jobs;
  }

  absl::btree_map<std::string, const v1::JobReport*> by_job;
};

namespace {

// Tells a member to forget a job that this coordinator does not know.
v1::Directive ForgetDirective(const v1::JobReport& job) {
  v1::Directive directive;
  directive.set_job(job.job());
  directive.set_generation(job.generation());
  directive.mutable_release();
  return directive;
}

v1::Directive LeaveDirective() {
  v1::Directive directive;
  directive.mutable_leave();
  return directive;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Attachment>> Membership::Attach(const v1::MemberReport& report,
                                                               std::shared_ptr<StreamWaker> waker) {
  if (!report.has_hello()) {
    return WithReason(absl::InvalidArgumentError("the first report of a stream must carry hello"),
                      "HELLO_INVALID");
  }
  const v1::Hello& hello = report.hello();
  const Newest newest(report);
  std::shared_ptr<Attachment> attachment;
  {
    JobRegistry::Transaction transaction(&registry());
    ASSIGN_OR_RETURN(Fleet::Arrival arrival,
                     options_.fleet->Attach(hello, std::move(waker), registry().Now()));
    attachment = std::move(arrival.attachment);
    transaction.DispatchLater();
    if (arrival.displaced != nullptr) transaction.WakeLater(arrival.displaced->waker());
    if (arrival.is_first) {
      transaction.Seat({.member = hello.member(), .ordinal = arrival.ordinal});
    }
    if (arrival.replaces_member) {
      LoseMember(transaction, hello.member(), "a new process has taken its place");
    } else if (arrival.is_newcomer) {
      for (JobRegistry::Entry* entry : transaction.Active()) {
        entry->job.MemberLost(hello.member(),
                              "it ended while there was no coordinator, and a new process has "
                              "taken its place",
                              registry().Now());
        transaction.Commit(*entry);
      }
    }
    const LogScope scope({.member = hello.member()});
    LOG(INFO) << hello.member() << " attached (" << v1::Role_Name(hello.role()) << ", "
              << Printable(hello.host()) << ", pid " << hello.pid() << ")";
    for (JobRegistry::Entry* entry : transaction.Active()) {
      if (arrival.is_first) entry->job.Replaced(hello.member());
      entry->job.Reattached(hello.member());
    }
    RETURN_IF_ERROR(options_.fleet->Renew(*attachment, newest.jobs(), registry().Now()));
    TakeReport(transaction, hello.member(), newest);
    if (report.leaving()) {
      LetLeave(transaction, hello.member());
    } else if (arrival.is_leaving) {
      // It may have missed the first directive, because its stream broke.
      transaction.SendLater(hello.member(), LeaveDirective());
    }
  }
  return attachment;
}

absl::Status Membership::Report(const Attachment& attachment, const v1::MemberReport& report) {
  const Newest newest(report);
  RETURN_IF_ERROR(options_.fleet->Renew(attachment, newest.jobs(), registry().Now()));
  if (!report.traces().empty()) options_.traces->Take(attachment.member(), report);
  options_.logs->Take(attachment.member(), report);
  // Directives wait until the queue has stored earlier changes, so more reports would only add to
  // it.
  if (registry().changes().full() || !registry().changes().trouble().ok()) {
    LOG_EVERY_N(WARNING, 1000) << "the store's disk is slow or full: reports only renew leases";
    return absl::OkStatus();
  }
  JobRegistry::Transaction transaction(&registry());
  // The member may have been lost or replaced since its lease was renewed. Its jobs know that
  // already, and the report of the old process would be taken for the new one's.
  RETURN_IF_ERROR(attachment.closed());
  TakeReport(transaction, attachment.member(), newest);
  if (report.leaving()) LetLeave(transaction, attachment.member());
  return absl::OkStatus();
}

// Tells the jobs that the member leaves. Called again with every report of a leaving member.
void Membership::LetLeave(JobRegistry::Transaction& transaction, const std::string& member) {
  options_.fleet->SetLeaving(member);
  for (JobRegistry::Entry* entry : transaction.Active()) {
    entry->job.MemberLeaves(member, registry().Now());
    transaction.Commit(*entry);
  }
}

absl::Status Membership::Drain(const std::string& member) {
  {
    JobRegistry::Transaction transaction(&registry());
    if (!options_.fleet->SetLeaving(member)) {
      return WithReason(absl::NotFoundError(absl::StrCat("no member '", member,
                                                         "' is attached; muster members "
                                                         "lists those that are")),
                        "MEMBER_NOT_FOUND");
    }
    const LogScope scope({.member = member});
    LOG(INFO) << member << " is drained";
    transaction.SendLater(member, LeaveDirective());
    LetLeave(transaction, member);
  }
  return absl::OkStatus();
}

void Membership::TakeReport(JobRegistry::Transaction& transaction, const std::string& member,
                            const Newest& newest) {
  const absl::Time now = registry().Now();
  for (const auto& [id, job] : newest.by_job) {
    if (auto entry = transaction.Find(id); entry.ok()) {
      (*entry)->job.Report(member, job, now);
      options_.checkpoints->TakeFailures(**entry, member, *job);
      transaction.Commit(**entry);
    } else {
      transaction.SendLater(member, ForgetDirective(*job));
    }
  }
  for (JobRegistry::Entry* entry : transaction.Active()) {
    const bool expected = entry->job.Uses(member) || entry->job.warm_up().Has(member);
    const bool silent = expected && !newest.by_job.contains(JobIdOf(entry->job.record().name()));
    if (!silent) continue;
    // The member no longer serves a job that it does not report.
    entry->job.Report(member, nullptr, now);
    transaction.Commit(*entry);
  }
}

void Membership::LoseMember(JobRegistry::Transaction& transaction, const std::string& member,
                            const std::string& why) {
  const LogScope scope({.member = member});
  LOG(WARNING) << member << " lost: " << why;
  for (JobRegistry::Entry* entry : transaction.Active()) {
    entry->job.MemberLost(member, why, registry().Now());
    transaction.Commit(*entry);
  }
}

bool Membership::IsUsed(const JobRegistry::Transaction& transaction,
                        const std::string& member) const {
  return std::ranges::any_of(transaction.Active(), [&member](const JobRegistry::Entry* entry) {
    return entry->job.Uses(member);
  });
}

void Membership::Detach(const Attachment& attachment, Fleet::Departure departure) {
  const std::string& member = attachment.member();
  const LogScope scope({.member = member});
  JobRegistry::Transaction transaction(&registry());
  switch (options_.fleet->Detach(attachment, departure)) {
    case Fleet::Loss::kMember:
      return LoseMember(transaction, member, "it left the fleet");
    case Fleet::Loss::kStream:
      LOG(WARNING) << member << ": stream broken";
      for (JobRegistry::Entry* entry : transaction.Active()) {
        entry->job.StreamBroken(member, registry().Now());
        transaction.Commit(*entry);
      }
      return;
    case Fleet::Loss::kNothing:
      return;
  }
}

void Membership::ExpireLeases() {
  JobRegistry::Transaction transaction(&registry());
  for (Fleet::Expiry& expiry : options_.fleet->TakeExpired(registry().Now())) {
    if (expiry.attachment != nullptr) transaction.WakeLater(expiry.attachment->waker());
    options_.metrics->lease_expiries.Increment();
    if (IsUsed(transaction, expiry.member)) options_.metrics->LossDetected(expiry.silence);
    LoseMember(transaction, expiry.member, expiry.why);
  }
}

v1::ListMembersResponse Membership::ListMembers() const {
  v1::ListMembersResponse response;
  for (const auto& [name, known] : options_.fleet->members()) {
    const v1::Hello& hello = known.hello;
    v1::Member& member = *response.add_members();
    member.set_name(name);
    member.set_role(hello.role());
    member.set_host(hello.host());
    member.set_pid(hello.pid());
    member.set_incarnation(hello.incarnation());
    *member.mutable_devices() = hello.devices();
    for (const std::string& job : known.jobs) member.add_jobs(job);
    *member.mutable_attach_time() = ToProto(known.attach_time);
    *member.mutable_report_time() = ToProto(known.report_time);
    member.set_metrics_url(hello.metrics_url());
    member.set_version(hello.version());
    member.set_transport(hello.transport());
    member.set_leaving(known.leaving);
    member.set_insecure(hello.insecure());
  }
  return response;
}

}  // namespace muster
