#include "services/coordinator/api/attach_stream.h"

#include <utility>

#include "grpcpp/impl/codegen/proto_utils.h"
#include "lib/security/identity.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"
#include "services/coordinator/api/access.h"

namespace muster {

AttachStream::AttachStream(Coordinator* coordinator, const CallGate& gate,
                           absl::StatusOr<AdmittedCall> call, grpc::CallbackServerContext* context)
    : coordinator_(coordinator),
      access_(gate.access),
      call_(std::move(call)),
      waker_(std::make_shared<StreamWaker>([this] { Continue(); })),
      guard_(gate.Watch(context, gate.watch->first_message_max())) {
  if (call_.ok()) {
    StartRead(&received_);
  } else {
    End(call_.status());
  }
}

void AttachStream::OnReadDone(bool ok) {
  if (!ok) return End(absl::OkStatus());  // the member has closed its side, or is gone
  const absl::Status status = Take();
  if (!status.ok()) return End(status);
  StartRead(&received_);
}

void AttachStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  writing_ = false;
  written_.Clear();
  if (!ok && !ending_) ending_ = absl::CancelledError("the member is gone");
  SendNext();
}

void AttachStream::OnDone() {
  waker_->Disarm();
  if (attachment_ != nullptr) {
    coordinator_->members().Detach(
        *attachment_, cancelled_ ? Fleet::Departure::kBroken : Fleet::Departure::kOrderly);
  }
  delete this;
}

absl::Status AttachStream::Take() {
  if (!grpc::GenericDeserialize<grpc::ProtoBufferReader, v1::MemberReport>(&received_, &report_)
           .ok()) {
    return WithReason(absl::InvalidArgumentError("the message is not a MemberReport"),
                      "REPORT_INVALID");
  }
  if (attachment_ != nullptr) return coordinator_->members().Report(*attachment_, report_);
  const v1::Hello& hello = report_.hello();
  const absl::Status speaks =
      CheckSpeaksAs(call_->caller.certificate, hello.role() == v1::PS ? Role::kPs : Role::kWorker,
                    hello.member());
  if (!speaks.ok()) {
    access_->Audit(call_->caller, "Attach", hello.member(), speaks);
    return speaks;
  }
  auto attachment = coordinator_->members().Attach(report_, waker_);
  if (!attachment.ok()) return attachment.status();
  attachment_ = *std::move(attachment);
  guard_.Advance(absl::InfiniteDuration());  // from here on the member's lease limits the wait
  absl::MutexLock lock(&mu_);
  outbox_ = attachment_;
  SendNext();
  return absl::OkStatus();
}

void AttachStream::Continue() {
  absl::MutexLock lock(&mu_);
  SendNext();
}

void AttachStream::End(absl::Status status) {
  absl::MutexLock lock(&mu_);
  if (!ending_) ending_ = std::move(status);
  SendNext();
}

void AttachStream::SendNext() {
  if (writing_ || ended_) return;
  if (outbox_ != nullptr && !ending_) {
    for (MemberDirective& told : outbox_->TakeDirectives()) directives_.push_back(std::move(told));
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

}  // namespace muster
