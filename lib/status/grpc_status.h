// absl::Status <-> grpc::Status. The reason travels as google.rpc.ErrorInfo{reason, domain
// "muster.io"}, field faults as google.rpc.BadRequest.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace muster {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace muster
