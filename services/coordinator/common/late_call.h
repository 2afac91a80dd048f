// A unary call that another thread answers later, or that is never answered.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_callback.h"
#include "lib/status/grpc_status.h"

namespace muster {

// Deletes itself when gRPC is done with it.
template <typename Response>
class LateCall final : public grpc::ServerUnaryReactor {
 public:
  // Outlives the call, because the answer may come late. Thread-safe.
  class Reply {
   public:
    Reply(LateCall* call, Response* response) : call_(call), response_(response) {}

    // Answers the call. No-op if it was answered already, or its caller is gone.
    void Send(absl::StatusOr<Response> answer) ABSL_LOCKS_EXCLUDED(mu_) {
      absl::MutexLock lock(&mu_);
      LateCall* const call = std::exchange(call_, nullptr);
      if (call == nullptr) return;
      const grpc::Status status = ToGrpc(answer.status());
      if (answer.ok()) *response_ = *std::move(answer);
      call->Finish(status);
    }

   private:
    absl::Mutex mu_;
    LateCall* call_ ABSL_GUARDED_BY(mu_);  // null: the call is over
    Response* const response_;
  };

  explicit LateCall(Response* response) : reply_(std::make_shared<Reply>(this, response)) {}

  const std::shared_ptr<Reply>& reply() const { return reply_; }

  // Calls `told` when the caller is gone. Must be set before the handler returns: gRPC reports
  // nothing earlier.
  void WhenCancelled(std::function<void()> told) { told_ = std::move(told); }

  void OnCancel() override {
    if (told_) told_();
    reply_->Send(absl::CancelledError("the caller is gone"));
  }
  void OnDone() override { delete this; }

 private:
  const std::shared_ptr<Reply> reply_;
  std::function<void()> told_;
};

}  // namespace muster
