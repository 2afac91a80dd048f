// absl::Status <-> grpc::Status. The reason travels as google.rpc.ErrorInfo{reason, domain
// "muster.io"}, field faults as google.rpc.BadRequest; UNAVAILABLE and RESOURCE_EXHAUSTED have a
// google.rpc.RetryInfo as well.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace muster {

// What is too long for a client to take is cut: the message, which says how much is missing, then
// faults from the end.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace muster
