// A fake cluster for tests of the status page.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "lib/status/status.h"
#include "services/coordinator/records/metric_series.h"
#include "services/coordinator/status_page/status_source.h"

namespace muster {

// Returns jobs as they were put. Reads series from real files. Thread-safe.
class FakeStatus final : public StatusSource {
 public:
  // Adds a job, or replaces the one of that name. `log`: path of its metrics.jsonl.
  void Put(const v1::Job& job, const std::string& log = "") {
    absl::MutexLock lock(&mu_);
    jobs_[job.name()] = job;
    changed_.push_back(job.name());
    if (!log.empty()) logs_[job.name()] = log;
  }
  void Remove(const std::string& name) {
    absl::MutexLock lock(&mu_);
    jobs_.erase(name);
    changed_.push_back(name);
  }
  void PutEvent(const std::string& job, const v1::JobEvent& event) {
    absl::MutexLock lock(&mu_);
    events_[job].push_back(event);
  }
  void PutCheckpoint(const v1::Checkpoint& checkpoint, const std::string& content) {
    absl::MutexLock lock(&mu_);
    checkpoints_[checkpoint.name()] = {checkpoint, content};
  }
  void PutMember(const v1::Member& member) {
    absl::MutexLock lock(&mu_);
    members_[member.name()] = member;
  }

  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request) override {
    absl::MutexLock lock(&mu_);
    std::vector<const v1::Job*> jobs;
    for (const auto& [name, job] : jobs_) {
      const auto& states = request.states();
      if (states.empty() || std::ranges::count(states, static_cast<int>(job.state())) > 0) {
        jobs.push_back(&job);
      }
    }
    std::ranges::sort(jobs, [](auto* a, auto* b) { return a->number() > b->number(); });
    uint64_t before = ~uint64_t{0};
    if (!request.page_token().empty() && !absl::SimpleAtoi(request.page_token(), &before)) {
      return absl::InvalidArgumentError("page_token");
    }
    v1::ListJobsResponse response;
    for (const v1::Job* job : jobs) {
      if (job->number() >= before) continue;
      if (response.jobs_size() == (request.page_size() == 0 ? 50 : request.page_size())) {
        response.set_next_page_token(absl::StrCat(response.jobs().rbegin()->number()));
        break;
      }
      *response.add_jobs() = *job;
    }
    return response;
  }
  JobChanges WatchJobs() override {
    absl::MutexLock lock(&mu_);
    return [this, next = changed_.size()]() mutable -> std::optional<v1::WatchJobsResponse> {
      absl::MutexLock lock(&mu_);
      if (next == changed_.size()) return std::nullopt;
      const std::string& name = changed_[next++];
      v1::WatchJobsResponse response;
      if (const auto job = jobs_.find(name); job != jobs_.end()) {
        *response.add_jobs() = job->second;
      } else {
        response.add_removed(name);
      }
      return response;
    };
  }
  absl::StatusOr<v1::Job> GetJob(const std::string& name) override {
    absl::MutexLock lock(&mu_);
    return Find(name);
  }
  absl::StatusOr<std::vector<v1::JobEvent>> ListEvents(const std::string& job,
                                                       uint64_t after) override {
    absl::MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const v1::Job record, Find(job));
    std::vector<v1::JobEvent> events = events_[record.name()];
    std::erase_if(events, [&](const v1::JobEvent& event) { return event.revision() <= after; });
    return events;
  }
  absl::StatusOr<std::vector<v1::Checkpoint>> ListCheckpoints(const std::string& job) override {
    absl::MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const v1::Job record, Find(job));
    std::vector<v1::Checkpoint> found;
    for (const auto& [name, known] : checkpoints_) {
      if (absl::StrCat("jobs/", known.first.job()) == record.name()) found.push_back(known.first);
    }
    return found;
  }
  absl::StatusOr<JobSeries> ReadSeries(const std::string& job,
                                       const SeriesRequest& request) override {
    std::string log;
    {
      absl::MutexLock lock(&mu_);
      ASSIGN_OR_RETURN(const v1::Job record, Find(job));
      log = logs_[record.name()];
    }
    return series_.Read(log.empty() ? "/nowhere" : log, request);
  }
  void PutTiming(const std::string& job, const v1::ReadJobTimingResponse& timing) {
    absl::MutexLock lock(&mu_);
    timings_[job] = timing;
  }
  absl::StatusOr<v1::ReadJobTimingResponse> ReadTiming(const std::string& job) override {
    absl::MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const v1::Job record, Find(job));
    return timings_[record.name()];
  }
  void PutLinks(const std::string& job, const v1::ReadJobLinksResponse& links) {
    absl::MutexLock lock(&mu_);
    links_[job] = links;
  }
  absl::StatusOr<v1::ReadJobLinksResponse> ReadLinks(const std::string& job) override {
    absl::MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const v1::Job record, Find(job));
    return links_[record.name()];
  }
  v1::ListMembersResponse ListMembers() override {
    absl::MutexLock lock(&mu_);
    v1::ListMembersResponse response;
    for (const auto& [name, member] : members_) *response.add_members() = member;
    response.set_term(3);
    return response;
  }
  void PutLog(const std::string& member, const std::string& text) {
    absl::MutexLock lock(&mu_);
    member_logs_[member] = text;
  }
  absl::StatusOr<v1::ReadMemberLogResponse> ReadLog(
      const v1::ReadMemberLogRequest& request) override {
    absl::MutexLock lock(&mu_);
    const auto found = member_logs_.find(request.name());
    if (found == member_logs_.end()) {
      return WithReason(absl::NotFoundError("no member of that name is attached"),
                        "MEMBER_NOT_FOUND");
    }
    const auto size = static_cast<int64_t>(found->second.size());
    const int64_t offset =
        std::min(size, request.has_offset() ? request.offset()
                                            : std::max<int64_t>(0, size - request.bytes_max()));
    v1::ReadMemberLogResponse response;
    response.set_offset(offset);
    response.set_text(found->second.substr(offset));
    response.set_next_offset(size);
    response.set_incarnation("one");
    return response;
  }
  absl::StatusOr<Download> OpenFile(const std::string& checkpoint,
                                    const std::string& file) override {
    absl::MutexLock lock(&mu_);
    const auto found = checkpoints_.find(checkpoint);
    if (found == checkpoints_.end() || found->second.first.files(0).name() != file) {
      return WithReason(absl::NotFoundError("no such file"), "FILE_NOT_FOUND");
    }
    const std::string content = found->second.second;
    return Download{.bytes = static_cast<int64_t>(content.size()),
                    .send = [content](const auto& write) {
                      write(content);
                      return absl::OkStatus();
                    }};
  }

 private:
  absl::StatusOr<v1::Job> Find(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = jobs_.find(absl::StrCat("jobs/", absl::StripPrefix(name, "jobs/")));
    if (found != jobs_.end()) return found->second;
    return WithReason(absl::NotFoundError(absl::StrCat("there is no job '", name, "'")),
                      "JOB_NOT_FOUND");
  }

  MetricSeries series_;
  absl::Mutex mu_;
  std::map<std::string, v1::Job> jobs_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> changed_ ABSL_GUARDED_BY(mu_);  // names of jobs, the oldest change first
  std::map<std::string, std::string> logs_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::vector<v1::JobEvent>> events_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::pair<v1::Checkpoint, std::string>> checkpoints_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, v1::ReadJobTimingResponse> timings_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, v1::ReadJobLinksResponse> links_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, v1::Member> members_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> member_logs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
