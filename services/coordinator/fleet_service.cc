#include "services/coordinator/fleet_service.h"

#include <atomic>
#include <deque>
#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"
#include "services/coordinator/directive_buffer.h"
#include "services/coordinator/late_call.h"

namespace muster {
namespace {

// One Attach stream; deletes itself when gRPC is done with it. Reads and writes go on
// independently; the stream ends only between writes.
class AttachStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  AttachStream(Coordinator* coordinator, Caller caller, absl::StatusOr<Admission::Ticket> ticket,
               CallWatch* watch, grpc::CallbackServerContext* context)
      : coordinator_(coordinator),
        caller_(std::move(caller)),
        ticket_(std::move(ticket)),
        waker_(std::make_shared<StreamWaker>([this] { Continue(); })),
        guard_(watch, watch->first_message_max(), [context] { context->TryCancel(); }) {
    if (ticket_.ok()) {
      StartRead(&received_);
    } else {
      End(ticket_.status());
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::OkStatus());  // the member has closed its side, or is gone
    const absl::Status status = Take();
    if (!status.ok()) return End(status);
    StartRead(&received_);
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    written_.Clear();
    if (!ok && !ending_) ending_ = absl::CancelledError("the member is gone");
    SendNext();
  }
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override {
    waker_->Disarm();
    if (attachment_ != nullptr) {
      coordinator_->Detach(*attachment_, cancelled_ ? Coordinator::Departure::kBroken
                                                    : Coordinator::Departure::kOrderly);
    }
    delete this;
  }

 private:
  absl::Status Take() ABSL_LOCKS_EXCLUDED(mu_) {
    if (!grpc::GenericDeserialize<grpc::ProtoBufferReader, v1::MemberReport>(&received_, &report_)
             .ok()) {
      return WithReason(absl::InvalidArgumentError("the report is no MemberReport"),
                        "REPORT_INVALID");
    }
    if (attachment_ != nullptr) return coordinator_->Report(*attachment_, report_);
    const v1::Hello& hello = report_.hello();
    const absl::Status speaks = CheckSpeaksAs(
        caller_.certificate, hello.role() == v1::PS ? Role::kPs : Role::kWorker, hello.member());
    if (!speaks.ok()) {
      Audit(caller_, "Attach", hello.member(), speaks);
      return speaks;
    }
    auto attachment = coordinator_->Attach(report_, waker_);
    if (!attachment.ok()) return attachment.status();
    attachment_ = *std::move(attachment);
    guard_.Advance(absl::InfiniteDuration());  // its lease counts from here on
    absl::MutexLock lock(&mu_);
    outbox_ = attachment_;
    SendNext();
    return absl::OkStatus();
  }
  void Continue() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    SendNext();
  }
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (!ending_) ending_ = std::move(status);
    SendNext();
  }
  void SendNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || ended_) return;
    if (outbox_ != nullptr && !ending_) {
      for (MemberDirective& told : outbox_->TakeDirectives())
        directives_.push_back(std::move(told));
      if (absl::Status closed = outbox_->closed(); !closed.ok()) ending_ = std::move(closed);
    }
    if (ending_) {
      ended_ = true;
      Finish(ToGrpc(*ending_));
    } else if (!directives_.empty()) {
      writing_ = true;
      written_ = Serialize(directives_.front());
      directives_.pop_front();
      StartWrite(&written_);
    }
  }

  Coordinator* const coordinator_;
  const Caller caller_;
  const absl::StatusOr<Admission::Ticket> ticket_;
  const std::shared_ptr<StreamWaker> waker_;
  CallWatch::Guard guard_;
  std::atomic<bool> cancelled_ = false;

  // Only reading touches these.
  grpc::ByteBuffer received_;
  v1::MemberReport report_;
  std::shared_ptr<Attachment> attachment_;

  absl::Mutex mu_;
  std::shared_ptr<Attachment> outbox_ ABSL_GUARDED_BY(mu_);
  std::deque<MemberDirective> directives_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer written_ ABSL_GUARDED_BY(mu_);  // as long as `writing_`
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> ending_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* FleetService::Attach(
    grpc::CallbackServerContext* context) {
  auto caller = access_->Check(*context, "Attach", Permission::kMember);
  auto ticket = caller.ok() ? admission_->Enter(CallKind::kAttach, context->peer())
                            : absl::StatusOr<Admission::Ticket>(caller.status());
  return new AttachStream(coordinator_, caller.ok() ? *std::move(caller) : Caller{},
                          std::move(ticket), watch_, context);
}

grpc::ServerUnaryReactor* FleetService::DrainMember(grpc::CallbackServerContext* context,
                                                    const v1::DrainMemberRequest* request,
                                                    v1::DrainMemberResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto caller = access_->Check(*context, "DrainMember", Permission::kAdmin);
  absl::Status drained = caller.status();
  if (caller.ok()) {
    drained = coordinator_->DrainMember(request->name());
    Audit(*caller, "DrainMember", request->name(), drained);
  }
  reactor->Finish(ToGrpc(drained));
  return reactor;
}

grpc::ServerUnaryReactor* FleetService::ListMembers(grpc::CallbackServerContext* context,
                                                    const v1::ListMembersRequest*,
                                                    v1::ListMembersResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto caller = access_->Check(*context, "ListMembers", Permission::kRead);
  if (caller.ok()) *response = coordinator_->ListMembers();
  reactor->Finish(ToGrpc(caller.status()));
  return reactor;
}

grpc::ServerUnaryReactor* FleetService::ReadMemberLog(grpc::CallbackServerContext* context,
                                                      const v1::ReadMemberLogRequest* request,
                                                      v1::ReadMemberLogResponse* response) {
  auto* const call = new LateCall<v1::ReadMemberLogResponse>(response);
  const auto reply = call->reply();
  const auto caller = access_->Check(*context, "ReadMemberLog", Permission::kRead);
  if (caller.ok()) {
    coordinator_->ReadMemberLog(*request, [reply](auto answer) { reply->Send(std::move(answer)); });
  } else {
    reply->Send(caller.status());
  }
  return call;
}

}  // namespace muster
