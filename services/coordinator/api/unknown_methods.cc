#include "services/coordinator/api/unknown_methods.h"

#include "absl/status/status.h"
#include "lib/status/grpc_status.h"

namespace muster {
namespace {

// Ends its call at once. Deletes itself when gRPC is done with it.
class Refusal final : public grpc::ServerGenericBidiReactor {
 public:
  Refusal() {
    Finish(ToGrpc(absl::UnimplementedError(
        "this coordinator has no such method: it and the program that calls it are of different "
        "versions. All programs of a cluster should be of one version (muster members)")));
  }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerGenericBidiReactor* UnknownMethods::CreateReactor(grpc::GenericCallbackServerContext*) {
  return new Refusal;
}

}  // namespace muster
