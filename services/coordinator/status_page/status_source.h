// What the status page shows, wherever it comes from.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "services/coordinator/records/metric_series.h"

namespace muster {

// Thread-safe. Reads only. Names of jobs are "jobs/ID" or "ID"; NOT_FOUND where there is none.
class StatusSource {
 public:
  virtual ~StatusSource() = default;

  virtual absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request) = 0;
  virtual absl::StatusOr<v1::Job> GetJob(const std::string& name) = 0;
  // The first limits::kWatchEventsMax after a revision.
  virtual absl::StatusOr<std::vector<v1::JobEvent>> ListEvents(const std::string& job,
                                                               uint64_t after) = 0;
  virtual absl::StatusOr<std::vector<v1::Checkpoint>> ListCheckpoints(const std::string& job) = 0;
  // May wait for the disk; see MetricSeries.
  virtual absl::StatusOr<JobSeries> ReadSeries(const std::string& job,
                                               const SeriesRequest& request) = 0;
  // Where the time of each worker's steps went.
  virtual absl::StatusOr<v1::ReadJobTimingResponse> ReadTiming(const std::string& job) = 0;
  // What carries the data between its members.
  virtual absl::StatusOr<v1::ReadJobLinksResponse> ReadLinks(const std::string& job) = 0;
  virtual v1::ListMembersResponse ListMembers() = 0;
  // What a member has logged. Waits for its answer, for seconds where it is silent; errors are
  // those of MemberLogs.
  virtual absl::StatusOr<v1::ReadMemberLogResponse> ReadLog(
      const v1::ReadMemberLogRequest& request) = 0;

  // One file of a checkpoint, held open: it can be sent though the checkpoint is pruned meanwhile.
  // `send` gives it away piece by piece, until `write` says no.
  struct Download {
    int64_t bytes = 0;
    std::function<absl::Status(const std::function<bool(absl::string_view)>& write)> send;
  };
  virtual absl::StatusOr<Download> OpenFile(const std::string& checkpoint,
                                            const std::string& file) = 0;
};

}  // namespace muster
