#include "services/coordinator/job_service.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "lib/status/grpc_status.h"

namespace muster {
namespace {

template <typename T>
grpc::Status Answer(absl::StatusOr<T> result, T* response) {
  if (!result.ok()) return ToGrpc(result.status());
  *response = *std::move(result);
  return grpc::Status::OK;
}

// One WatchJob stream; deletes itself when gRPC is done with it.
class WatchStream final : public grpc::ServerWriteReactor<v1::WatchJobResponse> {
 public:
  WatchStream(Coordinator* coordinator, absl::StatusOr<Admission::Ticket> ticket,
              const v1::WatchJobRequest& request)
      : coordinator_(coordinator),
        ticket_(std::move(ticket)),
        waker_(std::make_shared<StreamWaker>([this] { Continue(); })) {
    absl::StatusOr<std::shared_ptr<JobWatch>> watch =
        ticket_.ok() ? coordinator_->WatchJob(request, waker_)
                     : absl::StatusOr<std::shared_ptr<JobWatch>>(ticket_.status());
    absl::MutexLock lock(&mu_);
    if (watch.ok()) {
      watch_ = *std::move(watch);
      SendNext();
    } else {
      End(watch.status());
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
    if (writing_ || ended_ || watch_ == nullptr) return;
    auto next = coordinator_->NextOf(*watch_);
    if (!next.ok()) return End(next.status());
    if (!next->has_value()) return;
    response_ = std::move((*next)->response);
    last_ = (*next)->last;
    writing_ = true;
    StartWrite(&response_);
  }
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (std::exchange(ended_, true)) return;
    Finish(ToGrpc(status));
  }

  Coordinator* const coordinator_;
  const absl::StatusOr<Admission::Ticket> ticket_;
  const std::shared_ptr<StreamWaker> waker_;
  absl::Mutex mu_;
  std::shared_ptr<JobWatch> watch_ ABSL_GUARDED_BY(mu_);
  v1::WatchJobResponse response_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool last_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

grpc::Status JobService::CreateJob(grpc::ServerContext* context,
                                   const v1::CreateJobRequest* request, v1::Job* response) {
  const auto caller = access_->Check(*context, Permission::kSubmit);
  if (!caller.ok()) return ToGrpc(caller.status());
  const auto ticket = admission_->Enter(CallKind::kCreate, context->peer());
  if (!ticket.ok()) return ToGrpc(ticket.status());
  const auto created =
      coordinator_->CreateJob(*request, [context] { return context->IsCancelled(); });
  if (!request->validate_only()) {
    Audit(*caller, "CreateJob", created.ok() ? created->name() : request->spec().name(),
          created.status());
  }
  return Answer(created, response);
}

grpc::Status JobService::GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
                                v1::Job* response) {
  const auto caller = access_->Check(*context, Permission::kRead);
  if (!caller.ok()) return ToGrpc(caller.status());
  return Answer(coordinator_->GetJob(request->name()), response);
}

grpc::Status JobService::ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                                  v1::ListJobsResponse* response) {
  const auto caller = access_->Check(*context, Permission::kRead);
  if (!caller.ok()) return ToGrpc(caller.status());
  return Answer(coordinator_->ListJobs(*request), response);
}

grpc::Status JobService::CancelJob(grpc::ServerContext* context,
                                   const v1::CancelJobRequest* request, v1::Job* response) {
  const auto caller = access_->Check(*context, Permission::kSubmit);
  if (!caller.ok()) return ToGrpc(caller.status());
  const auto changed = coordinator_->CancelJob(request->name());
  Audit(*caller, "CancelJob", request->name(), changed.status());
  return Answer(changed, response);
}

grpc::Status JobService::DeleteJob(grpc::ServerContext* context,
                                   const v1::DeleteJobRequest* request, google::protobuf::Empty*) {
  const auto caller = access_->Check(*context, Permission::kSubmit);
  if (!caller.ok()) return ToGrpc(caller.status());
  const absl::Status changed = coordinator_->DeleteJob(request->name());
  Audit(*caller, "DeleteJob", request->name(), changed);
  return ToGrpc(changed);
}

grpc::Status JobService::SuspendJob(grpc::ServerContext* context,
                                    const v1::SuspendJobRequest* request, v1::Job* response) {
  const auto caller = access_->Check(*context, Permission::kSubmit);
  if (!caller.ok()) return ToGrpc(caller.status());
  const auto changed = coordinator_->SuspendJob(request->name());
  Audit(*caller, "SuspendJob", request->name(), changed.status());
  return Answer(changed, response);
}

grpc::Status JobService::ResumeJob(grpc::ServerContext* context,
                                   const v1::ResumeJobRequest* request, v1::Job* response) {
  const auto caller = access_->Check(*context, Permission::kSubmit);
  if (!caller.ok()) return ToGrpc(caller.status());
  const auto changed = coordinator_->ResumeJob(*request);
  Audit(*caller, "ResumeJob", request->name(), changed.status());
  return Answer(changed, response);
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* JobService::WatchJob(
    grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) {
  const auto caller = access_->Check(*context, Permission::kRead);
  return new WatchStream(coordinator_,
                         caller.ok() ? admission_->Enter(CallKind::kWatch, context->peer())
                                     : absl::StatusOr<Admission::Ticket>(caller.status()),
                         *request);
}

}  // namespace muster
