// Converts between absl::Status and grpc::Status. The reason is sent as
// google.rpc.ErrorInfo{reason, domain "muster.io"}, field faults as google.rpc.BadRequest.
// UNAVAILABLE and RESOURCE_EXHAUSTED also have a google.rpc.RetryInfo.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace muster {

// An error too long for a client is cut: first the message, which then says how much is missing,
// then faults from the end.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace muster
