// What a coordinator does at its port until it leads.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace muster {

// Refuses every call with UNAVAILABLE (reason "NOT_LEADER"), and is NOT_SERVING to gRPC's health
// checks. Thread-safe.
class Standby {
 public:
  // `builder` has everything but services and ports.
  explicit Standby(grpc::ServerBuilder& builder);
  ~Standby();

  // Why it is not this coordinator's turn, for who calls.
  void Explain(const absl::Status& why) ABSL_LOCKS_EXCLUDED(why_mu_);

  // Takes a connection: a stream socket that does not block.
  void Serve(int socket) ABSL_LOCKS_EXCLUDED(mu_);
  // It is this coordinator's turn: connections go to `server`, which outlives this, and those who
  // were refused until now are hung up on. Once.
  void GiveWayTo(grpc::Server* server) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Refusal;

  // Two: gRPC may answer a call while it is given a connection.
  absl::Mutex why_mu_;
  std::string why_ ABSL_GUARDED_BY(why_mu_) = "it has just started";
  absl::Mutex mu_;
  grpc::Server* serving_ ABSL_GUARDED_BY(mu_);
  const std::unique_ptr<Refusal> refusal_;
  std::unique_ptr<grpc::Server> refusing_;
};

}  // namespace muster
