#include "services/coordinator/membership/fleet.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr absl::Duration kReportInterval = absl::Seconds(1);

v1::Welcome Terms(absl::Duration lease) {
  v1::Welcome welcome;
  welcome.set_lease_millis(absl::ToInt64Milliseconds(lease));
  welcome.set_report_millis(absl::ToInt64Milliseconds(std::min(kReportInterval, lease / 3)));
  return welcome;
}

}  // namespace

// Ordinals begin with the term, so they rise over restarts without being stored first.
Fleet::Fleet(Options options)
    : cluster_(std::move(options.cluster)),
      term_(options.term),
      leases_(options.lease, std::move(options.ordinals), (options.term << 32) + 1) {}

absl::Status Fleet::CheckCluster(const v1::Hello& hello) const {
  if (!hello.cluster().empty() && hello.cluster() != cluster_) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            hello.member(), " belongs to cluster ", hello.cluster(), ", this is cluster ", cluster_,
            ": the coordinator's --state_dir was wiped or replaced, or its address leads "
            "to another coordinator. Put the folder back, or start the member again to join this "
            "cluster")),
        "CLUSTER_CHANGED");
  }
  if (hello.term() > term_) {
    return WithReason(
        absl::UnavailableError(absl::StrCat(
            hello.member(), " has seen term ", hello.term(), ", this coordinator is of term ",
            term_,
            ": it was replaced by a later one and must be stopped, or its --state_dir was put back "
            "to an older copy; then start the members again")),
        "COORDINATOR_OUTDATED");
  }
  return absl::OkStatus();
}

absl::StatusOr<Fleet::Arrival> Fleet::Attach(const v1::Hello& hello,
                                             std::shared_ptr<StreamWaker> waker, absl::Time now) {
  const std::string& member = hello.member();
  RETURN_IF_ERROR(CheckCluster(hello));
  absl::MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const LeaseTable::Arrival kind, leases_.Attach(hello, now));
  Arrival arrival{.attachment = std::make_shared<Attachment>(member, std::move(waker)),
                  .displaced = TakeAttachment(member),
                  .replaces_member = kind == LeaseTable::Arrival::kReplaced,
                  .ordinal = leases_.Find(member)->ordinal,
                  .is_leaving = leases_.Find(member)->leaving};
  arrival.is_first = arrival.ordinal != hello.ordinal();
  arrival.is_newcomer = arrival.is_first && kind == LeaseTable::Arrival::kNew;
  if (arrival.displaced != nullptr) {
    arrival.displaced->Close(
        WithReason(absl::FailedPreconditionError(
                       absl::StrCat(member, ": a newer stream has taken the place of this one")),
                   "REPLACED"));
  }
  v1::Directive directive;
  directive.set_term(term_);
  v1::Welcome& welcome = *directive.mutable_welcome() = Terms(leases_.lease());
  welcome.set_cluster(cluster_);
  welcome.set_ordinal(arrival.ordinal);
  arrival.attachment->Send({std::move(directive), nullptr});
  attachments_[member] = arrival.attachment;
  return arrival;
}

std::shared_ptr<Attachment> Fleet::TakeAttachment(const std::string& member) {
  auto it = attachments_.find(member);
  if (it == attachments_.end()) return nullptr;
  std::shared_ptr<Attachment> attachment = std::move(it->second);
  attachments_.erase(it);
  return attachment;
}

absl::Status Fleet::Renew(const Attachment& attachment, std::vector<std::string> jobs,
                          absl::Time now) {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(attachment.closed());
  leases_.Renew(attachment.member(), std::move(jobs), now);
  return absl::OkStatus();
}

bool Fleet::SetLeaving(const std::string& member) {
  absl::MutexLock lock(&mu_);
  if (leases_.Find(member) == nullptr) return false;
  leases_.SetLeaving(member);
  return true;
}

Fleet::Loss Fleet::Detach(const Attachment& attachment, Departure departure) {
  const std::string& member = attachment.member();
  absl::MutexLock lock(&mu_);
  auto it = attachments_.find(member);
  // A newer stream of the member may have displaced this one.
  if (it == attachments_.end() || it->second.get() != &attachment) return Loss::kNothing;
  attachments_.erase(it);
  if (departure == Departure::kOrderly) {
    leases_.Remove(member);
    return Loss::kMember;
  }
  leases_.Disconnect(member);
  return Loss::kStream;
}

std::vector<Fleet::Expiry> Fleet::TakeExpired(absl::Time now) {
  absl::MutexLock lock(&mu_);
  std::vector<Expiry> expiries;
  const bool was_partitioned = leases_.partitioned();
  std::vector<LeaseTable::Expired> expired = leases_.TakeExpired(now);
  if (leases_.partitioned() != was_partitioned) {
    LOG(WARNING) << (was_partitioned
                         ? "members report again"
                         : absl::StrCat("no report from any of ", leases_.members().size(),
                                        " members: this coordinator is partitioned, or all of them "
                                        "are. No lease ends for ",
                                        absl::FormatDuration(LeaseTable::kPartitionMax)));
  }
  for (auto& [member, silence] : expired) {
    Expiry& expiry = expiries.emplace_back();
    expiry.why =
        absl::StrCat("it did not report for its lease of ", absl::FormatDuration(leases_.lease()));
    expiry.silence = silence;
    expiry.attachment = TakeAttachment(member);
    if (expiry.attachment != nullptr) {
      expiry.attachment->Close(WithReason(
          absl::DeadlineExceededError(absl::StrCat(member, ": ", expiry.why)), "LEASE_EXPIRED"));
    }
    expiry.member = std::move(member);
  }
  return expiries;
}

bool Fleet::partitioned() const {
  absl::MutexLock lock(&mu_);
  return leases_.partitioned();
}

void Fleet::Send(const std::string& member, MemberDirective told) {
  std::shared_ptr<Attachment> attachment;
  {
    absl::MutexLock lock(&mu_);
    auto it = attachments_.find(member);
    if (it == attachments_.end()) return;
    attachment = it->second;
  }
  told.directive.set_term(term_);
  attachment->Send(std::move(told));
  attachment->waker()->Wake();
}

bool Fleet::IsAttached(const v1::Hello& hello) const {
  absl::MutexLock lock(&mu_);
  const AttachedMember* member = leases_.Find(hello.member());
  return member != nullptr && member->attached &&
         member->hello.incarnation() == hello.incarnation();
}

absl::btree_map<std::string, AttachedMember> Fleet::members() const {
  absl::MutexLock lock(&mu_);
  return leases_.members();
}

}  // namespace muster
