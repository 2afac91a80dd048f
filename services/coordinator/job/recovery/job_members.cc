#include "services/coordinator/job/recovery/job_members.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/limits/limits.h"
#include "services/coordinator/common/proto_time.h"
#include "services/coordinator/job/recovery/device_kinds.h"

namespace muster {
namespace {

// Keeps at most kLinksReportedMax links: a member sends this list, so its length is not trusted.
std::shared_ptr<const v1::MemberLinks> LinksIn(const v1::JobReport& report, const std::string& name,
                                               absl::Time now) {
  auto links = std::make_shared<v1::MemberLinks>();
  links->set_member(name);
  const int kept = std::min(report.links_size(), limits::kLinksReportedMax);
  links->mutable_links()->Assign(report.links().begin(), report.links().begin() + kept);
  links->set_links_left_out(std::max(report.links_left_out(), report.links_size() - kept));
  *links->mutable_report_time() = ToProto(now);
  return links;
}

}  // namespace

template <typename Predicate>
const std::string* JobMembers::First(Predicate is) const {
  for (const auto& [name, member] : members_) {
    if (std::invoke(is, member)) return &name;
  }
  return nullptr;
}

template <typename Predicate>
std::vector<std::string> JobMembers::Names(Predicate is) const {
  std::vector<std::string> names;
  for (const auto& [name, member] : members_) {
    if (std::invoke(is, member)) names.push_back(name);
  }
  return names;
}

template <typename Predicate>
const std::string* JobMembers::FirstCutOff(Predicate is) const {
  for (const auto& [reporter, member] : members_) {
    for (const std::string& name : member.lost_links) {
      const auto other = members_.find(name);
      if (other != members_.end() && std::invoke(is, other->second)) return &other->first;
    }
  }
  return nullptr;
}

void JobMembers::Enlist(const v1::JobPlan& plan, absl::Time now) {
  const absl::btree_map<std::string, Member> before = std::exchange(members_, {});
  workers_.clear();
  ps_.clear();
  last_came_ = now;
  const v1::SyncSpec& sync = plan.spec().sync();
  in_lockstep_ = sync.mode() != v1::SSP && sync.mode() != v1::ASP && sync.backup_workers() == 0;
  for (const v1::PlanShard& shard : plan.shards()) {
    members_[shard.member()].host = shard.host();
    if (shard.has_backup()) members_[shard.backup().member()].host = shard.backup().host();
  }
  for (int rank = 0; rank < plan.workers_size(); ++rank) {
    Member& worker = members_[plan.workers(rank).member()];
    worker.rank = rank;
    worker.host = plan.workers(rank).host();
    workers_.push_back(plan.workers(rank).member());
  }
  const auto add_ps = [this](const std::string& name) {
    if (!members_.at(name).is_worker() && std::ranges::count(ps_, name) == 0) ps_.push_back(name);
  };
  for (const v1::PlanShard& shard : plan.shards()) add_ps(shard.member());
  for (const v1::PlanShard& shard : plan.shards()) {
    if (shard.has_backup()) add_ps(shard.backup().member());
  }
  for (const v1::PlanChunk& chunk : plan.chunks()) {
    members_[plan.shards(chunk.shard()).member()].shards.insert(chunk.shard());
  }
  for (auto& [name, member] : members_) {
    const auto known = before.find(name);
    member.was_there = known != before.end() && known->second.was_there && !known->second.lost &&
                       known->second.is_worker() == member.is_worker();
    member.advanced = now;
  }
}

void JobMembers::Began() {
  for (auto& [name, member] : members_) member.was_there = true;
}

void JobMembers::BeganBefore() {
  for (auto& [name, member] : members_) member.was_there = member.is_presumed = true;
}

bool JobMembers::IsNewcomer(const std::string& name) const {
  return !members_.at(name).was_there && Any(&Member::was_there);
}

void JobMembers::WentOn(absl::Time now) {
  for (auto& [name, member] : members_) member.advanced = now;
  last_came_ = now;
}

std::vector<std::string> JobMembers::names() const {
  return Names([](const Member&) { return true; });
}

std::string JobMembers::Describe(const std::string& name) const {
  const Member& member = members_.at(name);
  std::string what;
  if (member.is_worker()) {
    what = absl::StrCat("worker, rank ", member.rank);
  } else if (member.shards.empty()) {
    what = "ps";
  } else {
    what = absl::StrCat("ps, ", member.shards.size() == 1 ? "shard " : "shards ",
                        absl::StrJoin(member.shards, ", "));
  }
  if (!member.host.empty()) absl::StrAppend(&what, ", on ", member.host);
  return absl::StrCat(name, " (", what, ")");
}

std::string JobMembers::WhatIsAwaitedOf(const std::string& name) const {
  const Member& member = members_.at(name);
  if (member.is_worker() ? !in_lockstep_ : member.shards.empty()) return "";
  const int64_t waiting = std::ranges::count_if(members_, [&](const auto& other) {
    const Member& worker = other.second;
    return other.first != name && worker.is_worker() && !worker.lost && worker.serving &&
           worker.state == v1::MEMBER_RUNNING;
  });
  if (waiting == 0) return "";
  return absl::StrCat(waiting, waiting == 1 ? " worker waits" : " workers wait", " for its ",
                      member.is_worker() ? "gradients" : "values");
}

const JobMembers::Member& JobMembers::Take(const std::string& name, const v1::JobReport* report,
                                           absl::Time now, uint32_t behind) {
  Member& member = members_.at(name);
  if (std::exchange(member.is_presumed, false) && report == nullptr && behind == 0) {
    member.was_there = false;
  }
  if (!std::exchange(member.heard, true)) last_came_ = now;
  member.behind = behind;
  member.serving = report != nullptr;
  if (report == nullptr) return member;
  member.program_wait.reset();
  if (report->has_program_wait()) member.program_wait = report->program_wait();
  if (report->state() != member.state || report->prepare_progress() > member.prepare_progress ||
      member.program_wait) {
    member.advanced = now;
  }
  member.prepare_progress = std::max(member.prepare_progress, report->prepare_progress());
  member.state = report->state();
  if (member.is_worker() || report->state() != v1::MEMBER_HALTED) {
    member.next_step = report->next_step();
  } else {
    member.held = {.oldest = report->oldest_version(), .newest = report->next_step()};
    for (const v1::HeldBackup& replica : report->backups()) {
      member.replicas[replica.shard()] = {.oldest = replica.oldest_version(),
                                          .newest = replica.newest_version()};
    }
  }
  member.has_more_records =
      report->steps_size() + report->evaluations_size() >= limits::kStepRecordsReportedMax;
  member.lost_links.assign(report->lost_links().begin(), report->lost_links().end());
  if (!report->address().empty()) member.address = report->address();
  if (report->has_dataset()) member.dataset = report->dataset();
  if (!report->device_kind().empty()) {
    member.device_kind = PrintableKind(report->device_kind());
  }
  if (report->has_timing()) {
    member.timing = report->timing();
    member.timed = now;
  }
  if (!report->links().empty()) member.links = LinksIn(*report, name, now);
  return member;
}

const std::string* JobMembers::LongestProgramWait() const {
  const std::string* longest = nullptr;
  absl::Duration wait = -absl::InfiniteDuration();
  for (const std::string& name : workers_) {
    const Member& worker = members_.at(name);
    if (worker.lost || !worker.serving || !worker.program_wait) continue;
    if (const absl::Duration time = FromProto(worker.program_wait->time()); time > wait) {
      longest = &name;
      wait = time;
    }
  }
  return longest;
}

std::vector<v1::MemberTiming> JobMembers::Timing() const {
  std::vector<v1::MemberTiming> timings;
  for (const std::string& name : workers_) {
    const Member& worker = members_.at(name);
    if (!worker.timing) continue;
    v1::MemberTiming& timing = timings.emplace_back();
    timing.set_member(name);
    *timing.mutable_timing() = *worker.timing;
    *timing.mutable_report_time() = ToProto(worker.timed);
  }
  return timings;
}

std::vector<std::shared_ptr<const v1::MemberLinks>> JobMembers::Links() const {
  std::vector<std::shared_ptr<const v1::MemberLinks>> links;
  for (const std::string& name : workers_) {
    if (members_.at(name).links != nullptr) links.push_back(members_.at(name).links);
  }
  return links;
}

void JobMembers::Reattached(const std::string& name) {
  if (const auto member = members_.find(name); member != members_.end()) {
    member->second.has_stream = true;
  }
}

void JobMembers::StreamBroken(const std::string& name) {
  if (const auto member = members_.find(name); member != members_.end()) {
    member->second.has_stream = false;
  }
}

bool JobMembers::AllStopped() const { return All(&Member::has_stopped); }

std::vector<std::string> JobMembers::NotStopped() const {
  return Names(std::not_fn(&Member::has_stopped));
}

std::vector<std::string> JobMembers::Leaving() const {
  return Names([](const Member& member) { return member.leaving && !member.lost; });
}

const std::string* JobMembers::FirstLostByAll() const {
  return FirstCutOff(std::not_fn(&Member::has_stream));
}

std::optional<HeldVersions> JobMembers::HeldBy(const std::string& ps) const {
  const auto member = members_.find(ps);
  if (member == members_.end() || !member->second.holds()) return std::nullopt;
  return member->second.held;
}

std::optional<HeldVersions> JobMembers::HeldInReplica(const std::string& ps, int shard) const {
  const auto member = members_.find(ps);
  if (member == members_.end() || !member->second.holds()) return std::nullopt;
  const auto replica = member->second.replicas.find(shard);
  if (replica == member->second.replicas.end()) return std::nullopt;
  return replica->second;
}

int64_t JobMembers::OldestStep() const {
  int64_t oldest = std::numeric_limits<int64_t>::max();
  for (const std::string& name : workers_) oldest = std::min(oldest, members_.at(name).next_step);
  return workers_.empty() ? 0 : oldest;
}

bool JobMembers::AllPrepared() const { return All(&Member::is_prepared); }

bool JobMembers::AllWorkersDone() const {
  return All([](const Member& member) {
    return !member.is_worker() || (member.state == v1::MEMBER_DONE && !member.has_more_records);
  });
}

bool JobMembers::AnyWorkerDone() const {
  return Any(
      [](const Member& member) { return member.is_worker() && member.state == v1::MEMBER_DONE; });
}

bool JobMembers::AnyHasMoreRecords() const { return Any(&Member::has_more_records); }

std::optional<int64_t> JobMembers::StoppedAt(int64_t total_steps) const {
  std::optional<int64_t> step;
  for (const auto& [name, member] : members_) {
    if (!member.is_worker()) continue;
    const bool stopped = member.state == v1::MEMBER_PAUSED || member.state == v1::MEMBER_DONE;
    const int64_t at = member.state == v1::MEMBER_DONE ? total_steps : member.next_step;
    if (!stopped || (step && *step != at)) return std::nullopt;
    step = at;
  }
  return step;
}

int64_t JobMembers::NewestStep() const {
  int64_t newest = 0;
  for (const auto& [name, member] : members_) newest = std::max(newest, member.next_step);
  return newest;
}

std::vector<std::string> JobMembers::Silent() const { return Names(&Member::is_silent); }

const std::string* JobMembers::FirstSilentCutOff() const { return FirstCutOff(&Member::is_silent); }

const std::string* JobMembers::FirstStalled(absl::Time since) const {
  return First([since](const Member& member) {
    const bool unprepared = !member.serving || member.state == v1::MEMBER_PREPARING;
    return unprepared && member.advanced <= since;
  });
}

const std::string* JobMembers::FirstNotPaused(absl::Time since) const {
  const bool waits = Any([since](const Member& member) {
    return member.state == v1::MEMBER_PAUSED && member.advanced <= since;
  });
  if (!waits) return nullptr;
  return First([](const Member& member) {
    return member.is_worker() && !member.lost && member.state == v1::MEMBER_RUNNING;
  });
}

}  // namespace muster
