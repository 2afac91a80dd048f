// What users see of many jobs at once, and of a job's past: all jobs as they change, events,
// curves, where the time goes.
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

// Thread-safe; see JobService for what each does. Nothing here changes anything; calls wait for the
// store and for files, never in a turn.
class JobQueries {
 public:
  // All outlive this.
  JobQueries(JobRegistry* registry, WatchHub* watches, MetricSeries* series)
      : registry_(registry), watches_(watches), series_(series) {}

  // One WatchJobs stream. Owned by the stream; one call of Next() at a time.
  class AllJobs {
   private:
    friend class JobQueries;
    std::shared_ptr<JobsWatch> watch_;
    v1::JobView view_ = v1::JOB_VIEW_BASIC;
    JobFilter filter_;
    uint64_t listed_before_ = 0;  // jobs of lower numbers are still to be listed
    bool complete_told_ = false;
    absl::btree_map<uint64_t, std::string> told_;  // what the watcher knows of, by number
  };
  absl::StatusOr<std::shared_ptr<AllJobs>> WatchJobs(const v1::WatchJobsRequest& request,
                                                     std::shared_ptr<StreamWaker> waker);
  // What is to be sent now; nullopt: nothing, the waker will tell. First all jobs, the newest
  // first.
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
