#include "services/coordinator/lease_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "lib/cluster/limits.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int kMemberNameBytesMax = 253;  // a DNS name

absl::Status Refuse(absl::string_view what) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat("hello: ", what)), "HELLO_INVALID");
}

bool IsPrintable(const std::string& text) {
  return std::ranges::all_of(text, [](unsigned char c) { return absl::ascii_isgraph(c); });
}

absl::Status CheckHello(const v1::Hello& hello) {
  const std::string& name = hello.member();
  if (name.empty() || name.size() > kMemberNameBytesMax || !IsPrintable(name)) {
    return Refuse(
        absl::StrCat("member name must be 1 to ", kMemberNameBytesMax, " printable characters"));
  }
  if (hello.role() != v1::WORKER && hello.role() != v1::PS)
    return Refuse("role must be WORKER or PS");
  if (hello.incarnation().empty() || hello.incarnation().size() > limits::kRequestIdBytesMax) {
    return Refuse("incarnation must be 1 to 64 bytes");
  }
  if (hello.role() == v1::PS &&
      (hello.addresses().empty() || hello.addresses_size() > limits::kShardThreadsMax)) {
    return Refuse(absl::StrCat("a ps must have 1 to ", limits::kShardThreadsMax,
                               " shard threads (has ", hello.addresses_size(), ")"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LeaseTable::Arrival> LeaseTable::Attach(const v1::Hello& hello, absl::Time now) {
  RETURN_IF_ERROR(CheckHello(hello));
  if (auto replaced = replaced_.find(hello.member());
      replaced != replaced_.end() && replaced->second.contains(hello.incarnation())) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "another process has taken the name '", hello.member(), "'")),
                      "REPLACED");
  }
  auto it = members_.find(hello.member());
  if (it == members_.end() && members_.size() >= limits::kAttachedMembersMax) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                          "the fleet is full (", limits::kAttachedMembersMax, " members)")),
                      "FLEET_FULL");
  }
  Arrival arrival = Arrival::kNew;
  if (it != members_.end()) {
    const bool same = it->second.hello.incarnation() == hello.incarnation();
    arrival = same ? Arrival::kReturned : Arrival::kReplaced;
    if (!same) replaced_[hello.member()].insert(it->second.hello.incarnation());
  }
  members_[hello.member()] = {
      .hello = hello, .attach_time = now, .report_time = now, .attached = true};
  return arrival;
}

void LeaseTable::Renew(const std::string& member, std::vector<std::string> jobs, absl::Time now) {
  AttachedMember& known = members_.at(member);
  known.report_time = now;
  known.jobs = std::move(jobs);
}

void LeaseTable::Disconnect(const std::string& member) {
  if (auto it = members_.find(member); it != members_.end()) it->second.attached = false;
}

std::vector<std::string> LeaseTable::TakeExpired(absl::Time now) {
  std::vector<std::string> expired;
  for (const auto& [name, member] : members_) {
    if (now - member.report_time > lease_) expired.push_back(name);
  }
  for (const std::string& name : expired) members_.erase(name);
  return expired;
}

const AttachedMember* LeaseTable::Find(const std::string& member) const {
  auto it = members_.find(member);
  return it == members_.end() ? nullptr : &it->second;
}

}  // namespace muster
