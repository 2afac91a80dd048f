// Queries over many jobs and over a job's past: all jobs as they change, events, curves, step
// times.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/membership/watch_hub.h"
#include "services/coordinator/operations/job_filter.h"
#include "services/coordinator/records/metric_series.h"
#include "services/coordinator/registry/job_registry.h"

namespace muster {

// Read-only; JobService describes each call. Calls wait for the store and for files, but never
// within a transaction. Thread-safe.
class JobQueries {
 public:
  // The arguments must outlive this.
  JobQueries(JobRegistry* registry, WatchHub* watches, MetricSeries* series)
      : registry_(registry), watches_(watches), series_(series) {}

  // A WatchJobs stream. The stream owns it. Requires: one call of Next() at a time.
  class AllJobs {
   private:
    friend class JobQueries;
    std::shared_ptr<JobsWatch> watch_;
    v1::JobView view_ = v1::JOB_VIEW_BASIC;
    JobFilter filter_;
    uint64_t listed_before_ = 0;  // jobs with lower numbers are not listed yet
    bool complete_told_ = false;
    absl::btree_map<uint64_t, std::string> told_;  // by number: jobs that the watcher knows
  };
  absl::StatusOr<std::shared_ptr<AllJobs>> WatchJobs(const v1::WatchJobsRequest& request,
                                                     std::shared_ptr<StreamWaker> waker);
  // Returns the next message, or nullopt if there is none; then the waker signals the next one.
  // Lists all jobs first, the newest first.
  std::optional<v1::WatchJobsResponse> Next(AllJobs& jobs);

  absl::StatusOr<v1::ListEventsResponse> ListEvents(const v1::ListEventsRequest& request);
  absl::StatusOr<v1::ReadJobMetricsResponse> ReadJobMetrics(
      const v1::ReadJobMetricsRequest& request);
  absl::StatusOr<v1::ReadJobTimingResponse> ReadJobTiming(const v1::ReadJobTimingRequest& request);
  absl::StatusOr<v1::ReadJobLinksResponse> ReadJobLinks(const v1::ReadJobLinksRequest& request);

 private:
  JobRegistry* const registry_;
  WatchHub* const watches_;
  MetricSeries* const series_;
};

}  // namespace muster
