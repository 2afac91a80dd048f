// The coordinator's API for people: statuses instead of grpc's, deadlines, reconnecting watches.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/framework/interrupt.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "lib/fleet/channel.h"
#include "proto/muster/v1/access.grpc.pb.h"
#include "proto/muster/v1/access.pb.h"
#include "proto/muster/v1/checkpoint.grpc.pb.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/coordinator.grpc.pb.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster::cli {

// Every call blocks for at most 15 s unless it says otherwise. UNAVAILABLE and NOT_FOUND name the
// coordinator that was asked. INVALID_ARGUMENT: the port is that of a status page or of metrics.
// Thread-safe.
class CoordinatorClient {
 public:
  // `where` names the coordinator in messages, "host:7070 (context prod)"; "": its address. A
  // download stops with an error after `stall_max` without a byte.
  explicit CoordinatorClient(CoordinatorTarget target, std::string where = "",
                             absl::Duration stall_max = absl::Minutes(1));

  const std::string& where() const { return where_; }

  struct CreateOptions {
    absl::Duration away_max;  // how long the coordinator may be away; zero: three attempts
    std::function<void(const absl::Status&)>
        on_outage;  // called once, before the wait; may be empty
  };
  // Makes one job even if it asks several times: a request without an id gets one. Asks again only
  // after UNAVAILABLE: a name that does not resolve, a refused connection, a coordinator that does
  // not lead. Blocks for up to 10 min an attempt: the coordinator imports the model and opens data.
  absl::StatusOr<v1::Job> CreateJob(v1::CreateJobRequest request,
                                    const CreateOptions& options = {});
  absl::StatusOr<v1::Job> GetJob(const std::string& job);
  // All pages.
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request);
  absl::StatusOr<v1::Job> CancelJob(const std::string& job);
  absl::StatusOr<v1::Job> SuspendJob(const std::string& job);
  absl::StatusOr<v1::Job> ResumeJob(const v1::ResumeJobRequest& request);
  absl::StatusOr<v1::Job> UpdateJob(const v1::UpdateJobRequest& request);
  absl::Status DeleteJob(const std::string& job);
  // One page.
  absl::StatusOr<v1::ListEventsResponse> ListEvents(const v1::ListEventsRequest& request);
  absl::StatusOr<v1::ReadJobMetricsResponse> ReadJobMetrics(
      const v1::ReadJobMetricsRequest& request);
  absl::StatusOr<v1::ReadJobTimingResponse> ReadJobTiming(const std::string& job);
  absl::StatusOr<v1::ReadJobLinksResponse> ReadJobLinks(const std::string& job);
  // For as long as the request says, and 30 s: members have a while to tell.
  absl::StatusOr<v1::TraceJobResponse> TraceJob(const v1::TraceJobRequest& request);
  absl::StatusOr<v1::ServerInfo> GetServerInfo();
  absl::StatusOr<v1::ReadMemberLogResponse> ReadMemberLog(const v1::ReadMemberLogRequest& request);
  absl::StatusOr<v1::ListMembersResponse> ListMembers();
  absl::Status DrainMember(const std::string& member);
  absl::StatusOr<v1::CreateTokenResponse> CreateToken(const v1::CreateTokenRequest& request);
  absl::StatusOr<v1::ListTokensResponse> ListTokens();
  absl::StatusOr<v1::AccessToken> RevokeToken(const std::string& id);
  absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(const std::string& job);
  absl::StatusOr<v1::Checkpoint> GetCheckpoint(const std::string& name);
  absl::Status DeleteCheckpoint(const std::string& name);
  absl::StatusOr<v1::Checkpoint> SaveCheckpoint(const std::string& job);  // up to 10 min

  // Downloads every file of a checkpoint into `directory` (made; must not exist), verifying each
  // message's checksum. The folder appears complete or not at all. As long as something comes;
  // CANCELLED on a signal. `interrupt` may be null.
  absl::Status DownloadCheckpoint(const std::string& name, const std::string& directory,
                                  Interrupt* interrupt = nullptr);

  enum class WatchStep { kContinue, kStop };
  // A message holds so many events; whether those of this state of the job are not all yet.
  static bool MoreEventsFollow(const v1::WatchJobResponse& update);
  struct WatchOptions {
    absl::Time deadline = absl::InfiniteFuture();
    absl::Duration away_max = absl::Minutes(5);          // how long the coordinator may be away
    std::function<void(const absl::Status&)> on_outage;  // called once per outage; may be empty
    Interrupt* interrupt = nullptr;                      // may be null
    std::stop_token stop;                                // ends the watch from another thread
  };
  // Calls `on_update` for every state of the job and events after the ones before, across breaks of
  // the connection. OK after kStop or a terminal state; DEADLINE_EXCEEDED; CANCELLED on a signal
  // and after a stop (at most two seconds later); the error otherwise.
  absl::Status Watch(const std::string& job, const WatchOptions& options,
                     const std::function<WatchStep(const v1::WatchJobResponse&)>& on_update);
  // Likewise of all jobs that `request` selects; after a break the first messages, up to the one
  // that is `complete`, tell anew what there is. Ends only by kStop, a deadline, a signal or an
  // error.
  absl::Status WatchAll(const v1::WatchJobsRequest& request, const WatchOptions& options,
                        const std::function<WatchStep(const v1::WatchJobsResponse&)>& on_update);

 private:
  absl::StatusOr<v1::Job> CreateJobOnce(const v1::CreateJobRequest& request);

  // Opens streams one after the other until `end` says that it is over, or the coordinator is away
  // for too long. `read` opens one and reads it; the status of its end, and whether anything came.
  struct Reading {
    grpc::Status status;
    bool answered = false;
    bool done = false;
  };
  absl::Status KeepReading(const WatchOptions& options,
                           const std::function<Reading(grpc::ClientContext&)>& read);

  CoordinatorTarget target_;
  std::string where_;
  absl::Duration stall_max_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::FleetService::Stub> fleet_;
  std::unique_ptr<v1::CheckpointService::Stub> checkpoints_;
  std::unique_ptr<v1::AccessService::Stub> access_;
};

}  // namespace muster::cli
