#include "services/coordinator/api/job_service.h"

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"
#include "services/coordinator/api/watched_stream.h"
#include "services/coordinator/common/late_call.h"

namespace muster {
namespace {

// Returns the next message of a stream; nullopt if there is none, then the waker signals the next
// one.
template <typename Response>
using NextUpdate = std::function<absl::StatusOr<std::optional<WatchUpdate<Response>>>()>;

absl::StatusOr<NextUpdate<v1::WatchJobResponse>> OpenWatch(Coordinator& coordinator,
                                                           const v1::WatchJobRequest& request,
                                                           std::shared_ptr<StreamWaker> waker) {
  UserOperations& users = coordinator.users();
  ASSIGN_OR_RETURN(const auto watch, users.WatchJob(request, std::move(waker)));
  return [&users, watch] { return users.NextOf(*watch); };
}

absl::StatusOr<NextUpdate<v1::WatchJobsResponse>> OpenWatch(Coordinator& coordinator,
                                                            const v1::WatchJobsRequest& request,
                                                            std::shared_ptr<StreamWaker> waker) {
  JobQueries& queries = coordinator.queries();
  ASSIGN_OR_RETURN(const auto watch, queries.WatchJobs(request, std::move(waker)));
  return [&queries, watch]() -> std::optional<WatchUpdate<v1::WatchJobsResponse>> {
    auto next = queries.Next(*watch);
    if (!next) return std::nullopt;
    return {{.response = *std::move(next)}};
  };
}

// One WatchJob or WatchJobs stream. Deletes itself when gRPC is done with it.
template <typename Request, typename Response>
class WatchStream final : public grpc::ServerWriteReactor<Response> {
 public:
  WatchStream(Coordinator& coordinator, absl::StatusOr<AdmittedCall> call, const Request& request)
      : call_(std::move(call)), waker_(std::make_shared<StreamWaker>([this] { Continue(); })) {
    using Next = absl::StatusOr<NextUpdate<Response>>;
    Next next = call_.ok() ? OpenWatch(coordinator, request, waker_) : Next(call_.status());
    absl::MutexLock lock(&mu_);
    if (next.ok()) {
      next_ = *std::move(next);
      SendNext();
    } else {
      End(next.status());
    }
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok || cancelled_) End(absl::CancelledError("the watcher is gone"));
    if (last_) End(absl::OkStatus());
    SendNext();
  }
  void OnCancel() override {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
    if (!writing_) End(absl::CancelledError("the watcher is gone"));
  }
  void OnDone() override {
    waker_->Disarm();
    delete this;
  }

 private:
  void Continue() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    SendNext();
  }
  void SendNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || ended_ || next_ == nullptr) return;
    auto next = next_();
    if (!next.ok()) return End(next.status());
    if (!next->has_value()) return;
    response_ = std::move((*next)->response);
    last_ = (*next)->last;
    writing_ = true;
    this->StartWrite(&response_);
  }
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (std::exchange(ended_, true)) return;
    this->Finish(ToGrpc(status));
  }

  const absl::StatusOr<AdmittedCall> call_;
  const std::shared_ptr<StreamWaker> waker_;
  absl::Mutex mu_;
  NextUpdate<Response> next_ ABSL_GUARDED_BY(mu_);  // null: not opened
  Response response_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool last_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

// Returns the path of the stored file.
absl::StatusOr<std::string> TakeModel(const grpc::ServerContext& context,
                                      grpc::ServerReader<v1::UploadModelRequest>& reader,
                                      CallWatch::Guard& guard, absl::Duration stall_max,
                                      const ModelUploads& uploads) {
  ASSIGN_OR_RETURN(const auto upload, uploads.Begin());
  for (v1::UploadModelRequest request; reader.Read(&request); guard.Advance(stall_max)) {
    guard.Advance(absl::InfiniteDuration());  // no limit while the coordinator's disk is slow
    RETURN_IF_ERROR(upload->Write(request.content()));
  }
  if (guard.cancelled()) return Stalled("no content has come", stall_max);
  guard.Advance(absl::InfiniteDuration());
  if (context.IsCancelled()) return CallerGone();
  return upload->Commit([&] { return context.IsCancelled(); });
}

}  // namespace

grpc::Status JobService::UploadModel(grpc::ServerContext* context,
                                     grpc::ServerReader<v1::UploadModelRequest>* reader,
                                     v1::UploadModelResponse* response) {
  const auto call =
      gate_.Admit(*context, "UploadModel", Permission::kSubmit, CallKind::kModelUpload);
  if (!call.ok()) return ToGrpc(call.status());
  CallWatch::Guard guard = gate_.Watch(context, gate_.watch->first_message_max());
  auto stored = TakeModel(*context, *reader, guard, gate_.watch->stall_max(),
                          coordinator_->users().uploads());
  gate_.access->Audit(call->caller, "UploadModel", stored.ok() ? *stored : "", stored.status());
  if (!stored.ok()) return ToGrpc(stored.status());
  response->set_path(*std::move(stored));
  return grpc::Status::OK;
}

grpc::Status JobService::CreateJob(grpc::ServerContext* context,
                                   const v1::CreateJobRequest* request, v1::Job* response) {
  const auto caller = gate_.access->Check(*context, "CreateJob", Permission::kSubmit);
  if (!caller.ok()) return ToGrpc(caller.status());
  const auto ticket = gate_.admission->Enter(CallKind::kCreate, context->peer());
  const auto created = ticket.ok() ? coordinator_->users().CreateJob(
                                         *request, [context] { return context->IsCancelled(); })
                                   : absl::StatusOr<v1::Job>(ticket.status());
  if (!request->validate_only()) {
    gate_.access->Audit(*caller, "CreateJob",
                        created.ok() ? created->name() : request->spec().name(), created.status());
  }
  return Answer(created, response);
}

grpc::Status JobService::GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
                                v1::Job* response) {
  const auto caller = gate_.access->Check(*context, "GetJob", Permission::kRead);
  if (!caller.ok()) return ToGrpc(caller.status());
  return Answer(coordinator_->users().GetJob(request->name()), response);
}

grpc::Status JobService::ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                                  v1::ListJobsResponse* response) {
  const auto caller = gate_.access->Check(*context, "ListJobs", Permission::kRead);
  if (!caller.ok()) return ToGrpc(caller.status());
  return Answer(coordinator_->users().ListJobs(*request), response);
}

grpc::Status JobService::CancelJob(grpc::ServerContext* context,
                                   const v1::CancelJobRequest* request, v1::Job* response) {
  return Answer(gate_.Audited(*context, "CancelJob", request->name(),
                              [&] { return coordinator_->users().CancelJob(request->name()); }),
                response);
}

grpc::Status JobService::DeleteJob(grpc::ServerContext* context,
                                   const v1::DeleteJobRequest* request, google::protobuf::Empty*) {
  return ToGrpc(gate_.Audited(*context, "DeleteJob", request->name(),
                              [&] { return coordinator_->users().DeleteJob(request->name()); }));
}

grpc::Status JobService::SuspendJob(grpc::ServerContext* context,
                                    const v1::SuspendJobRequest* request, v1::Job* response) {
  return Answer(gate_.Audited(*context, "SuspendJob", request->name(),
                              [&] { return coordinator_->users().SuspendJob(request->name()); }),
                response);
}

grpc::Status JobService::ResumeJob(grpc::ServerContext* context,
                                   const v1::ResumeJobRequest* request, v1::Job* response) {
  return Answer(gate_.Audited(*context, "ResumeJob", request->name(),
                              [&] { return coordinator_->users().ResumeJob(*request); }),
                response);
}

grpc::Status JobService::UpdateJob(grpc::ServerContext* context,
                                   const v1::UpdateJobRequest* request, v1::Job* response) {
  return Answer(gate_.Audited(*context, "UpdateJob", request->name(),
                              [&] { return coordinator_->users().UpdateJob(*request); }),
                response);
}

grpc::Status JobService::ListEvents(grpc::ServerContext* context,
                                    const v1::ListEventsRequest* request,
                                    v1::ListEventsResponse* response) {
  const auto call = gate_.Admit(*context, "ListEvents", Permission::kRead, CallKind::kQuery);
  if (!call.ok()) return ToGrpc(call.status());
  return Answer(coordinator_->queries().ListEvents(*request), response);
}

grpc::Status JobService::ReadJobMetrics(grpc::ServerContext* context,
                                        const v1::ReadJobMetricsRequest* request,
                                        v1::ReadJobMetricsResponse* response) {
  const auto call = gate_.Admit(*context, "ReadJobMetrics", Permission::kRead, CallKind::kQuery);
  if (!call.ok()) return ToGrpc(call.status());
  return Answer(coordinator_->queries().ReadJobMetrics(*request), response);
}

grpc::Status JobService::ReadJobTiming(grpc::ServerContext* context,
                                       const v1::ReadJobTimingRequest* request,
                                       v1::ReadJobTimingResponse* response) {
  const auto caller = gate_.access->Check(*context, "ReadJobTiming", Permission::kRead);
  if (!caller.ok()) return ToGrpc(caller.status());
  return Answer(coordinator_->queries().ReadJobTiming(*request), response);
}

grpc::Status JobService::ReadJobLinks(grpc::ServerContext* context,
                                      const v1::ReadJobLinksRequest* request,
                                      v1::ReadJobLinksResponse* response) {
  const auto call = gate_.Admit(*context, "ReadJobLinks", Permission::kRead, CallKind::kQuery);
  if (!call.ok()) return ToGrpc(call.status());
  return Answer(coordinator_->queries().ReadJobLinks(*request), response);
}

grpc::Status JobService::GetServerInfo(grpc::ServerContext* context,
                                       const v1::GetServerInfoRequest*, v1::ServerInfo* response) {
  const auto caller = gate_.access->Check(*context, "GetServerInfo", Permission::kRead);
  if (!caller.ok()) return ToGrpc(caller.status());
  *response = coordinator_->Describe();
  response->set_security(gate_.access->open() ? "plaintext" : "tls");
  return grpc::Status::OK;
}

grpc::ServerUnaryReactor* JobService::TraceJob(grpc::CallbackServerContext* context,
                                               const v1::TraceJobRequest* request,
                                               v1::TraceJobResponse* response) {
  auto* const call = new LateCall<v1::TraceJobResponse>(response);
  const auto reply = call->reply();
  const auto caller = gate_.access->Check(*context, "TraceJob", Permission::kRead);
  if (!caller.ok()) {
    reply->Send(caller.status());
    return call;
  }
  const uint64_t number = coordinator_->traces().Ask(
      *request, [reply](auto answer) { reply->Send(std::move(answer)); });
  call->WhenCancelled([coordinator = coordinator_, number] { coordinator->traces().Drop(number); });
  return call;
}

grpc::ServerWriteReactor<v1::WatchJobsResponse>* JobService::WatchJobs(
    grpc::CallbackServerContext* context, const v1::WatchJobsRequest* request) {
  return new WatchStream<v1::WatchJobsRequest, v1::WatchJobsResponse>(
      *coordinator_, gate_.Admit(*context, "WatchJobs", Permission::kRead, CallKind::kWatch),
      *request);
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* JobService::WatchJob(
    grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) {
  return new WatchStream<v1::WatchJobRequest, v1::WatchJobResponse>(
      *coordinator_, gate_.Admit(*context, "WatchJob", Permission::kRead, CallKind::kWatch),
      *request);
}

}  // namespace muster
