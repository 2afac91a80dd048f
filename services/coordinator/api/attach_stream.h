// A member's stream to the coordinator.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/api/call_gate.h"
#include "services/coordinator/coordinator.h"
#include "services/coordinator/membership/member_directive.h"

namespace muster {

// One MemberService.Attach stream. Deletes itself when gRPC is done with it. Reads and writes are
// independent; the stream ends only between writes. It handles bytes, so that the streams can share
// one serialized plan.
class AttachStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // If `call` is an error, the stream ends with it.
  AttachStream(Coordinator* coordinator, const CallGate& gate, absl::StatusOr<AdmittedCall> call,
               grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override;

 private:
  // Processes the report that was read.
  absl::Status Take() ABSL_LOCKS_EXCLUDED(mu_);
  void Continue() ABSL_LOCKS_EXCLUDED(mu_);
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);
  void SendNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Coordinator* const coordinator_;
  const Access* const access_;
  const absl::StatusOr<AdmittedCall> call_;
  const std::shared_ptr<StreamWaker> waker_;
  CallWatch::Guard guard_;
  std::atomic<bool> cancelled_ = false;

  // Only the reading callbacks use these.
  grpc::ByteBuffer received_;
  v1::MemberReport report_;
  std::shared_ptr<Attachment> attachment_;

  absl::Mutex mu_;
  std::shared_ptr<Attachment> outbox_ ABSL_GUARDED_BY(mu_);
  std::deque<MemberDirective> directives_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer written_ ABSL_GUARDED_BY(mu_);  // valid while `writing_`
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> ending_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace muster
