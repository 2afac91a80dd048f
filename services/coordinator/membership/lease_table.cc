#include "services/coordinator/membership/lease_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// Limits for the values of a hello, which the coordinator keeps, prints and passes on.
constexpr int kMemberNameBytesMax = 253;  // a DNS name
constexpr int kHostBytesMax = 253;        // a DNS name
constexpr int kUrlBytesMax = 512;         // a host, a port and a path
constexpr int kWordBytesMax = 64;         // version, transport, cluster, a device's name
constexpr int kDevicesMax = 1024;  // a node has far fewer, even with the CPU devices of a test
constexpr int kAddressBytesMax = 64 << 10;  // UCX: a few KB if there are many network devices

absl::Status Refuse(absl::string_view what) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat("hello: ", what)), "HELLO_INVALID");
}

bool IsPrintable(const std::string& text) {
  return std::ranges::all_of(text, [](unsigned char c) { return absl::ascii_isgraph(c); });
}

// Accepts an empty text: a member may leave it out.
absl::Status CheckText(absl::string_view field, const std::string& text, size_t bytes_max) {
  if (text.size() <= bytes_max && IsPrintable(text)) return absl::OkStatus();
  return Refuse(absl::StrCat(field, " must be at most ", bytes_max, " printable characters (is ",
                             text.size(), " bytes)"));
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
  RETURN_IF_ERROR(CheckText("host", hello.host(), kHostBytesMax));
  RETURN_IF_ERROR(CheckText("metrics_url", hello.metrics_url(), kUrlBytesMax));
  RETURN_IF_ERROR(CheckText("version", hello.version(), kWordBytesMax));
  RETURN_IF_ERROR(CheckText("transport", hello.transport(), kWordBytesMax));
  RETURN_IF_ERROR(CheckText("cluster", hello.cluster(), kWordBytesMax));
  if (hello.devices_size() > kDevicesMax) {
    return Refuse(
        absl::StrCat("at most ", kDevicesMax, " devices (has ", hello.devices_size(), ")"));
  }
  for (const std::string& device : hello.devices()) {
    RETURN_IF_ERROR(CheckText("device", device, kWordBytesMax));
  }
  for (const std::string& address : hello.addresses()) {
    if (address.size() > kAddressBytesMax) {
      return Refuse(absl::StrCat("an address must be at most ", kAddressBytesMax, " bytes (is ",
                                 address.size(), ")"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

// Checks whether the process may have the name. The process that holds it may always reattach. Its
// hello may lack the ordinal, if it missed the welcome.
absl::Status LeaseTable::CheckName(const v1::Hello& hello) const {
  const std::string& name = hello.member();
  if (hello.ordinal() >= next_ordinal_) {
    return Refuse(absl::StrCat("ordinal ", hello.ordinal(), " was never given"));
  }
  const AttachedMember* const holder = Find(name);
  if (holder != nullptr && holder->hello.incarnation() == hello.incarnation()) {
    return absl::OkStatus();
  }
  const auto newest = newest_.find(name);
  if (hello.ordinal() != 0 && newest != newest_.end() && hello.ordinal() < newest->second) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "a newer process has taken the name '", name, "' (it is number ",
                          newest->second, " of this cluster, this one is number ", hello.ordinal(),
                          "): start this one again, under a name of its own if both shall run")),
                      "REPLACED");
  }
  if (holder != nullptr && holder->attached && hello.ordinal() <= holder->ordinal) {
    return WithReason(absl::UnavailableError(absl::StrCat(
                          "the name '", name, "' is in use: its process (pid ", holder->hello.pid(),
                          " on '", holder->hello.host(),
                          "') is attached. Stop that one, or give this one another --name")),
                      "NAME_IN_USE");
  }
  return absl::OkStatus();
}

void LeaseTable::Remember(const std::string& member, uint64_t ordinal) {
  newest_[member] = ordinal;
  if (newest_.size() <= limits::kMembersRememberedMax) return;
  newest_.erase(std::ranges::min_element(newest_, {}, &Ordinals::value_type::second));
}

absl::StatusOr<LeaseTable::Arrival> LeaseTable::Attach(const v1::Hello& hello, absl::Time now) {
  RETURN_IF_ERROR(CheckHello(hello));
  RETURN_IF_ERROR(CheckName(hello));
  auto it = members_.find(hello.member());
  if (it == members_.end() && members_.size() >= limits::kAttachedMembersMax) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                          "the fleet is full (", limits::kAttachedMembersMax, " members)")),
                      "FLEET_FULL");
  }
  Arrival arrival = Arrival::kNew;
  uint64_t ordinal = hello.ordinal();
  bool leaving = false;
  if (it != members_.end()) {
    const bool same = it->second.hello.incarnation() == hello.incarnation();
    arrival = same ? Arrival::kReturned : Arrival::kReplaced;
    if (same) ordinal = it->second.ordinal;
    leaving = same && it->second.leaving;
  }
  if (ordinal == 0) ordinal = next_ordinal_++;
  Remember(hello.member(), ordinal);
  members_[hello.member()] = {.hello = hello,
                              .attach_time = now,
                              .report_time = now,
                              .lease_begin = now,
                              .attached = true,
                              .leaving = leaving,
                              .ordinal = ordinal};
  return arrival;
}

void LeaseTable::Renew(const std::string& member, std::vector<std::string> jobs, absl::Time now) {
  AttachedMember& known = members_.at(member);
  known.report_time = known.lease_begin = now;
  known.jobs = std::move(jobs);
}

void LeaseTable::Disconnect(const std::string& member) {
  if (auto it = members_.find(member); it != members_.end()) it->second.attached = false;
}

// Decides whether the coordinator is partitioned. Members report at least three times per lease. So
// if the first lease ends because of the network, all members have been silent for half a lease.
// Then streams may break one after the other, which does not change the decision. Only a report, or
// the end of kPartitionMax, changes it.
void LeaseTable::Listen(absl::Time now) {
  absl::Time heard = absl::InfinitePast(), begin = absl::InfinitePast();
  int open = 0;
  for (const auto& [name, member] : members_) {
    heard = std::max(heard, member.report_time);
    begin = std::max(begin, member.lease_begin);
    open += member.attached ? 1 : 0;
  }
  const bool is_new = heard > std::exchange(last_heard_, heard);
  if (partitioned_ && is_new) {
    partitioned_ = false;
    for (auto& [name, member] : members_) member.lease_begin = now;
    return;
  }
  const absl::Duration silence = now - begin;
  partitioned_ = (partitioned_ || open >= 2) && silence > lease_ / 2 && silence <= kPartitionMax;
}

std::vector<LeaseTable::Expired> LeaseTable::TakeExpired(absl::Time now) {
  const absl::Duration late =
      std::max(now - std::exchange(last_check_, now) - kCheckInterval, absl::ZeroDuration());
  for (auto& [name, member] : members_) {
    member.lease_begin = std::min(member.lease_begin + late, now);
  }
  Listen(now);
  std::vector<Expired> expired;
  if (partitioned_) return expired;
  for (const auto& [name, member] : members_) {
    if (now - member.lease_begin <= lease_) continue;
    expired.push_back({.member = name, .silence = now - member.report_time});
  }
  for (const Expired& member : expired) members_.erase(member.member);
  return expired;
}

const AttachedMember* LeaseTable::Find(const std::string& member) const {
  auto it = members_.find(member);
  return it == members_.end() ? nullptr : &it->second;
}

}  // namespace muster
