// Answers calls at the coordinator's port until it leads.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "services/coordinator/common/refusing_service.h"

namespace muster {

// Refuses every call with UNAVAILABLE (reason "NOT_LEADER") and reports NOT_SERVING to gRPC health
// checks. Thread-safe.
class Standby {
 public:
  // `builder` has all settings, but no services and no ports.
  explicit Standby(grpc::ServerBuilder& builder);
  ~Standby();

  // Sets the reason for callers why this coordinator does not lead yet.
  void Explain(const absl::Status& why) ABSL_LOCKS_EXCLUDED(why_mu_);

  // Serves a connection. `socket` is a non-blocking stream socket.
  void Serve(int socket) ABSL_LOCKS_EXCLUDED(mu_);
  // This coordinator leads now. New connections go to `server`, which must outlive this object.
  // Closes the connections that were refused until now. Call once.
  void GiveWayTo(grpc::Server* server) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Returns the error for callers.
  absl::Status WhyNot() const ABSL_LOCKS_EXCLUDED(why_mu_);

  // A mutex of its own: gRPC may answer a call while Serve() holds `mu_`.
  mutable absl::Mutex why_mu_;
  std::string why_ ABSL_GUARDED_BY(why_mu_) = "it has just started";
  absl::Mutex mu_;
  grpc::Server* serving_ ABSL_GUARDED_BY(mu_);
  RefusingService refusal_;
  std::unique_ptr<grpc::Server> refusing_;
};

}  // namespace muster
