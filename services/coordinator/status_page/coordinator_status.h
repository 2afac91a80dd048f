// Gives the status page what the coordinator in this process knows.
#pragma once

#include <string>
#include <vector>

#include "services/coordinator/coordinator.h"
#include "services/coordinator/status_page/status_source.h"

namespace muster {

// Thread-safe.
class CoordinatorStatus final : public StatusSource {
 public:
  // `coordinator` must outlive this.
  explicit CoordinatorStatus(Coordinator* coordinator) : coordinator_(coordinator) {}

  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request) override {
    return coordinator_->users().ListJobs(request);
  }
  JobChanges WatchJobs() override;
  absl::StatusOr<v1::Job> GetJob(const std::string& name) override {
    return coordinator_->users().GetJob(name);
  }
  absl::StatusOr<std::vector<v1::JobEvent>> ListEvents(const std::string& job,
                                                       uint64_t after) override;
  absl::StatusOr<std::vector<v1::Checkpoint>> ListCheckpoints(const std::string& job) override {
    return coordinator_->checkpoints().List(job);
  }
  absl::StatusOr<JobSeries> ReadSeries(const std::string& job,
                                       const SeriesRequest& request) override {
    return coordinator_->ReadSeries(job, request);
  }
  absl::StatusOr<v1::ReadJobTimingResponse> ReadTiming(const std::string& job) override;
  absl::StatusOr<v1::ReadJobLinksResponse> ReadLinks(const std::string& job) override;
  v1::ListMembersResponse ListMembers() override { return coordinator_->ListMembers(); }
  absl::StatusOr<v1::ReadMemberLogResponse> ReadLog(
      const v1::ReadMemberLogRequest& request) override;
  absl::StatusOr<Download> OpenFile(const std::string& checkpoint,
                                    const std::string& file) override;

 private:
  Coordinator* const coordinator_;
};

}  // namespace muster
