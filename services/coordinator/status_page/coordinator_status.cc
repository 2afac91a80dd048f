#include "services/coordinator/status_page/coordinator_status.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "services/coordinator/checkpoints/checkpoint_files.h"

namespace muster {

namespace {

// A change of one of these fields of a job is news for the page.
struct Seen {
  uint64_t revision = 0;
  int64_t step = 0;
  std::string message;
  bool operator==(const Seen&) const = default;
};
using SeenJobs = std::map<std::string, Seen>;  // by name

// Removes the jobs that look as they did before. A watch repeats every active job each second.
void LeaveOutUnchanged(SeenJobs& seen, v1::WatchJobsResponse& changes) {
  for (const std::string& name : changes.removed()) seen.erase(name);
  auto& jobs = *changes.mutable_jobs();
  const auto is_unchanged = [&seen](const v1::Job& job) {
    const Seen now = {job.revision(), job.progress().step(), job.message()};
    return std::exchange(seen[job.name()], now) == now;
  };
  jobs.erase(std::remove_if(jobs.begin(), jobs.end(), is_unchanged), jobs.end());
}

}  // namespace

StatusSource::JobChanges CoordinatorStatus::WatchJobs() {
  JobQueries& queries = coordinator_->queries();
  // WatchJobs() always succeeds without a filter. The feed asks for changes, so nothing is woken.
  const auto watch =
      *queries.WatchJobs(v1::WatchJobsRequest(), std::make_shared<StreamWaker>(nullptr));
  // A watch begins with a listing of all jobs, which the page gets by itself.
  SeenJobs seen;
  for (bool listed = false; !listed;) {
    v1::WatchJobsResponse page = *queries.Next(*watch);
    listed = page.complete();
    LeaveOutUnchanged(seen, page);
  }
  return [&queries, watch, seen = std::move(seen)]() mutable {
    auto changes = queries.Next(*watch);
    for (; changes; changes = queries.Next(*watch)) {
      LeaveOutUnchanged(seen, *changes);
      if (!changes->jobs().empty() || !changes->removed().empty()) break;
    }
    return changes;
  };
}

absl::StatusOr<std::vector<v1::JobEvent>> CoordinatorStatus::ListEvents(const std::string& job,
                                                                        uint64_t after) {
  ASSIGN_OR_RETURN(const v1::Job record, coordinator_->users().GetJob(job));
  return coordinator_->store().Events(record.number(), after, limits::kWatchEventsMax);
}

absl::StatusOr<v1::ReadJobTimingResponse> CoordinatorStatus::ReadTiming(const std::string& job) {
  v1::ReadJobTimingRequest request;
  request.set_name(job);
  return coordinator_->queries().ReadJobTiming(request);
}

absl::StatusOr<v1::ReadJobLinksResponse> CoordinatorStatus::ReadLinks(const std::string& job) {
  v1::ReadJobLinksRequest request;
  request.set_name(job);
  return coordinator_->queries().ReadJobLinks(request);
}

absl::StatusOr<v1::ReadMemberLogResponse> CoordinatorStatus::ReadLog(
    const v1::ReadMemberLogRequest& request) {
  // Shared by both sides, because the caller may give up before the answer comes.
  struct Question {
    absl::Notification answered;
    absl::StatusOr<v1::ReadMemberLogResponse> answer = absl::UnknownError("not answered");
  };
  const auto question = std::make_shared<Question>();
  coordinator_->ReadMemberLog(request, [question](auto answer) {
    question->answer = std::move(answer);
    question->answered.Notify();
  });
  // A running coordinator always answers in time, if only with an error because the member is
  // silent.
  if (!question->answered.WaitForNotificationWithTimeout(2 * limits::kMemberLogWaitMax)) {
    return absl::UnavailableError("the coordinator is ending");
  }
  return question->answer;
}

absl::StatusOr<StatusSource::Download> CoordinatorStatus::OpenFile(const std::string& checkpoint,
                                                                   const std::string& file) {
  ASSIGN_OR_RETURN(const v1::Checkpoint record, coordinator_->checkpoints().Get(checkpoint));
  v1::ReadCheckpointRequest request;
  request.set_name(checkpoint);
  request.set_file(file);
  ASSIGN_OR_RETURN(CheckpointFiles opened, CheckpointFiles::Open(record, request));
  const auto files = std::make_shared<CheckpointFiles>(std::move(opened));
  // The first piece has the size of the file. It is kept for send().
  ASSIGN_OR_RETURN(std::optional<v1::ReadCheckpointResponse> first, files->Next());
  if (!first) return absl::InternalError("a file without a piece");
  return Download{
      .bytes = first->file_bytes(),
      .send = [files, piece = std::move(first)](const auto& write) mutable -> absl::Status {
        while (piece && write(piece->data())) {
          ASSIGN_OR_RETURN(piece, files->Next());
        }
        return absl::OkStatus();
      }};
}

}  // namespace muster
