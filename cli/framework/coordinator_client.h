// A client of the coordinator's API: absl statuses, deadlines, and watches that reconnect.
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

// Thread-safe. Every call blocks for up to 15 s unless its comment says otherwise. UNAVAILABLE and
// NOT_FOUND name the coordinator. INVALID_ARGUMENT can mean that the port serves a status page or
// metrics.
class CoordinatorClient {
 public:
  // `where` names the coordinator in messages, for example "host:7070 (context prod)"; "" means its
  // address. A download fails if no byte arrives for `stall_max`.
  explicit CoordinatorClient(CoordinatorTarget target, std::string where = "",
                             absl::Duration stall_max = absl::Minutes(1));

  const std::string& where() const { return where_; }

  struct CreateOptions {
    // How long to retry. At least three attempts are made, also if it is zero.
    absl::Duration away_max;
    // Called once, before the first wait; may be empty.
    std::function<void(const absl::Status&)> on_outage;
  };
  // Creates one job, even if it has to retry: a request without an id gets one. Retries only after
  // UNAVAILABLE: a name that does not resolve, a refused connection, or a coordinator that does not
  // lead. Each attempt blocks for up to 10 min, because the coordinator imports the model and opens
  // the data.
  absl::StatusOr<v1::Job> CreateJob(v1::CreateJobRequest request,
                                    const CreateOptions& options = {});
  absl::StatusOr<v1::Job> GetJob(const std::string& job);
  // Fetches all pages; each call has its own 15 s.
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request);
  absl::StatusOr<v1::Job> CancelJob(const std::string& job);
  absl::StatusOr<v1::Job> SuspendJob(const std::string& job);
  absl::StatusOr<v1::Job> ResumeJob(const v1::ResumeJobRequest& request);
  absl::StatusOr<v1::Job> UpdateJob(const v1::UpdateJobRequest& request);
  absl::Status DeleteJob(const std::string& job);
  // Fetches one page.
  absl::StatusOr<v1::ListEventsResponse> ListEvents(const v1::ListEventsRequest& request);
  absl::StatusOr<v1::ReadJobMetricsResponse> ReadJobMetrics(
      const v1::ReadJobMetricsRequest& request);
  absl::StatusOr<v1::ReadJobTimingResponse> ReadJobTiming(const std::string& job);
  absl::StatusOr<v1::ReadJobLinksResponse> ReadJobLinks(const std::string& job);
  // Blocks for up to the timeout of the request plus 30 s, in which members send their traces.
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
  absl::StatusOr<v1::Checkpoint> SaveCheckpoint(const std::string& job);  // blocks for up to 10 min

  // Downloads every file of a checkpoint into `directory`, which must not exist, and verifies the
  // checksum of each message. The folder appears complete or not at all. `interrupt` may be null.
  // Blocks as long as data arrives. Returns the error of the coordinator, or:
  // - ALREADY_EXISTS: `directory` exists.
  // - PERMISSION_DENIED: the folder cannot be made.
  // - CANCELLED: a signal came.
  // - DEADLINE_EXCEEDED: no data arrived for `stall_max` (at most twice that).
  // - DATA_LOSS: a checksum, a size or a file name is wrong.
  // - RESOURCE_EXHAUSTED: a file cannot be written.
  absl::Status DownloadCheckpoint(const std::string& name, const std::string& directory,
                                  Interrupt* interrupt = nullptr);

  enum class WatchStep { kContinue, kStop };
  // Returns whether more messages with events of this state of the job follow. A message holds a
  // limited number of events.
  static bool MoreEventsFollow(const v1::WatchJobResponse& update);
  struct WatchOptions {
    absl::Time deadline = absl::InfiniteFuture();
    absl::Duration away_max = absl::Minutes(5);  // longest outage to bridge
    // Called at most once for each outage, with its error: not if the coordinator ended the stream
    // in order. May be empty.
    std::function<void(const absl::Status&)> on_outage;
    Interrupt* interrupt = nullptr;  // may be null
    std::stop_token stop;            // lets another thread end the watch
  };
  // Calls `on_update` when the job has changed, with its newest state and the events since the last
  // call. A reconnect neither loses nor repeats events. Blocks until the watch ends. Returns the
  // error of the coordinator, or:
  // - OK: kStop, or the job reached a terminal state.
  // - DEADLINE_EXCEEDED: the deadline has passed.
  // - CANCELLED: a signal arrived or `stop` was requested. May return up to 2 s after the stop
  //   request.
  absl::Status Watch(const std::string& job, const WatchOptions& options,
                     const std::function<WatchStep(const v1::WatchJobResponse&)>& on_update);
  // Watches all jobs that `request` selects. After a reconnect, messages list all jobs again, up to
  // and including the one that is `complete`. Ends only with kStop, at the deadline, on a signal,
  // on a stop or with an error.
  absl::Status WatchAll(const v1::WatchJobsRequest& request, const WatchOptions& options,
                        const std::function<WatchStep(const v1::WatchJobsResponse&)>& on_update);

 private:
  absl::StatusOr<v1::Job> CreateJobOnce(const v1::CreateJobRequest& request);

  // Opens streams one after the other until one is done or the coordinator is away for too long.
  // `read` opens one stream and reads it to its end. It returns the status, whether anything
  // arrived, and whether the watch is done.
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
