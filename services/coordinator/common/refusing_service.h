// Answers calls that no service takes.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/generic/async_generic_service.h"
#include "lib/status/grpc_status.h"

namespace muster {

// Refuses each call of each method at once. Thread-safe.
class RefusingService final : public grpc::CallbackGenericService {
 public:
  // `why` returns the error for one call. gRPC's threads call it at the same time.
  explicit RefusingService(std::function<absl::Status()> why) : why_(std::move(why)) {}

 private:
  // Deletes itself when gRPC is done with it.
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Reactor(const grpc::Status& status) { Finish(status); }
    void OnDone() override { delete this; }
  };

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Reactor(ToGrpc(why_()));
  }

  const std::function<absl::Status()> why_;
};

}  // namespace muster
