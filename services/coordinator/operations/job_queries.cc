#include "services/coordinator/operations/job_queries.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "services/coordinator/common/proto_time.h"

namespace muster {
namespace {

// Limits the bytes of the jobs in one WatchJobs message. The last job may exceed it, because a spec
// may have a megabyte.
constexpr int64_t kWatchedBytesMax = 1 << 20;
constexpr int kWholeJobsMax = 16;  // changed jobs in one message if it has their complete specs

// The end of a page of events: a revision of a job. The next page begins with the later revisions
// of that job.
struct EventCursor {
  uint64_t job = std::numeric_limits<uint64_t>::max();
  uint64_t revision = 0;
};

std::optional<EventCursor> ParseCursor(const std::string& token, bool one_job) {
  EventCursor cursor;
  if (token.empty()) return cursor;
  if (one_job) {
    if (!absl::SimpleAtoi(token, &cursor.revision)) return std::nullopt;
    return cursor;
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(token, ':');
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &cursor.job) ||
      !absl::SimpleAtoi(parts[1], &cursor.revision)) {
    return std::nullopt;
  }
  return cursor;
}

// Adds one value per point, or its least and its greatest if they differ. Their order is guessed
// from the point's last value.
void FillSeries(const Series& series, v1::MetricSeries& filled) {
  filled.set_name(series.name);
  auto add = [&filled](int64_t step, double value, double time) {
    filled.add_steps(step);
    filled.add_values(value);
    filled.add_times(time);
  };
  for (const SeriesPoint& point : series.points) {
    const MetricRange& values = point.values;
    if (point.first_step == point.last_step || !values.any_finite() || values.min == values.max) {
      add(point.last_step, values.any_finite() ? values.min : values.last, point.last_time);
      continue;
    }
    const bool falls = values.last - values.min < values.max - values.last;
    add(point.first_step, falls ? values.max : values.min, point.first_time);
    add(point.last_step, falls ? values.min : values.max, point.last_time);
  }
  const auto unknown = [](double time) { return std::isnan(time); };
  if (std::ranges::all_of(filled.times(), unknown)) filled.clear_times();
}

bool IsThinnedOut(const JobSeries& read) {
  return std::ranges::any_of(read.series, [](const Series& series) {
    return std::ranges::any_of(series.points, [](const SeriesPoint& point) {
      return point.first_step != point.last_step;
    });
  });
}

// A job, with the revision up to which its events are public.
struct EventSource {
  uint64_t number = 0;
  std::string id;
  uint64_t revision = 0;
};

}  // namespace

// ---------------------------------------------------------------- all jobs

absl::StatusOr<std::shared_ptr<JobQueries::AllJobs>> JobQueries::WatchJobs(
    const v1::WatchJobsRequest& request, std::shared_ptr<StreamWaker> waker) {
  auto jobs = std::make_shared<AllJobs>();
  ASSIGN_OR_RETURN(jobs->filter_, JobFilter::Make(request.states(), request.selector()));
  if (request.view() != v1::JOB_VIEW_UNSPECIFIED) jobs->view_ = request.view();
  jobs->listed_before_ = std::numeric_limits<uint64_t>::max();
  // The watch starts before the listing, so that it reports every later change, listed or not.
  jobs->watch_ = watches_->AddForAll(std::move(waker));
  return jobs;
}

std::optional<v1::WatchJobsResponse> JobQueries::Next(AllJobs& jobs) {
  v1::WatchJobsResponse response;
  std::vector<uint64_t> changed;
  if (jobs.complete_told_) {
    const bool is_full = jobs.view_ == v1::JOB_VIEW_FULL;
    changed =
        watches_->TakeChanged(*jobs.watch_, is_full ? kWholeJobsMax : limits::kWatchedJobsMax);
    if (changed.empty()) return std::nullopt;
  }
  JobRegistry::Transaction transaction(registry_);
  auto matches = [&](const JobRegistry::Entry& entry) {
    return jobs.filter_.Matches(*entry.published);
  };
  int64_t bytes = 0;
  auto tell = [&](uint64_t number, const JobRegistry::Entry& entry) {
    v1::Job& job = *response.add_jobs() = transaction.View(entry, jobs.view_);
    bytes += static_cast<int64_t>(job.ByteSizeLong());
    jobs.told_[number] = entry.published->name();
  };
  if (!jobs.complete_told_) {
    const auto& all = transaction.jobs();
    auto it = all.lower_bound(jobs.listed_before_);
    while (it != all.begin() && response.jobs_size() < limits::kWatchedJobsMax &&
           bytes < kWatchedBytesMax) {
      --it;
      jobs.listed_before_ = it->first;
      if (matches(*it->second)) tell(it->first, *it->second);
    }
    jobs.complete_told_ = it == all.begin();
    response.set_complete(jobs.complete_told_);
    return response;
  }
  for (const uint64_t number : changed) {
    const JobRegistry::Entry* const entry = transaction.FindNumber(number);
    if (entry != nullptr && matches(*entry)) {
      tell(number, *entry);
    } else if (const auto told = jobs.told_.find(number); told != jobs.told_.end()) {
      response.add_removed(told->second);
      jobs.told_.erase(told);
    }
  }
  return response;  // it may be empty: the next call returns what follows
}

// ---------------------------------------------------------------- events

absl::StatusOr<v1::ListEventsResponse> JobQueries::ListEvents(
    const v1::ListEventsRequest& request) {
  const bool one_job = !request.parent().empty();
  const std::optional<EventCursor> cursor = ParseCursor(request.page_token(), one_job);
  std::vector<FieldFault> faults;
  if (request.page_size() < 0) {
    faults.push_back(
        {"page_size", absl::StrCat("must not be negative (is ", request.page_size(), ")")});
  }
  if (!cursor) faults.push_back({"page_token", "is not from an answer of ListEvents"});
  if (!faults.empty()) return FaultsToStatus(faults, "INVALID_REQUEST");
  const int page_size = request.page_size() == 0
                            ? limits::kPageSizeDefault
                            : std::min(request.page_size(), limits::kPageSizeMax);
  std::vector<EventSource> sources;
  {
    JobRegistry::Transaction transaction(registry_);
    auto add = [&](const JobRegistry::Entry& entry) {
      const v1::Job& record = *entry.published;
      sources.push_back({record.number(), JobIdOf(record.name()), record.revision()});
    };
    if (one_job) {
      ASSIGN_OR_RETURN(const JobRegistry::Entry* const entry, transaction.Find(request.parent()));
      add(*entry);
    } else {
      // Every job has an event, so a page needs at most as many jobs as events.
      for (auto it = transaction.jobs().rbegin();
           it != transaction.jobs().rend() && std::ssize(sources) <= page_size; ++it) {
        if (it->first <= cursor->job) add(*it->second);
      }
    }
  }
  v1::ListEventsResponse response;
  for (const EventSource& source : sources) {
    const bool goes_on = one_job || source.number == cursor->job;
    const uint64_t after = goes_on ? cursor->revision : 0;
    const int room = page_size - response.events_size();
    if (room == 0) {
      response.set_next_page_token(absl::StrCat(source.number, ":0"));
      break;
    }
    ASSIGN_OR_RETURN(std::vector<v1::JobEvent> events,
                     registry_->store().Events(source.number, after, room + 1));
    // Events that are stored but not public are left for the next call.
    std::erase_if(events, [&](const auto& e) { return e.revision() > source.revision; });
    const bool more = std::ssize(events) > room;
    if (more) events.pop_back();
    for (v1::JobEvent& event : events) {
      event.set_job(source.id);
      *response.add_events() = std::move(event);
    }
    if (!more) continue;
    const uint64_t last = response.events().rbegin()->revision();
    response.set_next_page_token(one_job ? absl::StrCat(last)
                                         : absl::StrCat(source.number, ":", last));
    break;
  }
  return response;
}

// ---------------------------------------------------------------- curves

absl::StatusOr<v1::ReadJobMetricsResponse> JobQueries::ReadJobMetrics(
    const v1::ReadJobMetricsRequest& request) {
  std::string path;
  {
    JobRegistry::Transaction transaction(registry_);
    ASSIGN_OR_RETURN(const JobRegistry::Entry* const entry, transaction.Find(request.name()));
    path = registry_->folder().metrics_log(JobIdOf(entry->published->name()));
  }
  const int points = request.points() == 0 ? limits::kMetricPointsDefault : request.points();
  if (points < 2 || points > limits::kMetricPointsMax) {
    return FaultsToStatus(
        {{"points",
          absl::StrCat("must be between 2 and ", limits::kMetricPointsMax, " (is ", points, ")")}},
        "INVALID_REQUEST");
  }
  SeriesRequest wanted{
      .names = {request.series().begin(), request.series().end()},
      .from = request.first_step(),
      .to = request.last_step() == 0 ? std::numeric_limits<int64_t>::max() : request.last_step(),
      .points = points};
  ASSIGN_OR_RETURN(JobSeries read, series_->Read(path, wanted));
  if (IsThinnedOut(read)) {  // each interval gives two points
    wanted.points = points / 2;
    ASSIGN_OR_RETURN(read, series_->Read(path, wanted));
  }
  v1::ReadJobMetricsResponse response;
  response.set_steps(read.last_step + 1);
  for (const Series& series : read.series) {
    if (series.points.empty() && request.series().empty()) continue;
    FillSeries(series, *response.add_series());
  }
  return response;
}

// ---------------------------------------------------------------- time

absl::StatusOr<v1::ReadJobTimingResponse> JobQueries::ReadJobTiming(
    const v1::ReadJobTimingRequest& request) {
  JobRegistry::Transaction transaction(registry_);
  ASSIGN_OR_RETURN(const JobRegistry::Entry* const entry, transaction.Find(request.name()));
  v1::ReadJobTimingResponse response;
  response.set_batch_size(entry->published->spec().data().batch_size());
  for (v1::MemberTiming& timing : entry->job.Timing()) *response.add_members() = std::move(timing);
  return response;
}

// The links may be many, so they are copied outside of the transaction.
absl::StatusOr<v1::ReadJobLinksResponse> JobQueries::ReadJobLinks(
    const v1::ReadJobLinksRequest& request) {
  std::vector<std::shared_ptr<const v1::MemberLinks>> links;
  {
    JobRegistry::Transaction transaction(registry_);
    ASSIGN_OR_RETURN(const JobRegistry::Entry* const entry, transaction.Find(request.name()));
    links = entry->job.Links();
  }
  v1::ReadJobLinksResponse response;
  for (const auto& of_member : links) *response.add_members() = *of_member;
  return response;
}

}  // namespace muster
