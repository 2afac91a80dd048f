// The data source of the status page.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
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

// Read-only. Job names are "jobs/ID" or "ID"; the calls return NOT_FOUND if there is no such job.
// Thread-safe.
class StatusSource {
 public:
  virtual ~StatusSource() = default;

  virtual absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request) = 0;
  // Returns what changed since its previous call, or since WatchJobs(); nullopt: nothing more. One
  // call at a time. Must not outlive the source.
  using JobChanges = std::function<std::optional<v1::WatchJobsResponse>()>;
  virtual JobChanges WatchJobs() = 0;
  virtual absl::StatusOr<v1::Job> GetJob(const std::string& name) = 0;
  // Returns the first limits::kWatchEventsMax events after a revision.
  virtual absl::StatusOr<std::vector<v1::JobEvent>> ListEvents(const std::string& job,
                                                               uint64_t after) = 0;
  virtual absl::StatusOr<std::vector<v1::Checkpoint>> ListCheckpoints(const std::string& job) = 0;
  // May block for the disk; see MetricSeries.
  virtual absl::StatusOr<JobSeries> ReadSeries(const std::string& job,
                                               const SeriesRequest& request) = 0;
  // Returns how each worker's steps spend their time.
  virtual absl::StatusOr<v1::ReadJobTimingResponse> ReadTiming(const std::string& job) = 0;
  // Returns the links of the job's workers, each with its transport.
  virtual absl::StatusOr<v1::ReadJobLinksResponse> ReadLinks(const std::string& job) = 0;
  virtual v1::ListMembersResponse ListMembers() = 0;
  // Returns a part of a member's log. Blocks for the member's answer, for seconds if it is silent.
  // Errors are those of MemberLogs.
  virtual absl::StatusOr<v1::ReadMemberLogResponse> ReadLog(
      const v1::ReadMemberLogRequest& request) = 0;

  // One open file of a checkpoint. It can be sent even if the checkpoint is pruned meanwhile.
  // `send` passes it piece by piece to `write`, until that returns false.
  struct Download {
    int64_t bytes = 0;
    std::function<absl::Status(const std::function<bool(absl::string_view)>& write)> send;
  };
  virtual absl::StatusOr<Download> OpenFile(const std::string& checkpoint,
                                            const std::string& file) = 0;
};

}  // namespace muster
